"""Streams frame by frame, over real sockets. After every kind of bad request the node goes on serving others."""

import json
import socket
import struct
import threading

import pytest
import trio
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, expect_end, write

from tailrace.block import Block
from tailrace.errors import ProtocolError, TailraceError
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import encode_json
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamEnd, StreamOk, StreamRequest, decode_seq
from tailrace_server.segment import Segment
from tailrace_server.serving import connection_memory, stream_pump
from tailrace_server.stream import partition_stream

pytestmark = pytest.mark.usefixtures("others_are_served")


def request_of(feed_id, partition=PARTITION, seq=0, **fields):
    request = StreamRequest(feed_id, partition, FailoverLog(), seq, seq or 0, seq or 0, None, None, Level.DISK)
    return request._replace(**fields)


async def test_a_stream_frame_by_frame(greeted, feed, feed_id, node):
    await feed.put(KEY, b"v")
    await greeted.send(request_of(feed_id, end_seq=1).encode(9))
    frames = [await greeted.receive() for _ in range(6)]
    names = ["STREAM_OK", "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "STREAM_END", "ROUND_COMPLETE"]
    assert [frame.opcode.name for frame in frames] == names
    assert {frame.id for frame in frames[:5]} == {9}
    ok, start = StreamOk.decode(frames[0].body), SnapshotStartMessage.decode(frames[1].body)
    log = node.feeds.named("orders").partitions[PARTITION].log
    assert (ok.seq, ok.high_seq, ok.log) == (0, 1, log)
    assert start == (PARTITION, True, log.branch, 0, 1, 0, False)
    assert Block.parse(frames[2].body).columns().keys() == [KEY]
    assert decode_seq(frames[3].body, "") == (PARTITION, 1)
    assert StreamEnd.decode(frames[4].body).reason is EndReason.END_REACHED


async def test_a_stream_of_what_is_not_there(greeted, feed_id):
    for request, reason in (
        (request_of(bytes(16)), EndReason.FEED_DROPPED),
        (request_of(feed_id, 4), EndReason.NOT_MY_PARTITION),
        (request_of(feed_id, 2**62), EndReason.NOT_MY_PARTITION),
        (request_of(feed_id, state="follower"), EndReason.WRONG_STATE),
    ):
        await greeted.send(request.encode(9))
        frame = await greeted.receive()
        assert frame.opcode is Opcode.STREAM_END
        assert StreamEnd.decode(frame.body).reason is reason


async def test_numbers_of_a_position_that_no_seq_can_be(greeted, feed_id):
    value = json.loads(request_of(feed_id).encode(9)[16:])
    value |= {"seq": 5, "snapshot_first": 5, "snapshot_last": 2**64 - 1}
    await greeted.send(encode_json(Opcode.STREAM_REQUEST, value, 9))
    await expect_end(greeted, ProtocolError, "'snapshot_last'")


class Sought:
    """A segment in which the place of a time is looked for, as long as a test says."""

    def __init__(self, segment, since_us):
        self.segment, self.since_us = segment, since_us
        self._reads, self.may_read = threading.Event(), threading.Event()

    def read_block(self, segment, number):
        self._reads.set()
        assert self.may_read.wait(60)
        return segment.read_blocks(number, 1)[0][0]

    async def is_read(self):
        while not self._reads.is_set():
            await trio.lowlevel.checkpoint()


@pytest.fixture
async def sought(feed, node, monkeypatch):
    await feed.put(KEY, b"v")
    await feed.put(KEY, b"w")
    partition = node.feeds.named("orders").partitions[PARTITION]
    since_us = partition.last_timestamp
    await node.storage.flusher.flush(partition)
    sought = Sought(partition.chain.segments[0], since_us)
    monkeypatch.setattr(Segment, "read_block", lambda segment, number: sought.read_block(segment, number))
    return sought


@pytest.mark.parametrize("ending", ["the peer has gone", "its connection ends with an error"])
async def test_no_stream_is_opened_for_who_has_gone_while_its_time_was_looked_for(raw, feed_id, node, sought, ending):
    others = len(node.connections)
    async with raw() as connection:
        await connection.hello()
        await connection.send(request_of(feed_id, seq=None, since_us=sought.since_us).encode(9))
        await sought.is_read()
        if ending != "the peer has gone":
            await connection.send(encode_frame(Opcode.WRITTEN))
            await expect_end(connection, ProtocolError, "not for a server")
    while len(node.connections) > others:
        await trio.lowlevel.checkpoint()
    sought.may_read.set()
    while node.storage.pins._readers:
        await trio.lowlevel.checkpoint()
    assert not node.feeds.named("orders").partitions[PARTITION].watchers.is_watched, "a stream is open"


async def test_a_stream_that_is_closed_while_its_time_is_looked_for(greeted, feed_id, node, sought):
    request = request_of(feed_id, seq=None, since_us=sought.since_us)
    await greeted.send(request.encode(9))
    await sought.is_read()
    await greeted.send(encode_frame(Opcode.STREAM_CLOSE, id=9))
    frame = await greeted.receive()
    assert (frame.opcode, frame.id) == (Opcode.STREAM_END, 9)
    assert StreamEnd.decode(frame.body).reason is EndReason.CLOSED
    await greeted.send(request._replace(end_seq=2).encode(9))  # the id may be used again
    sought.may_read.set()
    names = []
    while "STREAM_END" not in names:
        names.append((await greeted.receive()).opcode.name)
    assert [name for name in names if name != "ROUND_COMPLETE"] == [
        "STREAM_OK",
        "SNAPSHOT_START",
        "BLOCK",
        "SNAPSHOT_END",
        "STREAM_END",
    ]


async def test_two_streams_of_one_id_while_a_time_is_looked_for(greeted, feed_id, sought):
    await greeted.send(request_of(feed_id, seq=None, since_us=sought.since_us).encode(9))
    await sought.is_read()
    await greeted.send(request_of(feed_id).encode(9))
    sought.may_read.set()
    await expect_end(greeted, ProtocolError, "stream 9 is open already")


async def test_a_filtered_stream_frame_by_frame(greeted, feed, feed_id):
    await greeted.send(request_of(feed_id, filter=StreamFilter(KEY, True)).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    await feed.put(KEY, b"v")
    frames = [await greeted.receive() for _ in range(4)]
    assert [frame.opcode.name for frame in frames] == ["SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "ROUND_COMPLETE"]
    columns = Block.parse(frames[1].body).columns()
    assert (columns.keys(), columns.values()) == ([KEY], [b""])


async def test_a_filtered_stream_of_which_nothing_matches(greeted, feed, feed_id):
    await greeted.send(request_of(feed_id, filter=StreamFilter(b"other")).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    await feed.put(KEY, b"v")
    frame = await greeted.receive()
    assert (frame.opcode, frame.id, decode_seq(frame.body, "")) == (Opcode.SEQ_ADVANCED, 9, (PARTITION, 1))
    assert (await greeted.receive()).opcode is Opcode.ROUND_COMPLETE


async def test_a_search_through_much_gives_others_their_turn_and_comes_to_its_end(greeted, feed, feed_id, monkeypatch):
    monkeypatch.setattr(stream_pump, "PUMP_BYTES", 1)
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    for number in range(20):
        await feed.put(KEY, b"%d" % number)
    await greeted.send(request_of(feed_id, filter=StreamFilter(b"other"), end_seq=20).encode(9))
    names = set()
    while "STREAM_END" not in names:
        names.add((await greeted.receive()).opcode.name)
    assert names == {"STREAM_OK", "ROUND_COMPLETE", "SEQ_ADVANCED", "STREAM_END"}


@pytest.mark.parametrize("wanted", [[], {"key_prefix": "f"}, {"key_prefix": "00" * 4097}, {"keys_only": "yes"}])
async def test_a_filter_that_is_none(greeted, feed_id, wanted):
    value = json.loads(request_of(feed_id).encode(9)[16:]) | {"filter": wanted}
    await greeted.send(encode_json(Opcode.STREAM_REQUEST, value, 9))
    await expect_end(greeted, ProtocolError, "filter")


async def test_a_filter_of_a_newer_client_is_refused_and_never_ignored(greeted, feed_id):
    value = json.loads(request_of(feed_id).encode(9)[16:]) | {"filter": {"value_regex": "x"}}
    await greeted.send(encode_json(Opcode.STREAM_REQUEST, value, 9))
    error = await greeted.error(9)
    assert type(error) is TailraceError
    assert "'value_regex'" in str(error)
    await greeted.send(request_of(feed_id).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK


async def test_a_stream_id_twice(greeted, feed_id):
    await greeted.send(request_of(feed_id).encode(9), request_of(feed_id).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    await expect_end(greeted, ProtocolError, "stream 9 is open already")


async def test_a_stream_that_the_client_closes(greeted, feed, feed_id):
    await greeted.send(request_of(feed_id).encode(9), encode_frame(Opcode.STREAM_CLOSE, id=9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    frame = await greeted.receive()
    assert StreamEnd.decode(frame.body).reason is EndReason.CLOSED
    await greeted.send(encode_frame(Opcode.STREAM_CLOSE, id=4711))
    await feed.put(KEY, b"v")
    assert (await greeted.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT


async def test_a_barrier_without_streams_comes_back_at_once(greeted):
    frame = await greeted.ask(Opcode.BARRIER, b"cookie")
    assert (frame.opcode, bytes(frame.body)) == (Opcode.BARRIER_REACHED, b"cookie")


async def test_a_barrier_covers_what_is_not_durable_yet(greeted, feed_id):
    """What was accepted at level memory has to be delivered at level disk before the cookie comes back."""
    await greeted.send(request_of(feed_id).encode(9))
    assert (await greeted.receive()).opcode is Opcode.STREAM_OK
    frames = encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY), Level.MEMORY), 5)
    await greeted.send(frames, encode_frame(Opcode.BARRIER, b"cookie"))
    names = []
    while "BARRIER_REACHED" not in names:
        names.append((await greeted.receive()).opcode.name)
    assert names.index("BLOCK") < names.index("BARRIER_REACHED")


async def test_a_client_that_takes_no_cookies_back_is_not_read(greeted, node, nursery, monkeypatch):
    """Each would come back at once, and waits in memory instead: the node stops reading, and goes on when it can."""
    monkeypatch.setattr(connection_memory, "UNSENT_FRAMES_MAX", 1_000)
    (connection,) = (made for made in node.connections if made.greeted)
    connection.transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    greeted.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    cookies = [number.to_bytes(64, "big") for number in range(30_000)]
    all_sent = trio.Event()

    async def send():
        await greeted.send(*(encode_frame(Opcode.BARRIER, cookie) for cookie in cookies))
        all_sent.set()

    nursery.start_soon(send)
    while connection.memory.room is None and not all_sent.is_set():
        await trio.lowlevel.checkpoint()
    assert not all_sent.is_set(), "it was read to the end"
    assert 1_000 < connection.rounds.unsent_frames < 3_000
    for cookie in cookies:
        assert bytes((await greeted.receive()).body) == cookie


async def test_a_window_is_kept(raw, feed, feed_id):
    """No more is under way than a window and a block; credit lets the next one come."""
    for _ in range(4):
        await feed.put(KEY, bytes(200))
    async with raw() as connection:
        await connection.hello(window_bytes=1)
        await connection.send(request_of(feed_id).encode(9))
        names = [(await connection.receive()).opcode.name for _ in range(3)]
        assert names == ["STREAM_OK", "SNAPSHOT_START", "BLOCK"]
        for _ in range(3):
            # What is answered comes after whatever the node would have sent before.
            assert (await connection.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT
            await connection.send(encode_frame(Opcode.CREDIT, struct.pack("<Q", 1000)))
            assert (await connection.receive()).opcode is Opcode.BLOCK
