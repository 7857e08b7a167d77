"""Each opcode at each listener of frames: sent by a stranger, and by a reader of another feed and of other keys."""

import dataclasses
import enum

import pytest
from tests.tailrace_server.raw_requests import expect_end
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.doors import DOORS, opened_door
from tests.tailrace_server.serving.secured import Secured, SecuredByTls

import tailrace
from tailrace.errors import Forbidden, ProtocolError, TooLarge, UnknownCheckpoint
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.model.position import Position, Positions
from tailrace.wire.bodies import encode_json
from tailrace.wire.bounds import request_bound
from tailrace.wire.consumer_messages import Commit, ConsumerId, Hold, Join, Reset
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import (
    FRAME_HEADER_BYTES,
    HELLO_BODY_BYTES_MAX,
    SMALL_BODY_BYTES,
    encode_frame,
    frame_header,
)
from tailrace.wire.messages import Get, Hello, Trace, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress
from tailrace.wire.segment_messages import CheckpointRequest, SegmentFetch, SegmentRelease
from tailrace.wire.stream_messages import StreamRequest, encode_number
from tailrace_server.serving.audit import AUDITED
from tailrace_server.serving.handlers import HANDLERS

# No message has such a body: who parses it answers with an error of the protocol.
GARBAGE = b"\xff" * 100
# More than a node reads at once.
LONG_BYTES = 2 * 1024 * 1024
ID = bytes(range(16))
OWN_KEY, OTHER_KEY = b"eu/1", b"us/1"


class Answer(enum.Enum):
    """What a reader gets that may use the keys of one feed that begin with a prefix."""

    NO_REQUEST = "an error of the protocol, and the end: it is no request"
    ROLE = "Forbidden, whatever the body is"
    FEED = "Forbidden for another feed"
    KEYS = "Forbidden for another feed, and for other keys of its own"
    ALL_KEYS = "Forbidden, since a part of the keys cannot be had"
    LISTED = "an answer without another feed"
    OWN = "an answer about its own connection"


