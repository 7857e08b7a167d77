"""A node's storage over real connections: writers that wait, gets and streams of what was flushed, damage."""

import contextlib
import dataclasses
import errno
import os
import threading

import pytest
import trio

import tailrace
from tailrace import Mutations
from tailrace.block import Block
from tailrace.errors import NoSpace, VersionConflict
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd, StreamRequest, encode_number
from tailrace_server.config import StorageConfig
from tailrace_server.host.disk import RealFile
from tailrace_server.serving import time_slices
from tailrace_server.stream import partition_stream, segment_cursor
from tailrace_server.stream.segment_cursor import SegmentCursor


@pytest.fixture
def node_config(node_config):
    """Room for a few small blocks; nothing is flushed for its age."""
    storage = StorageConfig(memory_bytes_max=100_000, flush_age_s=1e9, reserve_bytes=0, free_bytes_min=0)
    return dataclasses.replace(node_config, storage=storage)


class Gate:
    """Stands before every pass of the flusher while it is shut."""

    def __init__(self, node):
        self.event = trio.Event()
        self.flush_due = node.storage.flusher.flush_due
        node.storage.flusher.flush_due = self.wait

    async def wait(self):
        await self.event.wait()
        await self.flush_due()


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


async def flush(node):
    """Everything that is durable goes to segments. The node's own task has to stand before a `Gate`."""
    for partition in node.feeds.partitions():
        await node.storage.flusher.flush(partition)


async def fill(feed, count, begin=0):
    for number in range(begin, begin + count):
        await feed.put(b"%d" % number, os.urandom(2_000))


class Collector:
    """Reads a stream in a task of its own."""

    def __init__(self, feed):
        self.feed = feed
        self.rows = []
        self.stream = None

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        async with self.feed.consume() as self.stream:
            task_status.started(self)
            async for event in self.stream:
                if isinstance(event, Mutations):
                    self.rows += [(mutation.key, mutation.value) for mutation in event]


@pytest.fixture
async def collect(running, feed, nursery):
    """A function that starts a `Collector` on a connection of its own."""
    async with tailrace.connect(running.url, retry_for=20) as other, trio.open_nursery() as tasks:

        async def start():
            return await tasks.start(Collector(await other.create_feed("orders", partitions=4)).run)

        yield start
        tasks.cancel_scope.cancel()


def written(node):
    return sum(partition.high_seq for feed in node.feeds for partition in feed.partitions)


# Back-pressure


async def test_writers_wait_at_the_bound_and_others_go_on(running, feed, collect):
    node = running.node
    gate, collector = Gate(node), await collect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, feed, 100)
        await until(lambda: node.storage.memory.must_wait)
        await collector.stream.barrier()
        before = written(node)
        assert len(collector.rows) == before < 100
        assert node.storage.memory.used < node.storage.memory.bytes_max + 10_000, "by one block at most"
        assert await collector.feed.get(b"0") is not None
        await collector.stream.barrier()
        assert written(node) == before
        gate.event.set()
    await collector.stream.barrier()
    assert len(collector.rows) == 100
    assert node.storage.memory.used < node.storage.memory.bytes_max


async def test_a_node_whose_flusher_is_stuck_refuses_writes(running, feed, collect, monkeypatch):
    node, collector = running.node, await collect()
    flush_one = node.storage.flusher.flush

    async def fail(partition):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(node.storage.flusher, "flush", fail)
    async with tailrace.connect(running.url, retry_for=5) as client:
        with pytest.raises(NoSpace, match="the disk is broken"):
            await fill(client.feed("orders"), 100)
    await collector.stream.barrier()
    assert len(collector.rows) == written(node)
    assert await feed.get(b"0") is not None
    assert not node.status()["healthy"]
    assert "the disk is broken" in node.status()["failure"]
    monkeypatch.setattr(node.storage.flusher, "flush", flush_one)
    await until(lambda: node.status()["healthy"])
    await feed.put(b"more", b"v")


# What was flushed


async def test_gets_and_streams_of_what_was_flushed(running, feed, collect):
    node = running.node
    Gate(node)
    await fill(feed, 10)
    await flush(node)
    await feed.delete(b"3")
    await feed.put(b"4", b"new")
    await flush(node)
    await feed.put(b"5", b"newest")
    collector = await collect()
    await collector.stream.barrier()
    state = dict(collector.rows)
    assert (len(state), state[b"3"], state[b"4"], state[b"5"]) == (10, None, b"new", b"newest")
    found = await feed.get_many([b"3", b"4", b"5", b"6"])
    assert [item and item.value for item in found] == [None, b"new", b"newest", state[b"6"]]
    await running.kill()
    await running.start()
    found = await feed.get_many([b"3", b"4", b"5", b"6"])
    assert [item and item.value for item in found] == [None, b"new", b"newest", state[b"6"]]


