"""Of messages.py and stream_messages.py."""

import contextlib
import inspect
import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.errors import BadBlock, ProtocolError
from tailrace.model import EndReason, Item, Level, Version, VersionRange
from tailrace.model.failover import SEQ_MAX, FailoverEntry, FailoverLog, resume_point
from tailrace.wire import messages, stream_messages
from tailrace.wire.bodies import JSON_BODY_BYTES_MAX, decode_json, encode_json
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.frames import FRAME_HEADER_BYTES, FrameDecoder
from tailrace.wire.messages import (
    GET_KEYS_MAX,
    NODES_LEVEL,
    Get,
    Got,
    Hello,
    HelloOk,
    Trace,
    Write,
    WriteFlag,
    Written,
    lone_get,
    lone_got,
)
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace.wire.stream_messages import (
    COOKIE_BYTES_MAX,
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    decode_cookie,
    decode_number,
    decode_seq,
    encode_number,
    encode_seq,
)

LOG = FailoverLog([FailoverEntry(b"v" * 16, 4, 100), FailoverEntry(b"u" * 16, 1, 0)])
FEED_ID = b"f" * 16

ids16 = st.binary(min_size=16, max_size=16)
seqs = st.integers(0, SEQ_MAX)
u32 = st.integers(0, 2**32 - 1)


def body_of(data):
    (frame,) = FrameDecoder().receive_data(data)
    return frame.body


def rewritten(data, **changes):
    """The body of a JSON frame with other fields; `...` takes one away."""
    value = {**json.loads(bytes(body_of(data))), **changes}
    return memoryview(json.dumps({name: field for name, field in value.items() if field is not ...}).encode())


HELLO = Hello(name="a consumer", token="secret", window_bytes=77)
HELLO_OK = HelloOk(1, "a" * 32, "b" * 32, "tailrace/0.1", 1000, 10.0, ("memory", "disk"), 88)
STREAM_REQUEST = StreamRequest(FEED_ID, 3, LOG, 120, 110, 130, 5, None, Level.DISK, filter=StreamFilter(b"a/", True))
STREAM_OK = StreamOk(3, 120, LOG, 140)
ROLL_BACK = RollBack(3, 100, LOG, "forked")
STREAM_END = StreamEnd(3, EndReason.HISTORY_CHANGED, "it forked", 4)
JSON_MESSAGES = [HELLO, HELLO_OK, STREAM_REQUEST, STREAM_OK, ROLL_BACK, STREAM_END]


def encoded(message):
    return message.encode() if isinstance(message, Hello | HelloOk) else message.encode(7)


@pytest.mark.parametrize("message", JSON_MESSAGES, ids=lambda message: type(message).__name__)
def test_json_messages_come_out_as_they_went_in(message):
    (frame,) = FrameDecoder().receive_data(encoded(message))
    assert type(message).decode(frame.body) == message
    assert frame.id == (0 if isinstance(message, Hello | HelloOk) else 7)


def test_a_stream_from_now_on_has_no_seq():
    request = STREAM_REQUEST._replace(seq=None, snapshot_first=0, snapshot_last=0, log=FailoverLog())
    assert StreamRequest.decode(body_of(request.encode(1))) == request


def test_a_stream_of_everything_names_no_filter():
    request = STREAM_REQUEST._replace(filter=EVERYTHING)
    assert "filter" not in decode_json(body_of(request.encode(1)), "STREAM_REQUEST")
    assert StreamRequest.decode(body_of(request.encode(1))) == request


def test_a_stream_since_a_time_has_no_seq_either():
    request = STREAM_REQUEST._replace(seq=None, snapshot_first=0, snapshot_last=0, since_us=17)
    assert StreamRequest.decode(body_of(request.encode(1))) == request
    with pytest.raises(ProtocolError, match="'since_us' is for a request without a seq"):
        StreamRequest.decode(body_of(STREAM_REQUEST._replace(since_us=17).encode(1)))
    for number in (-1, SEQ_MAX + 1, 1.0):
        with pytest.raises(ProtocolError, match="field 'since_us'"):
            StreamRequest.decode(rewritten(request.encode(1), since_us=number))


