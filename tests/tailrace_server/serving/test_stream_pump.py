"""The pump of a connection's streams, over segments, with a transport that takes what a test says."""

import itertools
import types

import pytest
import trio
import trio.testing
from tests.tailrace_server.stored import StoredPartition

from tailrace.errors import Overloaded
from tailrace.model import EndReason, Level
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace_server.segment import SegmentDamaged
from tailrace_server.serving import stream_pump
from tailrace_server.serving.stream_pump import StreamPump
from tailrace_server.stream import segment_cursor
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.read_ahead import Part, ReadAhead
from tailrace_server.stream.rounds import Rounds
from tailrace_server.stream.segment_cursor import SegmentCursor

STREAMS = 3
CHUNKS = 4  # in the segment of each partition, a block each


class FakeTransport:
    def __init__(self):
        self.backlog_bytes = 0
        self.expected_bulk = 0

    def expect_bulk(self):
        self.expected_bulk += 1


class FakeConnection:
    """The parts of a connection that its pump uses. ``takes`` tells whether the transport takes what is sent."""

    def __init__(self, nursery):
        self.partitions = [StoredPartition(id) for id in range(STREAMS)]
        self.rounds = Rounds(1 << 20)
        self.transport = FakeTransport()
        self.nursery = nursery
        self.answers = types.SimpleNamespace(queued=False)
        self.is_closing = self.draining = False
        self.damages = []
        storage = types.SimpleNamespace(pins=self.partitions[0].pins, found_damage=self.damages.append)
        self.threads = []  # what threads have done
        self.host = types.SimpleNamespace(workers=types.SimpleNamespace(in_thread=self.in_thread))
        self.node = types.SimpleNamespace(storage=storage, host=self.host)
        self.takes = True
        self.sent = b""
        for partition in self.partitions:
            for _ in range(CHUNKS):
                partition.write(rows=2)
            partition.sync()
            partition.flush()
            stream = PartitionStream(partition.id, partition, Level.DISK, 0, None, 0, pins=partition.pins)
            self.rounds.open(stream, lambda: None)
        self.pump = StreamPump(self, lambda: None)

    def send(self, buffers, answer_bytes):
        self.sent += b"".join(buffers)
        if not self.takes:
            self.transport.backlog_bytes = sum(map(len, buffers))

    async def in_thread(self, function):
        await trio.lowlevel.checkpoint()
        self.threads.append(function)
        return function()

    def flush(self):
        self.pump.pump()

    @property
    def blocks(self):
        """The streams whose blocks were sent, in order."""
        return [frame.id for frame in FrameDecoder().receive_data(self.sent) if frame.opcode is Opcode.BLOCK]


@pytest.fixture
async def connection(nursery, monkeypatch):
    monkeypatch.setattr(segment_cursor, "CHUNK_BYTES", 1)
    return FakeConnection(nursery)


@pytest.fixture
def reads(monkeypatch):
    """The chunks that were read on the loop."""
    found, load_cached = [], SegmentCursor.load_cached

    def counted(cursor, *arguments):
        found.append(cursor)
        return load_cached(cursor, *arguments)

    monkeypatch.setattr(SegmentCursor, "load_cached", counted)
    return found


async def test_all_of_it_in_one_turn_if_that_is_not_too_much(connection, reads):
    connection.pump.pump()
    assert sorted(connection.blocks) == sorted([*range(STREAMS)] * CHUNKS)
    assert len(reads) == STREAMS * CHUNKS
    assert not connection.pump.goes_on_soon


async def test_each_chunk_is_sent_before_the_next_one_is_read(connection, reads, monkeypatch):
    sent_at, send = [], connection.send
    monkeypatch.setattr(connection, "send", lambda *buffers: (sent_at.append(len(reads)), send(*buffers)))
    connection.pump.pump()
    assert sent_at == sorted(set(sent_at)), "nothing is read between two chunks but the next one"


async def test_a_turn_reads_nothing_beyond_its_bound(connection, reads, monkeypatch):
    monkeypatch.setattr(stream_pump, "TURN_BYTES", 1)
    turns, pump = [(0, 0)], StreamPump.pump

    def counted(self):
        pump(self)
        turns.append((len(reads), len(connection.blocks)))

    monkeypatch.setattr(StreamPump, "pump", counted)
    connection.pump.pump()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(connection.blocks) == sorted([*range(STREAMS)] * CHUNKS)
    for before, after in itertools.pairwise(turns):
        assert after[0] <= before[0] + 1, "a turn reads one chunk"
        assert after[1] <= before[1] + 1, "and sends one"


async def test_one_chunk_is_read_ahead_while_the_peer_reads(connection, reads):
    connection.takes = False
    connection.pump.pump()
    assert (len(connection.blocks), len(reads)) == (1, 2), "what announces the snapshots leaves with the first one"
    connection.transport.backlog_bytes = 0
    connection.pump.pump()
    assert (len(connection.blocks), len(reads)) == (2, 3)