async def test_a_slow_consumer_goes_on_from_segments(running, feed, raw, monkeypatch):
    """It has granted little, so what it has not taken is flushed under it."""
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    node = running.node
    Gate(node)
    feed_id = (await feed.resolve()).feed_id
    await feed.put(b"first", b"v")
    partition = next(p for p in node.feeds.of_id(feed_id).partitions if p.high_seq)
    for _ in range(20):
        await feed.put(b"first", os.urandom(2_000))
    async with raw() as connection:
        await connection.hello(window_bytes=3_000)
        request = StreamRequest(feed_id, partition.id, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
        await connection.send(request.encode(9))
        opcodes = [(await connection.receive()).opcode for _ in range(4)]
        assert opcodes == [Opcode.STREAM_OK, Opcode.SNAPSHOT_START, Opcode.BLOCK, Opcode.BLOCK]
        await flush(node)
        assert node.storage.memory.used == 0
        seqs = []
        while not seqs or seqs[-1] < 21:
            await connection.send(encode_number(Opcode.CREDIT, 3_000))
            frame = await connection.receive()
            opcodes.append(frame.opcode)
            if frame.opcode is Opcode.BLOCK:
                header = Block.parse(frame.body).header
                seqs += range(header.first_seq, header.last_seq + 1)
        assert opcodes.count(Opcode.SNAPSHOT_START) == 2
        assert seqs == list(range(3, 22))


async def frame_of(connection, opcode):
    """The next frame of that kind; rounds may have ended before it."""
    passed = {Opcode.STREAM_OK, Opcode.SNAPSHOT_START, Opcode.ROUND_COMPLETE}
    while (frame := await connection.receive()).opcode is not opcode:
        assert frame.opcode in passed
    return frame


async def test_who_keeps_segments_that_nobody_else_needs_is_sent_away_on_a_full_disk(running, client, raw, monkeypatch):
    """Readers of what is there for everybody go on."""
    monkeypatch.setattr(segment_cursor, "CHUNK_BYTES", 1)
    node = running.node
    Gate(node)
    feed = await client.create_feed("history", partitions=1, retention="history", history_bytes=1)
    request = StreamRequest((await feed.resolve()).feed_id, 0, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
    async with raw() as slow, raw() as other:
        for connection in (slow, other):
            await fill(feed, 3)
            await flush(node)
            if connection is other:
                await until(
                    lambda: node.storage.pins.retired_bytes
                )  # the segment before is dropped, and the slow one reads it
            await connection.hello(window_bytes=1)
            await connection.send(request.encode(9))
            await frame_of(connection, Opcode.BLOCK)
        node.storage.space.on_low()
        end = StreamEnd.decode((await frame_of(slow, Opcode.STREAM_END)).body)
        assert end.reason is EndReason.TOO_SLOW
        assert "nearly full" in end.message
        await until(lambda: not node.storage.pins.retired_bytes)  # a thread may still read for it
        await other.send(encode_number(Opcode.CREDIT, 1 << 20))
        await frame_of(other, Opcode.BLOCK)


async def test_hazard_18_look_up_and_append_are_one_step(running, feed, monkeypatch):
    """Many conditional writes of one key, in steps, while what they look at moves to segments: one of them wins."""
    monkeypatch.setattr(time_slices, "SLICE_SECONDS", 0.0)
    node = running.node
    Gate(node)
    won = []

    async def put(feed, key, number):
        with contextlib.suppress(VersionConflict):
            await feed.put(key, b"%d" % number, if_absent=True)
            won.append((key, b"%d" % number))

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tailrace.connect(running.url)) for _ in range(6)]
        feeds = [await client.create_feed("orders", partitions=4) for client in clients]
        for key in (b"x", b"y", b"z"):
            await fill(feed, 10)
            async with trio.open_nursery() as nursery:
                for number, other in enumerate(feeds):
                    nursery.start_soon(put, other, key, number)
                nursery.start_soon(flush, node)
    assert sorted(key for key, _ in won) == [b"x", b"y", b"z"]
    for key, value in won:
        assert (await feed.get(key)).value == value


@pytest.fixture
def cold(monkeypatch):
    """Nothing that a segment holds is in memory, until it has been read. Counts the reads that somebody waited for."""
    waited = []
    read_at = RealFile.read_at
    monkeypatch.setattr(RealFile, "read_cached", lambda file, offset, nbytes: None)

    def counted(file, offset, nbytes):
        waited.append(threading.current_thread())
        return read_at(file, offset, nbytes)

    monkeypatch.setattr(RealFile, "read_at", counted)
    return waited