def test_a_stream_until_a_time():
    request = STREAM_REQUEST._replace(until_us=17)
    assert StreamRequest.decode(body_of(request.encode(1))) == request
    with pytest.raises(ProtocolError, match="field 'until_us'"):
        StreamRequest.decode(rewritten(request.encode(1), until_us="17"))


def test_a_stream_that_begins_inside_a_run():
    answer = STREAM_OK._replace(snapshot=(110, 130))
    assert StreamOk.decode(body_of(answer.encode(1))) == answer
    for bounds in ((121, 130), (110, 119)):
        with pytest.raises(ProtocolError, match="lies outside of its snapshot"):
            StreamOk.decode(body_of(STREAM_OK._replace(snapshot=bounds).encode(1)))


def test_what_a_hello_may_leave_out():
    assert Hello.decode(memoryview(b'{"versions": [1]}')) == Hello(takes_ttls=False)


def test_an_end_for_a_reason_of_a_newer_node_is_an_error():
    body = rewritten(STREAM_END.encode(7), reason="eclipse")
    assert StreamEnd.decode(body).reason is EndReason.ERROR


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(["leader", "disk", "quorum", "0" * 32, 2**63, 2**64]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("message", JSON_MESSAGES, ids=lambda message: type(message).__name__)
@given(data=st.data())
def test_hostile_fields_end_in_protocol_error(message, data):
    names = data.draw(st.sets(st.sampled_from(message._fields), min_size=1, max_size=2))
    changes = {name: data.draw(st.just(...) | json_values) for name in names}
    try:
        decoded = type(message).decode(rewritten(encoded(message), **changes))
    except ProtocolError:
        return
    use(decoded)


def use(message):
    """What the other end does with a message that was let through: none of it may fail."""
    match message:
        case HelloOk():
            bytes.fromhex(message.cluster_id + message.node_id)
            assert message.noop_interval_s > 0
            assert ", ".join(message.levels) is not None
        case Hello():
            assert message.window_bytes > 0
        case StreamRequest(seq=seq) if seq is not None:
            first, last = message.snapshot_first, message.snapshot_last
            resume_point(message.log, seq, first, last, message.purge_seq, LOG, 150, 0)
        case _:
            pass


@pytest.mark.parametrize("message", JSON_MESSAGES, ids=lambda message: type(message).__name__)
@given(body=st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
@example(body=b"[" * 100_000)
@example(body=b'{"versions": ' + b"9" * 10_000 + b"}")
@example(body=b"\xff\xfe{}")
def test_hostile_bodies_end_in_protocol_error(message, body):
    with pytest.raises(ProtocolError):
        type(message).decode(memoryview(body))


def test_json_is_bounded():
    with pytest.raises(ProtocolError, match="of JSON; at most"):
        decode_json(bytes(JSON_BODY_BYTES_MAX + 1), "RESULT")


def test_numbers_that_no_seq_can_be_are_refused():
    for name in ("seq", "snapshot_last", "purge_seq", "end_seq"):
        for number in (-1, SEQ_MAX + 1, 10**400, 1.0, True):
            with pytest.raises(ProtocolError, match=f"field '{name}'"):
                StreamRequest.decode(rewritten(STREAM_REQUEST.encode(1), **{name: number}))


def test_intervals_that_no_clock_can_measure_are_refused():
    for interval in (0, -1.0, float("nan"), float("inf"), True, "10", None, ...):
        with pytest.raises(ProtocolError, match="field 'noop_interval_s'"):
            HelloOk.decode(rewritten(HELLO_OK.encode(), noop_interval_s=interval))
    assert HelloOk.decode(rewritten(HELLO_OK.encode(), noop_interval_s=10**400)).noop_interval_s > 1


def test_a_seq_outside_of_its_snapshot_is_refused():
    for bounds in ({"seq": 109}, {"seq": 131}, {"snapshot_first": 121}, {"snapshot_last": 119}):
        with pytest.raises(ProtocolError, match="lies outside of its snapshot"):
            StreamRequest.decode(rewritten(STREAM_REQUEST.encode(1), **bounds))


# Binary messages


@given(ids16, st.sampled_from(Level), st.integers(0, 15), st.none() | st.tuples(u32, ids16, seqs), st.binary())
def test_a_write_comes_out_as_it_went_in(feed_id, level, flags, version, block):
    version = None if version is None else Version(*version)
    write = Write.decode(memoryview(Write.encode_fixed(feed_id, level, flags, version) + block))
    assert (write.feed_id, write.level, write.flags, bytes(write.block)) == (feed_id, level, flags, block)
    assert (write.branch, write.seq) == ((bytes(16), 0) if version is None else (version.branch, version.seq))


def test_the_flags_of_a_write_are_bits_of_their_own():
    flags = [value for name, value in vars(WriteFlag).items() if name.isupper()]
    assert sorted(flags) == [1, 2, 4, 8]


def test_a_write_may_leave_its_level_to_the_node():
    fixed = Write.encode_fixed(FEED_ID, NODES_LEVEL)
    assert Write.decode(memoryview(fixed)).level is None
    assert NODES_LEVEL not in list(Level)


def test_a_write_of_a_newer_client_is_refused():
    fixed = bytearray(Write.encode_fixed(FEED_ID, Level.DISK))
    fixed[16] = 4
    with pytest.raises(BadBlock, match="unknown level 4"):
        Write.decode(memoryview(bytes(fixed)))
    with pytest.raises(BadBlock, match="unknown flags 0x10"):
        Write.decode(memoryview(Write.encode_fixed(FEED_ID, Level.DISK, 16)))


@given(u32, ids16, seqs, seqs)
def test_written_comes_out_as_it_went_in(partition, branch, first_seq, last_seq):
    body = body_of(Written(partition, branch, first_seq, last_seq).encode(3))
    assert Written.decode(body) == VersionRange(partition, branch, first_seq, last_seq)


@given(ids16, st.sampled_from(Level), st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_a_get_comes_out_as_it_went_in(feed_id, level, keys):
    get = Get(feed_id, level, keys)
    assert Get.decode(body_of(get.encode(3))) == get


@given(ids16, st.sampled_from(Level), st.binary(max_size=20), st.integers(0, 1))
def test_a_get_of_one_key_is_the_frame_of_a_list_of_one(feed_id, level, key, state):
    assert lone_get(feed_id, level, key, state, 3) == Get(feed_id, level, [key], state).encode(3)


@given(u32, ids16, seqs, seqs, st.binary(max_size=20))
def test_a_got_of_one_row_is_the_frame_of_a_list_of_one(partition, branch, seq, timestamp, value):
    general = Got([(Version(partition, branch, seq), timestamp, value)]).encode(3)
    assert lone_got(3, partition, branch, seq, timestamp, value) == general


items = st.none() | st.tuples(st.tuples(u32, ids16, seqs).map(Version._make), seqs, st.binary(max_size=20))


@given(st.lists(items, min_size=1, max_size=20))
def test_what_was_got_comes_out_as_it_went_in(found):
    keys = [b"key %d" % number for number in range(len(found))]
    expected = [
        None if item is None else Item(key, item[2], item[0], item[1]) for key, item in zip(keys, found, strict=True)
    ]
    assert Got.decode(body_of(Got(found).encode(3)), keys) == expected


@given(u32, st.booleans(), ids16, seqs, seqs, seqs)
def test_a_snapshots_start_comes_out_as_it_went_in(partition, complete, branch, after_seq, last_seq, purge_seq):
    message = SnapshotStartMessage(partition, complete, branch, after_seq, last_seq, purge_seq)
    assert SnapshotStartMessage.decode(body_of(message.encode(3))) == message


@given(u32, seqs)
def test_numbers_come_out_as_they_went_in(partition, seq):
    assert decode_seq(body_of(encode_seq(Opcode.SNAPSHOT_END, partition, seq, 3)), "") == (partition, seq)
    assert decode_number(body_of(encode_number(Opcode.CREDIT, seq)), "") == seq


BINARY_DECODERS = {
    "write": Write.decode,
    "written": Written.decode,
    "get": Get.decode,
    "got": lambda body: Got.decode(body, [b"k", b"l"]),
    "snapshot start": SnapshotStartMessage.decode,
    "seq": lambda body: decode_seq(body, "SNAPSHOT_END"),
    "number": lambda body: decode_number(body, "CREDIT"),
    "cookie": lambda body: decode_cookie(body, "BARRIER"),
    "json": lambda body: decode_json(body, "RESULT"),
}


@pytest.mark.parametrize("decode", BINARY_DECODERS.values(), ids=BINARY_DECODERS)
@given(body=st.binary(max_size=200))
def test_hostile_binary_bodies_end_in_a_documented_error(decode, body):
    with contextlib.suppress(ProtocolError, BadBlock):
        decode(memoryview(body))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**32 - 1), max_size=5), st.binary(max_size=20))