async def test_the_end_of_a_round_leaves_with_the_chunk_behind_it(connection, monkeypatch):
    sent, send = [], connection.send
    monkeypatch.setattr(
        connection, "send", lambda buffers, *rest: (sent.append(b"".join(buffers)), send(buffers, *rest))
    )
    connection.pump.pump()
    opcodes = [[frame.opcode for frame in FrameDecoder().receive_data(data)] for data in sent]
    assert all(Opcode.BLOCK in found for found in opcodes[:-1]), "only the end of the last round has no block behind it"
    assert sum(found.count(Opcode.ROUND_COMPLETE) for found in opcodes) >= CHUNKS


async def test_frames_do_not_wait_for_a_chunk_that_a_thread_reads(connection, monkeypatch):
    async def nothing_comes(*arguments):
        pass

    monkeypatch.setattr(SegmentCursor, "load_cached", lambda *arguments: None)
    monkeypatch.setattr(StreamPump, "_load", nothing_comes)
    connection.pump.pump()
    assert {frame.opcode for frame in FrameDecoder().receive_data(connection.sent)} >= {Opcode.SNAPSHOT_START}
    assert connection.blocks == []


@pytest.mark.parametrize("is_large", [True, False])
async def test_a_connection_that_is_full_of_streams_expects_bulk(connection, is_large, monkeypatch):
    monkeypatch.setattr(stream_pump, "BULK_BYTES_MIN", 1 if is_large else 1 << 20)
    connection.takes = False
    connection.pump.pump()
    assert connection.transport.expected_bulk == is_large


async def test_damage_ends_one_stream_and_the_others_go_on(connection):
    damaged = connection.partitions[1]
    damaged.disk.flip(damaged.chain.segments[0].path, 8 * 70)
    connection.pump.pump()
    assert set(connection.blocks) == {0, 2}
    assert [type(damage) for damage in connection.damages] == [SegmentDamaged]
    frames = FrameDecoder().receive_data(connection.sent)
    assert [frame.id for frame in frames if frame.opcode is Opcode.STREAM_END] == [1]


@pytest.fixture
def cold(connection, monkeypatch):
    """One stream, whose first chunk is not in memory; the parts that were read ahead of it."""
    for id in range(1, STREAMS):
        connection.rounds.close(id, EndReason.CLOSED)
    parts, load_cached, bring = [], SegmentCursor.load_cached, Part.bring

    def first_missing(cursor, *arguments):
        return load_cached(cursor, *arguments) if cursor._index else None

    def noted(part):
        pins = connection.node.storage.pins
        pins.retire([part.segment])
        assert pins.take_free() == [], "it is pinned meanwhile"
        parts.append((part.offset, part.nbytes))
        return bring(part)

    monkeypatch.setattr(SegmentCursor, "load_cached", first_missing)
    monkeypatch.setattr(Part, "bring", noted)
    return parts


async def test_what_follows_a_chunk_that_a_thread_has_read_is_read_ahead(connection, cold):
    connection.pump.pump()
    await trio.testing.wait_all_tasks_blocked()
    assert connection.blocks == [0] * CHUNKS
    segment = connection.partitions[0].chain.segments[0]
    begin, end = segment.place_of(1)[0], segment.place_of(CHUNKS)[0]
    assert cold == [(begin, end - begin)]
    assert connection.node.storage.pins.take_free() == [segment], "nothing holds it any more"


@pytest.mark.parametrize("error", [SegmentDamaged("a.seg", 64, "it is gone"), Overloaded("no descriptor is free")])
async def test_a_read_ahead_that_fails_ends_no_stream(connection, cold, error, monkeypatch):
    def failing(part):
        cold.append(part)
        raise error

    monkeypatch.setattr(Part, "bring", failing)
    connection.pump.pump()
    await trio.testing.wait_all_tasks_blocked()
    assert len(cold) == 1
    assert connection.blocks == [0] * CHUNKS
    assert connection.damages == []


async def test_nothing_is_read_ahead_while_several_streams_read(connection, monkeypatch):
    waiting = []

    def noted(ahead, part):
        waiting.append(sum(slot.stream.cursor_to_load is not None for slot in connection.rounds.slots.values()))

    monkeypatch.setattr(SegmentCursor, "load_cached", lambda *_: None)
    monkeypatch.setattr(ReadAhead, "missed", noted)
    connection.rounds.set_window(64 << 20)
    connection.pump.pump()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(connection.blocks) == sorted([*range(STREAMS)] * CHUNKS)
    assert len(waiting) < STREAMS * CHUNKS
    assert set(waiting) <= {0}, "no other stream waits for a chunk"