READER = {
    Opcode.HELLO: Answer.NO_REQUEST,  # a second one
    Opcode.HELLO_OK: Answer.NO_REQUEST,
    Opcode.NOOP: Answer.OWN,
    Opcode.ERROR: Answer.NO_REQUEST,
    Opcode.TRACE: Answer.OWN,
    Opcode.RESULT: Answer.NO_REQUEST,
    Opcode.CREATE_FEED: Answer.ROLE,
    Opcode.LIST_FEEDS: Answer.LISTED,
    Opcode.DROP_FEED: Answer.ROLE,
    Opcode.PARTITIONS: Answer.FEED,
    Opcode.STATUS: Answer.LISTED,
    Opcode.EXPLAIN_RESUME: Answer.KEYS,
    Opcode.SET_FEED: Answer.ROLE,
    Opcode.CREATE_TOKEN: Answer.ROLE,
    Opcode.LIST_TOKENS: Answer.ROLE,
    Opcode.REVOKE_TOKEN: Answer.ROLE,
    Opcode.PROGRESS: Answer.FEED,
    Opcode.CONSUMER_JOIN: Answer.FEED,
    Opcode.CONSUMER_COMMIT: Answer.FEED,
    Opcode.CONSUMER_RENEW: Answer.FEED,
    Opcode.CONSUMER_RELEASE: Answer.FEED,
    Opcode.CONSUMER_STATUS: Answer.FEED,
    Opcode.CONSUMER_RESET: Answer.FEED,
    Opcode.CONSUMER_CHANGE: Answer.NO_REQUEST,
    Opcode.WRITE: Answer.ROLE,
    Opcode.WRITTEN: Answer.NO_REQUEST,
    Opcode.GET: Answer.KEYS,
    Opcode.GOT: Answer.NO_REQUEST,
    Opcode.STAGE_BLOCK: Answer.ROLE,
    Opcode.STAGED: Answer.NO_REQUEST,
    Opcode.STAGE_SEAL: Answer.ROLE,
    Opcode.PUBLISH: Answer.ROLE,
    Opcode.SINKS: Answer.NO_REQUEST,
    Opcode.STAGE_COPIES: Answer.ROLE,
    Opcode.STAGE_FETCH: Answer.ROLE,
    Opcode.STAGE_DATA: Answer.NO_REQUEST,
    Opcode.STREAM_REQUEST: Answer.KEYS,
    Opcode.STREAM_OK: Answer.NO_REQUEST,
    Opcode.ROLLBACK: Answer.NO_REQUEST,
    Opcode.STREAM_CLOSE: Answer.OWN,
    Opcode.STREAM_END: Answer.NO_REQUEST,
    Opcode.SNAPSHOT_START: Answer.NO_REQUEST,
    Opcode.BLOCK: Answer.NO_REQUEST,
    Opcode.SNAPSHOT_END: Answer.NO_REQUEST,
    Opcode.SEQ_ADVANCED: Answer.NO_REQUEST,
    Opcode.ROUND_COMPLETE: Answer.NO_REQUEST,
    Opcode.CREDIT: Answer.OWN,
    Opcode.BARRIER: Answer.OWN,
    Opcode.BARRIER_REACHED: Answer.NO_REQUEST,
    Opcode.BARRIER_LOST: Answer.NO_REQUEST,
    Opcode.REPLICA_ACK: Answer.ROLE,
    Opcode.LEADER_SEQS: Answer.NO_REQUEST,
    Opcode.PRODUCERS: Answer.NO_REQUEST,
    Opcode.LEADER_CHECK: Answer.NO_REQUEST,
    Opcode.LEADER_CONFIRM: Answer.ROLE,
    Opcode.MEMBER: Answer.ROLE,
    Opcode.PROMISE: Answer.ROLE,
    Opcode.PROMOTE: Answer.ROLE,
    Opcode.HANDOVER: Answer.ROLE,
    Opcode.TAKE_OVER: Answer.ROLE,
    Opcode.ACCEPTED_SEQS: Answer.ROLE,
    Opcode.MEMBER_CHANGE: Answer.ROLE,
    Opcode.SEGMENT_CHECKPOINT: Answer.ALL_KEYS,
    Opcode.SEGMENT_FETCH: Answer.OWN,  # by the random id of a checkpoint
    Opcode.SEGMENT_DATA: Answer.NO_REQUEST,
    Opcode.SEGMENT_RELEASE: Answer.OWN,
    Opcode.SEGMENT_OFFER: Answer.NO_REQUEST,
    Opcode.SEGMENT_ACCEPT: Answer.ROLE,
    Opcode.SEGMENT_DECLINE: Answer.ROLE,
    Opcode.SEGMENT_TRANSIT: Answer.NO_REQUEST,
    Opcode.SEGMENT_ACK: Answer.ROLE,
}


def answered_by(*answers):
    return [opcode for opcode in Opcode if READER[opcode] in answers]


def test_each_opcode_has_an_answer_here():
    assert READER.keys() == set(Opcode)


@pytest.fixture(params=DOORS)
def kind(request):
    return request.param


@pytest.fixture
async def guarded(kind, run_node, node_config, authority):
    """A node with tokens and two feeds."""
    speaks_tls = kind.endswith("-tls")
    config = dataclasses.replace(node_config, auth=True, tls=authority.node() if speaks_tls else None)
    running = await run_node(config)
    made = SecuredByTls(running, authority) if speaks_tls else Secured(running)
    async with made.connect(made.admin) as client:
        for name in ("orders", "payments"):
            feed = await client.create_feed(name, partitions=4)
            await feed.write([tailrace.Put(OWN_KEY, b"v"), tailrace.Put(OTHER_KEY, b"v")])
    await until(lambda: not list(running.node.connections))  # it has heard that this client is gone
    return made


@pytest.fixture
async def door(kind, guarded, authority):
    async with opened_door(kind, guarded.running.node, authority) as opened:
        yield opened


# A stranger


