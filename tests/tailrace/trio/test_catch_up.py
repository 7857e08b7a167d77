"""Consumers and followers that catch up by segments, against real nodes: the same events' meaning, whatever happens."""

import contextlib
import os
import sqlite3
from datetime import UTC, datetime

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import Delete, Mutations, Put, Rollback, SnapshotEnd, SnapshotStart, blocking
from tailrace.consuming import catch_up, catch_up_rules
from tailrace.consuming.subscription import Subscription
from tailrace.errors import BadSegment, ProtocolError
from tailrace.indexes import MemoryIndex, SQLiteIndex
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.handlers import HANDLERS

FETCHES = (Opcode.SEGMENT_CHECKPOINT, Opcode.SEGMENT_FETCH, Opcode.STREAM_REQUEST)


async def write(feed, rows, tag=b"", first=0, size=200):
    await feed.write([Put(b"k%d" % number, tag + os.urandom(size)) for number in range(first, first + rows)])


async def write_much(feed, tag=b""):
    """1,000 keys in blocks of 75 KB: more than what a consumer with a small window asks for at once."""
    for number in range(5):
        await write(feed, 200, tag, 200 * number, 1_500)


async def flush(running, name="orders"):
    for partition in running.node.feeds.named(name).partitions:
        await running.node.storage.flusher.flush(partition)


@pytest.fixture
def chains(running, monkeypatch):
    """Segments are compacted by ``compact`` alone."""
    monkeypatch.setattr(running.node.storage.compactor, "consider", lambda partition: None)


async def compact(running, name="orders"):
    for partition in running.node.feeds.named(name).partitions:
        before = partition.chain.segments
        await running.node.storage.compactor.compact(partition, running.node.feeds.named(name).info)
        assert partition.chain.segments != before


@pytest.fixture
def asked(monkeypatch):
    """The opcodes of segments and streams that the node has got, in order."""
    found = []

    def noting(opcode, handler):
        def handle(connection, frame):
            found.append(opcode)
            handler(connection, frame)

        return handle

    for opcode in FETCHES:
        monkeypatch.setitem(HANDLERS, opcode, noting(opcode, HANDLERS[opcode]))
    return found


async def items_of(feed):
    return {item.key: item.value async for item in feed.items()}


class Reader:
    """What a program has of a stream: the state of its rows; it checks each event and position."""

    def __init__(self):
        self.state, self.rows, self.events = {}, 0, []
        self.inside = {}

    def take(self, stream, event):
        self.events.append(type(event))
        if isinstance(event, SnapshotStart):
            self.inside[event.partition] = event
        elif isinstance(event, SnapshotEnd):
            start = self.inside.pop(event.partition, None)
            position = stream.latest_positions[event.partition]
            assert event.position == position
            assert position.seq == event.last_seq
            assert start is None or (start.first_seq, start.last_seq) == (event.first_seq, event.last_seq)
        elif isinstance(event, Mutations):
            self._rows(stream, event)
        elif isinstance(event, Rollback) and event.keys is None:
            self.state = {}

    def _rows(self, stream, event):
        self.rows += len(event)
        if not event.refetched:
            start, position = self.inside[event.partition], stream.latest_positions[event.partition]
            assert start.first_seq <= event.first_seq <= event.last_seq <= start.last_seq
            assert position.seq == event.last_seq
        for key, value in zip(event.keys(), event.values(), strict=True):
            if value is None:
                self.state.pop(key, None)
            else:
                self.state[key] = value


async def read(feed, since="beginning", reader=None, **options):
    reader = Reader() if reader is None else reader
    options.setdefault("catch_up", "segments")
    async with feed.consume(since, until="now", **options) as stream:
        async for event in stream:
            reader.take(stream, event)
        reader.positions = stream.positions
    return reader


async def read_with_a_break(feed, break_, **options):
    """Reads it all. Behind the first rows ``break_`` is called, in the middle of a segment."""
    reader, broken = Reader(), False
    async with feed.consume(until="now", catch_up="segments", window_bytes=1, **options) as stream:
        async for event in stream:
            reader.take(stream, event)
            if isinstance(event, Mutations) and not broken:
                at = stream.latest_positions[event.partition]
                assert at.snapshot_first < at.seq < at.snapshot_last, "in the middle"
                broken = True
                await break_()
    assert broken
    return reader