def test_hostile_counts_and_lengths_of_keys(count, lengths, rest):
    body = struct.pack(f"<16sB3xI{len(lengths)}I", FEED_ID, 1, count, *lengths) + rest
    try:
        get = Get.decode(memoryview(body))
    except ProtocolError:
        return
    assert 1 <= len(get.keys) <= GET_KEYS_MAX


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3), st.binary(max_size=20))
def test_hostile_lengths_of_values(lengths, rest):
    rows = b"".join(struct.pack("<IIQQ16s", length, 0, 1, 1, FEED_ID) for length in lengths)
    body = struct.pack("<I4x", len(lengths)) + rows + rest
    keys = [b"k"] * len(lengths)
    try:
        found = Got.decode(memoryview(body), keys)
    except ProtocolError:
        return
    assert len(found) == len(keys)


def test_a_cookie_has_bounds():
    assert decode_cookie(bytes(COOKIE_BYTES_MAX), "BARRIER") == bytes(COOKIE_BYTES_MAX)
    for size in (0, COOKIE_BYTES_MAX + 1):
        with pytest.raises(ProtocolError, match="1 to 64 are accepted"):
            decode_cookie(bytes(size), "BARRIER")


def test_every_message_is_tested_here():
    classes = {
        kind
        for module in (messages, stream_messages)
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if hasattr(kind, "decode") and kind.__module__ == module.__name__
    }
    assert classes == {Trace, Write, Written, Get, Got, SnapshotStartMessage, *map(type, JSON_MESSAGES)}
    assert decode_json(body_of(encode_json(Opcode.RESULT, {"a": 1})), "RESULT") == {"a": 1}


