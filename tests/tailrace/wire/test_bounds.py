import pytest

from tailrace.block import DIGEST_MAX, encode_block
from tailrace.errors import TooLarge
from tailrace.link.address import Address
from tailrace.model import Level
from tailrace.model.failover import ENTRIES_MAX, SEQ_MAX, FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import ADDRESS_LENGTH_MAX, encode_json
from tailrace.wire.bounds import REQUEST_BOUNDS, check_request, request_bound
from tailrace.wire.consumer_messages import COMMIT_PARTITIONS_MAX, Commit, ConsumerId, Hold, Join, Reset
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import FRAME_HEADER_BYTES, SMALL_BODY_BYTES, encode_frame
from tailrace.wire.messages import GET_KEYS_MAX, Get, Hello
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress
from tailrace.wire.replica_messages import Replica
from tailrace.wire.stage_messages import NAME_CHARS_MAX, STAGES_MAX, Publish, StageBlock
from tailrace.wire.stream_messages import StreamRequest

ID = b"i" * 16
LOG = FailoverLog([(bytes([number]) * 16, SEQ_MAX - number, SEQ_MAX - number) for number in range(ENTRIES_MAX)])
FULL_REQUEST = StreamRequest(
    ID,
    4_095,
    LOG,
    SEQ_MAX - 1,
    SEQ_MAX - 1,
    SEQ_MAX,
    SEQ_MAX,
    SEQ_MAX,
    Level.MEMORY,
    "follower",
    StreamFilter(bytes(4_096), True),
    replica=Replica(ID, SEQ_MAX, "a" * ADDRESS_LENGTH_MAX, True, ID, start=ID[:8]),
)
ADDRESS = str(Address("\N{SNOWMAN}" * (ADDRESS_LENGTH_MAX - 6), 65_535))
PUBLISH = Publish(
    ID,
    "\N{PILE OF POO}" * NAME_CHARS_MAX,
    "\N{PILE OF POO}" * NAME_CHARS_MAX,
    SEQ_MAX,
    (ID,) * STAGES_MAX,
    tuple(range(61_440, 65_536)),
    DIGEST_MAX,
)
CONSUMER = ConsumerId(ID, "group", "\N{PILE OF POO}" * 100)


def full_log(partition):
    """A full failover log of branches that no other partition has."""
    entries = range(ENTRIES_MAX)
    return FailoverLog([(bytes([n, partition]) * 8, SEQ_MAX - n - 1, SEQ_MAX - n - 9) for n in entries])


FULL_POSITIONS = {
    4_095 - n: Position.at(full_log(n), SEQ_MAX - 1, SEQ_MAX - 9, SEQ_MAX, SEQ_MAX)
    for n in range(COMMIT_PARTITIONS_MAX)
}
CREATE_FEED = {
    "name": "f" * 100,
    "feed_id": ID.hex(),
    "partitions": 4_096,
    "keyspace": "hash",
    "retention": "compact",
    "history_age_s": 9_223_372_036_854.123456,
    "history_bytes": SEQ_MAX,
    "tombstone_age_s": 9_223_372_036_854.123456,
    "replication": "stream",
    "exist_ok": False,
}
# The longest requests that a client or a node can mean.
LONGEST = {
    Opcode.HELLO: Hello(name="\N{PILE OF POO}" * 200, token="t" * 4_096).encode(),
    Opcode.CREATE_FEED: encode_json(Opcode.CREATE_FEED, CREATE_FEED),
    Opcode.GET: Get(ID, Level.DISK, [bytes(4_096)] * GET_KEYS_MAX).encode(1),
    Opcode.PUBLISH: encode_json(Opcode.PUBLISH, PUBLISH.to_json()),
    Opcode.STREAM_REQUEST: FULL_REQUEST.encode(1),
    Opcode.EXPLAIN_RESUME: encode_json(Opcode.EXPLAIN_RESUME, FULL_REQUEST.to_json()),
    Opcode.PROMISE: encode_json(
        Opcode.PROMISE,
        {
            "term": SEQ_MAX,
            "address": ADDRESS,
            "placement_id": ID.hex(),
            "handover": False,
            "last_led": SEQ_MAX,
            "members": [ADDRESS] * 25,
        },
    ),
    Opcode.HANDOVER: encode_json(Opcode.HANDOVER, {"to": ADDRESS}),
    Opcode.PROGRESS: encode_json(
        Opcode.PROGRESS, Progress(ID, Level.MEMORY, dict.fromkeys(range(4_096), SEQ_MAX)).to_json()
    ),
    Opcode.CONSUMER_JOIN: Join(
        CONSUMER, ID, "beginning", Level.QUORUM, tuple(range(4_096)), dict.fromkeys(range(4_096), SEQ_MAX)
    ).encode(1),
    Opcode.CONSUMER_RELEASE: Hold(CONSUMER, ID, dict.fromkeys(range(4_096), SEQ_MAX), leave=True).encode(
        Opcode.CONSUMER_RELEASE, 1
    ),
    Opcode.CONSUMER_STATUS: encode_json(Opcode.CONSUMER_STATUS, CONSUMER.to_json()),
    Opcode.CONSUMER_RESET: Reset(CONSUMER, "given", tuple(FULL_POSITIONS), Positions(ID, ID, FULL_POSITIONS)).encode(1),
    Opcode.CONSUMER_RENEW: Hold(CONSUMER, ID).encode(Opcode.CONSUMER_RENEW, 1),
    Opcode.CONSUMER_COMMIT: Commit(
        CONSUMER,
        ID,
        dict.fromkeys(FULL_POSITIONS, SEQ_MAX),
        Positions(ID, ID, FULL_POSITIONS),
    ).encode(1),
    Opcode.ACCEPTED_SEQS: encode_json(Opcode.ACCEPTED_SEQS, {"feed_ids": [ID.hex()] * 10_000, "joining": False}),
}


@pytest.mark.parametrize("opcode", LONGEST)
def test_the_longest_request_has_room(opcode):
    check_request(LONGEST[opcode])
    assert Opcode(LONGEST[opcode][4]) is opcode


def test_a_get_of_the_longest_keys_has_just_enough():
    assert len(LONGEST[Opcode.GET]) - FRAME_HEADER_BYTES == request_bound(Opcode.GET)


@pytest.mark.parametrize("opcode", [Opcode.STATUS, Opcode.PARTITIONS, Opcode.PUBLISH, Opcode.STREAM_REQUEST])
def test_one_byte_more_is_refused_before_it_is_sent(opcode):
    bound = request_bound(opcode)
    check_request(encode_frame(opcode, bytes(bound)))
    with pytest.raises(TooLarge, match=f"{opcode.name} of {bound + 1} bytes; a node accepts {bound} at most"):
        check_request(encode_frame(opcode, bytes(bound + 1)))


def test_both_buffers_of_a_request_count():
    block = encode_block([b"k"], [bytes(1_000_000)], partition=0)
    check_request(StageBlock.encode(ID, ID, 0, 0, block, 1))
    with pytest.raises(TooLarge, match="STATUS of 5000 bytes"):
        check_request((encode_frame(Opcode.STATUS), bytes(5_000)))


def test_json_is_parsed_in_one_turn_of_the_loop():
    """Only blocks and keys may be megabytes: they are taken as they lie."""
    binary = {Opcode.WRITE, Opcode.STAGE_BLOCK, Opcode.GET}
    assert all(SMALL_BODY_BYTES < bound <= 512 * 1024 for op, bound in REQUEST_BOUNDS.items() if op not in binary)