def fail_when_handled(monkeypatch, opcodes):
    """Makes each request of these opcodes that comes to its handler fail the node."""

    def handle(connection, frame):
        raise AssertionError(f"{frame.opcode.name} was handled")

    for opcode in opcodes:
        monkeypatch.setitem(HANDLERS, opcode, handle)


@pytest.fixture
async def nothing_is_handled(guarded, monkeypatch):
    """No request but HELLO is handled, once the node has its feeds."""
    fail_when_handled(monkeypatch, HANDLERS.keys() - {Opcode.HELLO})


def none_has_greeted(door):
    return not any(connection.greeted for connection in door.node.connections)


async def test_each_opcode_of_a_stranger_ends_the_connection(door, nothing_is_handled):
    for opcode in Opcode:
        async with door.opened() as connection:
            await connection.send(encode_frame(opcode, GARBAGE, 7))
            await expect_end(
                connection, ProtocolError, "HELLO: " if opcode is Opcode.HELLO else f"{opcode.name} before"
            )
    assert none_has_greeted(door)


async def test_a_long_frame_of_a_stranger_ends_the_connection_by_its_header(door, nothing_is_handled):
    for opcode in Opcode:
        bound = min(request_bound(opcode), HELLO_BODY_BYTES_MAX)
        async with door.opened() as connection:
            await connection.send(frame_header(opcode, bound + 1, 7))
            await expect_end(connection, TooLarge, f"{opcode.name} of {bound + 1} bytes; at most {bound} are accepted")


async def test_what_follows_the_frame_of_a_stranger_is_dropped(door, nothing_is_handled):
    """A right HELLO behind it, or each other frame."""
    for opcode in HANDLERS.keys() - {Opcode.HELLO}:
        async with door.opened() as connection:
            await connection.send(encode_frame(opcode, GARBAGE, 7), Hello().encode(), encode_frame(opcode, GARBAGE, 8))
            await expect_end(connection, ProtocolError, f"{opcode.name} before HELLO")
    assert none_has_greeted(door)


async def test_each_opcode_behind_the_hello_of_a_wrong_token_is_dropped(door, nothing_is_handled):
    """They come at once, while the answer to the HELLO may have to wait. Its address has to wait, not this test."""
    frames = b"".join(encode_frame(opcode, GARBAGE, 7) for opcode in Opcode)
    for token in (None, "tr1_wrong"):
        async with door.opened() as connection:
            await connection.send(Hello(token=token).encode(), frames)
            await expect_end(
                connection, Forbidden, "requires a token" if token is None else "the token is unknown here"
            )
    assert none_has_greeted(door)


# A reader


@pytest.fixture
async def token(guarded):
    """That of a reader of one feed, and of the keys in it that begin with a prefix."""
    return await guarded.token("shop", "read", feeds=["orders"], key_prefix=b"eu/")


async def feed_ids(guarded):
    """The ids of the reader's feed, and of the other one."""
    async with guarded.connect(guarded.admin) as client:
        return [(await client.feed(name).resolve()).feed_id for name in ("orders", "payments")]


async def answer_to(connection, frame):
    """The answer to a frame: an error, or a frame."""
    await connection.send(frame)
    got = await connection.receive()
    assert got is not None, "the connection has ended"
    return decode_error(got.body) if got.opcode is Opcode.ERROR else got


async def test_what_is_no_request_ends_the_connection_of_a_reader(door, token):
    for opcode in answered_by(Answer.NO_REQUEST):
        async with door.greeted(token) as connection:
            await connection.send(encode_frame(opcode, GARBAGE, 7))
            what = "a second HELLO" if opcode is Opcode.HELLO else f"{opcode.name} is not for a server"
            await expect_end(connection, ProtocolError, what)


async def test_what_the_role_lacks_is_refused_before_its_body_is_looked_at(door, token, monkeypatch):
    fail_when_handled(monkeypatch, answered_by(Answer.ROLE))
    async with door.greeted(token) as connection:
        for opcode in answered_by(Answer.ROLE):
            error = await answer_to(connection, encode_frame(opcode, GARBAGE, 7))
            assert type(error) is Forbidden, opcode
            assert f"may not send {opcode.name}" in str(error)