async def test_what_has_to_be_read_from_the_disk_is_read_in_a_thread(running, feed, cold):
    node = running.node
    Gate(node)
    await fill(feed, 10)
    await flush(node)
    cold.clear()
    version = (await feed.get(b"3")).version
    assert [item is None for item in await feed.get_many([b"3", b"x", b"4"])] == [False, True, False]
    with pytest.raises(VersionConflict):
        await feed.put(b"3", b"v", if_absent=True)
    assert (await feed.put(b"3", b"v", if_version=version)).seq > version.seq
    assert await feed.delete(b"4") is not None
    assert cold
    assert threading.main_thread() not in cold, "the loop waits for no disk"


async def test_a_disk_that_takes_its_time_holds_up_nobody_else(running, feed, cold, monkeypatch):
    node = running.node
    Gate(node)
    await fill(feed, 10)
    await flush(node)
    gate, read_at = threading.Event(), RealFile.read_at
    reading = []

    def slow(file, offset, nbytes):
        reading.append(offset)
        assert gate.wait(60)
        return read_at(file, offset, nbytes)

    monkeypatch.setattr(RealFile, "read_at", slow)
    found = []

    async def get():
        found.append(await feed.get(b"3"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await until(lambda: reading)
        await feed.put(b"new", b"v")
        assert (await feed.get(b"new")).value == b"v"
        [only] = node.feeds
        (segment,) = only.partition_of(b"3").chain.segments
        node.storage.pins.retire([segment])
        assert node.storage.pins.take_free() == [], "what is being read stays open"
        assert not found
        gate.set()
    assert found[0].key == b"3"
    assert node.storage.pins.take_free() == [segment]


async def test_damage_that_is_met_in_a_thread_is_told(running, feed, cold, monkeypatch):
    node = running.node
    Gate(node)
    await fill(feed, 10)
    await flush(node)

    def broken(file, offset, nbytes):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(RealFile, "read_at", broken)
    for look_up in (feed.get(b"3"), feed.put(b"3", b"v", if_absent=True)):
        with pytest.raises(tailrace.TailraceError, match="is damaged at offset"):
            await look_up
    assert not node.status()["healthy"]
    await feed.put(b"3", b"v")


# Damage


def damage(path):
    """One bit of the first block is another one."""
    with open(path, "r+b") as file:
        file.seek(200)
        byte = file.read(1)
        file.seek(200)
        file.write(bytes([byte[0] ^ 1]))


async def test_damage_that_a_stream_meets_is_told(running, feed, raw):
    node = running.node
    Gate(node)
    feed_id = (await feed.resolve()).feed_id
    await fill(feed, 20)
    await flush(node)
    partition, other = [p for p in node.feeds.of_id(feed_id).partitions if p.chain.segments][:2]
    path = partition.chain.segments[0].path
    damage(path)
    async with raw() as connection:
        await connection.hello()
        for id, number in ((1, partition.id), (2, other.id)):
            request = StreamRequest(feed_id, number, FailoverLog(), 0, 0, 0, None, None, Level.DISK)
            await connection.send(request.encode(id))
        ends, seqs = {}, 0
        while not ends or seqs < other.high_seq:
            frame = await connection.receive()
            if frame.opcode is Opcode.STREAM_END:
                ends[frame.id] = StreamEnd.decode(frame.body)
            elif frame.opcode is Opcode.BLOCK and frame.id == 2:
                seqs = Block.parse(frame.body).header.last_seq
        assert set(ends) == {1}
        assert ends[1].reason is EndReason.DAMAGED
        assert f"{path} is damaged at offset 64" in ends[1].message
    assert not node.status()["healthy"]
    assert path in node.status()["failure"]
    assert partition.damage is None, "what can be read of it is served"


@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_stream_takes_a_thread_only_for_what_is_not_in_memory(is_cached, running, feed, monkeypatch):
    await fill(feed, 10)
    await flush(running.node)
    threads, load = [], SegmentCursor.load

    def loaded(part, bytes_max):
        threads.append(threading.current_thread())
        return load(part, bytes_max)

    monkeypatch.setattr(SegmentCursor, "load", loaded)
    if not is_cached:
        monkeypatch.setattr(RealFile, "read_cached", lambda file, offset, nbytes: None)
    async with feed.consume(until="now", catch_up="stream") as stream:
        keys = [m.key async for event in stream if isinstance(event, Mutations) for m in event]
    assert sorted(keys) == sorted(b"%d" % row for row in range(10))
    assert bool(threads) is not is_cached
    assert threading.main_thread() not in threads