def test_a_replica_may_tell_its_process():
    told = Replica(b"p" * 16, 1, "a:1", True, b"c" * 16)
    assert "start" not in told.to_json()
    for each in (told, told._replace(start=b"s" * 8)):
        assert Replica.from_json(each.to_json(), "STREAM_REQUEST") == each


@pytest.mark.parametrize("field", ["placement_id", "address", "term", "votes", "start"])
def test_what_a_wrong_member_holds_is_not_said_in_full(field):
    """It may have 16 MiB, and goes into the log and the answer."""
    good = Replica(b"p" * 16, 1, "a:1", True, b"c" * 16).to_json()
    with pytest.raises(ProtocolError, match=f"field '{field}'") as raised:
        Replica.from_json({**good, field: "x" * 100_000}, "STREAM_REQUEST")
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("place", range(3))
def test_a_snapshot_start_with_a_seq_that_no_partition_has_is_refused(place):
    seqs = [0, 0, 0]
    seqs[place] = SEQ_MAX
    body = SnapshotStartMessage(0, True, bytes(16), *seqs).encode(1)[FRAME_HEADER_BYTES:]
    assert SnapshotStartMessage.decode(memoryview(body))[3:6] == tuple(seqs)
    seqs[place] = SEQ_MAX + 1
    body = SnapshotStartMessage(0, True, bytes(16), *seqs).encode(1)[FRAME_HEADER_BYTES:]
    with pytest.raises(ProtocolError, match="is above"):
        SnapshotStartMessage.decode(memoryview(body))


def test_a_snapshot_end_with_a_seq_that_no_partition_has_is_refused():
    body = encode_seq(Opcode.SNAPSHOT_END, 0, SEQ_MAX + 1, 1)[FRAME_HEADER_BYTES:]
    with pytest.raises(ProtocolError, match="is above"):
        decode_seq(memoryview(body), "SNAPSHOT_END")