async def test_a_long_request_of_a_reader_ends_the_connection_by_its_header(door, token):
    for opcode in HANDLERS:
        bound = request_bound(opcode)
        async with door.greeted(token) as connection:
            served = served_for(door, "shop")
            await connection.send(frame_header(opcode, bound + 1, 7))
            await expect_end(connection, TooLarge, f"at most {bound} are accepted")
            assert served.decoder.held_bytes <= FRAME_HEADER_BYTES


def served_for(door, name):
    """The node's end of the connection with the token of this name."""
    [served] = [each for each in door.node.connections if each.access.principal.name == name]
    return served


async def test_the_body_of_a_request_that_the_role_lacks_is_not_kept(door, token, monkeypatch):
    """A reader may not have the node hold a block of 33 MiB for each of its connections, which it may not write."""
    async with door.greeted(token) as connection:
        decoder, held = served_for(door, "shop").decoder, []
        next_frames = decoder.next_frames

        def noted(frames_max):
            frames = next_frames(frames_max)
            held.append(decoder.held_bytes)
            return frames

        monkeypatch.setattr(decoder, "next_frames", noted)
        for opcode in set(answered_by(Answer.ROLE)) - AUDITED:
            size = min(request_bound(opcode), LONG_BYTES)
            error = await answer_to(connection, encode_frame(opcode, bytes(size), 7))
            assert type(error) is Forbidden, opcode
        await connection.send(encode_frame(Opcode.BARRIER, b"cookie"))
        assert (await connection.receive()).opcode is Opcode.BARRIER_REACHED
        assert max(held) <= SMALL_BODY_BYTES


def requests(opcode, name, feed_id, key):
    """The request of an opcode about a feed and a key, and its prefix, as a frame."""
    partition = partition_of_hash(key_hash(key), 4)
    stream = StreamRequest(
        *(feed_id, partition, FailoverLog(), 0, 0, 0, 0, None, Level.DISK), filter=StreamFilter(key[:3])
    )
    return {
        Opcode.PARTITIONS: lambda: encode_json(opcode, {"name": name}, 7),
        Opcode.EXPLAIN_RESUME: lambda: encode_json(opcode, stream.to_json(), 7),
        Opcode.STREAM_REQUEST: lambda: stream.encode(7),
        Opcode.CONSUMER_JOIN: lambda: Join(ConsumerId(feed_id, "name", "reader"), ID).encode(7),
        Opcode.CONSUMER_COMMIT: lambda: Commit(
            ConsumerId(feed_id, "name", "reader"),
            ID,
            {0: 1},
            Positions(ID, feed_id, {0: Position.at(FailoverLog(), 0)}),
        ).encode(7),
        Opcode.CONSUMER_RENEW: lambda: Hold(ConsumerId(feed_id, "group", "g"), ID).encode(opcode, 7),
        Opcode.CONSUMER_RELEASE: lambda: Hold(ConsumerId(feed_id, "group", "g"), ID).encode(opcode, 7),
        Opcode.CONSUMER_STATUS: lambda: encode_json(opcode, ConsumerId(feed_id, "group", "g").to_json(), 7),
        Opcode.CONSUMER_RESET: lambda: Reset(ConsumerId(feed_id, "group", "g"), "now", (0,)).encode(7),
        Opcode.PROGRESS: lambda: encode_json(opcode, Progress(feed_id, Level.DISK, {partition: 0}).to_json(), 7),
        Opcode.GET: lambda: Get(feed_id, Level.DISK, [key]).encode(7),
        Opcode.SEGMENT_CHECKPOINT: lambda: encode_json(opcode, CheckpointRequest(feed_id, partition).to_json(), 7),
    }[opcode]()


async def test_another_feed_is_refused(door, guarded, token):
    _, other = await feed_ids(guarded)
    for opcode in answered_by(Answer.FEED, Answer.KEYS, Answer.ALL_KEYS):
        async with door.greeted(token) as connection:
            error = await answer_to(connection, requests(opcode, "payments", other, OWN_KEY))
            assert type(error) is Forbidden, (opcode, error)
            assert "may not use feed" in str(error)