async def test_segments_first_then_the_stream(running, feed, asked):
    await write(feed, 5_000)
    await flush(running)
    await write(feed, 100, b"new")
    reader = await read(feed)
    assert reader.state == await items_of(feed)
    assert reader.rows == 5_100
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 4
    assert asked.count(Opcode.STREAM_REQUEST) >= 4
    assert asked.index(Opcode.SEGMENT_CHECKPOINT) < asked.index(Opcode.STREAM_REQUEST)
    for position in reader.positions.values():
        assert position.seq == position.snapshot_first == position.snapshot_last
    assert len(running.node.storage.checkpoints) == 0


async def test_a_small_feed_is_streamed(running, feed, asked):
    await write(feed, 500)
    await flush(running)
    assert (await read(feed, catch_up="auto")).rows == 500
    assert set(asked) == {Opcode.STREAM_REQUEST}


async def test_positions_in_the_middle_go_on_by_stream_and_by_segments(running, feed, asked):
    await write_much(feed)
    await flush(running)
    connections = len(running.node.connections)
    for mode in ("stream", "segments"):
        reader = Reader()
        async with feed.consume(catch_up="segments", window_bytes=1) as stream:
            async for event in stream:
                reader.take(stream, event)
                if reader.events.count(Mutations) == 3:
                    positions = tailrace.Positions.parse(str(stream.latest_positions))
                    break
        rows = reader.rows
        assert 0 < rows < 1_000
        await until(lambda: len(running.node.connections) == connections)  # its last requests have come
        asked.clear()
        await read(feed, positions, reader, catch_up=mode)
        assert reader.rows == 1_000
        assert reader.state == await items_of(feed)
        assert (Opcode.SEGMENT_FETCH in asked) == (mode == "segments")


async def test_a_history_that_was_trimmed(running, client, chains):
    feed = await client.create_feed("orders", partitions=1, retention="history", history_bytes=2_000_000)
    [partition] = running.node.feeds.named("orders").partitions
    for _ in range(3):
        await write_much(feed)
        await flush(running)
    await running.node.storage.compactor.trim(partition, running.node.feeds.named("orders").info)
    trim_seq = partition.trim_seq
    assert trim_seq > 0
    reader = await read(feed)
    assert reader.rows == 3_000 - trim_seq
    assert reader.positions[0].seq == 3_000


@pytest.mark.parametrize("keys_only", [False, True])
async def test_a_filter(running, feed, asked, keys_only):
    await write(feed, 1_000)
    await feed.write([Delete(b"k11"), Delete(b"k20")])
    await flush(running)
    await write(feed, 20, b"new")
    options = {"key_prefix": b"k1", "keys_only": keys_only}
    found = await read(feed, **options)
    streamed = await read(feed, catch_up="stream", **options)
    expected = {key: value for key, value in (await items_of(feed)).items() if key.startswith(b"k1")}
    assert found.rows == streamed.rows > 100
    assert found.state == streamed.state == ({} if keys_only else expected)
    assert found.positions == streamed.positions
    assert Opcode.SEGMENT_FETCH in asked


async def test_no_row_matches(running, feed):
    await write(feed, 1_000)
    await flush(running)
    found = await read(feed, key_prefix=b"nothing")
    assert (found.rows, set(found.events)) == (0, {SnapshotEnd})
    assert sum(found.positions.seqs().values()) == 1_000


async def test_a_compaction_in_the_middle(running, feed, asked, chains):
    for _ in range(4):
        await write_much(feed)
        await flush(running)
    reader = await read_with_a_break(feed, lambda: compact(running))
    assert reader.state == await items_of(feed)
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 4, "its files were kept"


async def test_a_checkpoint_that_expires_in_the_middle(running, feed, asked, chains):
    async def expire():
        checkpoints = running.node.storage.checkpoints
        checkpoints._release_all(list(checkpoints._kept.values()))
        await compact(running)

    for _ in range(4):
        await write_much(feed)
        await flush(running)
    reader = await read_with_a_break(feed, expire)
    assert reader.state == await items_of(feed)
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) > 4, "another one was taken"


async def test_a_connection_that_breaks_in_the_middle(running, feed, asked):
    await write_much(feed)
    await flush(running)

    async def cut():
        running.cut_connections()

    reader = await read_with_a_break(feed, cut)
    assert reader.state == await items_of(feed)
    assert reader.rows == 1_000, "no row came twice"


async def test_a_node_that_is_killed_in_the_middle(running, feed):
    async def kill():
        await running.kill()
        await running.start()

    await write_much(feed)
    await flush(running)
    reader = await read_with_a_break(feed, kill)
    assert reader.state == await items_of(feed)