async def test_other_keys_of_the_same_feed_are_refused(door, guarded, token):
    own, _ = await feed_ids(guarded)
    for opcode in answered_by(Answer.KEYS):
        async with door.greeted(token) as connection:
            error = await answer_to(connection, requests(opcode, "orders", own, OTHER_KEY))
            assert type(error) is Forbidden, (opcode, error)
            assert "only keys that begin with its prefix" in str(error)


async def test_all_keys_cannot_be_had(door, guarded, token):
    own, _ = await feed_ids(guarded)
    for opcode in answered_by(Answer.ALL_KEYS):
        async with door.greeted(token) as connection:
            error = await answer_to(connection, requests(opcode, "orders", own, OWN_KEY))
            assert type(error) is Forbidden, (opcode, error)
            assert "segments have all keys" in str(error)


async def test_the_own_feed_and_keys_are_answered(door, guarded, token):
    """So the others are refused for their feed and keys, and not because these requests are wrong."""
    own, _ = await feed_ids(guarded)
    for opcode in answered_by(Answer.FEED, Answer.KEYS):
        async with door.greeted(token) as connection:
            got = await answer_to(connection, requests(opcode, "orders", own, OWN_KEY))
            # Positions of another cluster, and a member that has not joined: that is looked at later.
            later = {Opcode.CONSUMER_COMMIT: tailrace.BadPosition, Opcode.CONSUMER_RENEW: tailrace.NotOwner}
            later |= dict.fromkeys((Opcode.CONSUMER_STATUS, Opcode.CONSUMER_RESET), tailrace.UnknownFeed)
            refused = later.get(opcode, ())
            assert not isinstance(got, Exception) or isinstance(got, refused), (opcode, got)


async def test_a_list_has_no_other_feed(door, guarded, token):
    _, other = await feed_ids(guarded)
    async with door.greeted(token) as connection:
        for opcode in answered_by(Answer.LISTED):
            got = await answer_to(connection, encode_json(opcode, {}, 7))
            assert got.opcode is Opcode.RESULT, got
            body = bytes(got.body)
            assert b"orders" in body
            assert b"payments" not in body
            assert other.hex().encode() not in body


async def test_what_a_reader_asks_of_its_own_connection_tells_nothing_of_others(door, token):
    """Each is followed by a barrier, which comes back: the connection goes on."""
    unknown = ID
    asked = {
        Opcode.NOOP: encode_frame(Opcode.NOOP),
        Opcode.TRACE: Trace(ID, ID[:8], 1).encode(7),
        Opcode.STREAM_CLOSE: encode_frame(Opcode.STREAM_CLOSE, b"", 7),
        Opcode.CREDIT: encode_number(Opcode.CREDIT, 0),
        Opcode.BARRIER: encode_frame(Opcode.BARRIER, b"its own"),
        Opcode.SEGMENT_FETCH: SegmentFetch(unknown, unknown, 0, 100).encode(7),
        Opcode.SEGMENT_RELEASE: encode_json(Opcode.SEGMENT_RELEASE, SegmentRelease(unknown).to_json(), 7),
    }
    answers = {Opcode.BARRIER: Opcode.BARRIER_REACHED, Opcode.SEGMENT_RELEASE: Opcode.RESULT}
    assert asked.keys() == set(answered_by(Answer.OWN))
    async with door.greeted(token) as connection:
        for opcode, frame in asked.items():
            await connection.send(frame)
            if opcode is Opcode.SEGMENT_FETCH:
                assert type(decode_error((await connection.receive()).body)) is UnknownCheckpoint
            elif opcode in answers:
                assert (await connection.receive()).opcode is answers[opcode]
            await connection.send(encode_frame(Opcode.BARRIER, b"cookie"))
            got = await connection.receive()
            assert (got.opcode, bytes(got.body)) == (Opcode.BARRIER_REACHED, b"cookie"), opcode