async def test_a_rollback_below_what_was_read(running, client, lose, chains):
    """The node forgets a flushed segment whose rows were half read, and has others since."""
    feed = await client.create_feed("orders", partitions=1)
    await write_much(feed, b"kept")
    await flush(running)
    reader = Reader()
    async with lose():
        await write_much(feed, b"lost")
        await flush(running)
        async with feed.consume(catch_up="segments", window_bytes=1) as stream:
            async for event in stream:
                reader.take(stream, event)
                positions = stream.latest_positions
                if positions[0].seq > 1_000:
                    break
    await write(feed, 30, b"later")
    await read(feed, positions, reader)
    assert Rollback in reader.events
    assert reader.state == await items_of(feed)
    assert not any(value.startswith(b"lost") for value in reader.state.values())


async def test_a_rollback_while_it_reads(running, client, lose):
    feed = await client.create_feed("orders", partitions=1)
    await write_much(feed, b"kept")
    await flush(running)
    reader = Reader()
    async with feed.consume(catch_up="segments", window_bytes=1) as stream:
        async with lose():
            await write_much(feed, b"lost")
            await flush(running)
            async for event in stream:
                reader.take(stream, event)
                if reader.rows > 1_200:
                    break
        await write(feed, 30, b"later")
        wanted = await items_of(feed)
        async for event in stream:
            reader.take(stream, event)
            if reader.state == wanted and stream.latest_positions[0].seq == 1_030:
                break
    assert Rollback in reader.events


async def test_another_node_after_a_failover(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        for number in range(5):
            changes = [Put(b"k%d" % key, os.urandom(1_500)) for key in range(200 * number, 200 * number + 200)]
            await feed.write(changes, level="quorum")
        for node in members:
            for partition in node.node.feeds.named("orders").partitions:
                await node.node.storage.flusher.flush(partition)

        async def fail_over():
            leader = await members.level("orders")
            follower = next(node for node in members if node is not leader)
            await leader.kill()
            await follower.promote()

        reader = await read_with_a_break(feed, fail_over, visibility="quorum")
        assert reader.state == await items_of(feed)


@pytest.fixture
def small_is_far(monkeypatch):
    """With "auto", segments are read however little they have."""
    monkeypatch.setattr(catch_up_rules, "SEQS_MIN", 1)
    monkeypatch.setattr(catch_up_rules, "BYTES_MIN", 1)


async def test_items_are_read_from_segments(running, feed, asked, small_is_far):
    await write(feed, 1_000)
    await feed.write([Delete(b"k11"), Delete(b"k20")])
    await flush(running)
    await write(feed, 20, b"new")
    items = {item.key: item async for item in feed.items()}
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 4
    assert len(items) == 999, "k11 is there again, k20 is not"
    for key in (b"k1", b"k11", b"k20", b"k999"):
        assert items.get(key) == await feed.get(key)
    asked.clear()
    found = {item.key async for item in feed.items(key_prefix=b"k1")}
    assert found == {key for key in items if key.startswith(b"k1")}
    assert Opcode.SEGMENT_CHECKPOINT not in asked, "the node sends only the rows of the prefix"


async def test_items_in_short_steps_while_segments_are_compacted(running, client, chains, small_is_far, monkeypatch):
    """A step that is cancelled goes on where it was, also in the middle of a segment that is gone since."""
    feed = await client.create_feed("orders", partitions=1)
    await write_much(feed)
    await flush(running)
    await write_much(feed, b"new")
    await flush(running)
    expected = {b"k%d" % number: (await feed.get(b"k%d" % number)).value for number in range(1_000)}
    monkeypatch.setattr(catch_up, "FETCHES_MAX", 1)  # the parts before the one that is asked for have come
    monkeypatch.setattr(catch_up, "RANGE_BYTES", 1)
    fetches, scope, handle = 0, trio.CancelScope(), HANDLERS[Opcode.SEGMENT_FETCH]

    def cancelling(connection, frame):
        nonlocal fetches
        fetches += 1
        if fetches in (4, 6):  # the step cannot end before this part has come
            scope.cancel()
        handle(connection, frame)

    monkeypatch.setitem(HANDLERS, Opcode.SEGMENT_FETCH, cancelling)
    items, found, cancelled = feed.items(), {}, 0
    with trio.fail_after(60):
        while True:
            with trio.CancelScope() as scope:
                async for item in items:
                    found[item.key] = item.value
                break
            assert scope.cancelled_caught
            assert not found, "a partition is read whole before its first item is returned"
            cancelled += 1
            if cancelled == 2:
                await compact(running)
    assert cancelled == 2
    assert found == expected


async def test_a_barrier_waits_for_the_segments(running, feed):
    await write_much(feed)
    await flush(running)
    reader, versions = Reader(), []
    async with feed.consume(catch_up="segments", window_bytes=1) as stream, trio.open_nursery() as nursery:

        async def ask():
            await feed.put(b"last", b"row")
            await stream.barrier()
            versions.append(reader.state.get(b"last"))
            nursery.cancel_scope.cancel()

        nursery.start_soon(ask)
        async for event in stream:
            reader.take(stream, event)
    assert versions == [b"row"]
    assert len(reader.state) == 1_001


@pytest.mark.parametrize("mode", ["auto", "segments"])
async def test_a_node_that_knows_no_segments(running, feed, monkeypatch, mode):
    """An older node ends the connection at an opcode that it does not know."""
    monkeypatch.delitem(HANDLERS, Opcode.SEGMENT_CHECKPOINT)
    monkeypatch.setattr(catch_up_rules, "SEQS_MIN", 1)
    await write(feed, 1_000)
    await flush(running)
    if mode == "auto":
        assert (await read(feed, catch_up="auto")).state == await items_of(feed)
        return
    with pytest.raises(ProtocolError, match="has no segments to send"):
        async with feed.consume(catch_up="segments"):
            raise AssertionError("it is told on entering")


async def test_segments_that_the_node_cannot_read(running, feed):
    await write(feed, 1_000)
    await flush(running)
    reads = running.node.storage.checkpoints

    def find(checkpoint_id, segment_id):
        raise BadSegment("planted")

    reads.find = find
    reader = await read(feed)
    assert reader.state == await items_of(feed)


@pytest.mark.parametrize("value", ["", "file", None])
async def test_a_value_that_does_not_exist(feed, value):
    for make in (feed.consume, lambda catch_up: feed.follow(MemoryIndex(), catch_up=catch_up)):
        with pytest.raises(ValueError, match=r"catch_up is .*'auto', 'segments', 'stream'"):
            make(catch_up=value)


async def test_times_are_read_by_the_stream(running, feed, asked):
    now = datetime.now(UTC)
    with pytest.raises(ValueError, match="times"):
        feed.consume(now, catch_up="segments")
    with pytest.raises(ValueError, match="times"):
        feed.consume(until=now, catch_up="segments")


# A blocking program


async def test_a_blocking_stream(running, feed, asked):
    await write_much(feed)
    await flush(running)
    wanted = await items_of(feed)
    asked.clear()

    def consume():
        reader = Reader()
        with blocking.connect(running.url) as client:
            subscription = Subscription("orders", until="now", catch_up="segments")
            with client.stream(subscription, window_bytes=1) as stream:
                for event in stream:
                    reader.take(stream, event)
        return reader

    reader = await trio.to_thread.run_sync(consume)
    assert reader.state == wanted
    assert reader.rows == 1_000
    assert Opcode.SEGMENT_FETCH in asked


# Followers


@pytest.fixture(params=["memory", "sqlite"])
def make_index(request, tmp_path):
    if request.param == "memory":
        index = MemoryIndex()
        return lambda: index
    return lambda: SQLiteIndex(tmp_path / "index.db")


def rows_of(index, tmp_path):
    if isinstance(index, MemoryIndex):
        return dict(index.state)
    with contextlib.closing(sqlite3.connect(tmp_path / "index.db")) as database:
        return dict(database.execute("SELECT key, value FROM items"))


async def test_an_index_that_ends_in_the_middle(running, feed, make_index, tmp_path, asked):
    """Again and again: each time it goes on from where its last transaction was."""
    await write_much(feed)
    await write_much(feed, b"new")
    await flush(running)
    seqs = []

    def moved(follower):
        """It has applied some rows, or there are no more."""
        return follower.applied_rows > 0 or sum(follower.positions.seqs().values()) == 2_000

    for _ in range(4):
        async with feed.follow(make_index(), catch_up="segments") as follower:
            await until(lambda: moved(follower))
        seqs.append(sum(follower.positions.seqs().values()))
    assert seqs == sorted(seqs)
    index = make_index()
    async with feed.follow(index, catch_up="segments") as follower:
        await follower.barrier()
        await follower.wait_for(await feed.put(b"last", b"row"))
    assert rows_of(index, tmp_path) == await items_of(feed)
    assert Opcode.SEGMENT_FETCH in asked
