# ruff: noqa: PT012 (bodies of context managers are what raises here)
import dataclasses
import itertools
import os

import pytest
import trio

import tailrace
from tailrace import EndReason, Mutations, Position, Positions, Rollback, StreamEnded
from tailrace.link.backoff import FIRST_SECONDS
from tailrace.link.placing import PLACED_BYTES_MIN
from tailrace.model.failover import FailoverLog
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.trio.stream import NOW_BYTES_MAX
from tailrace.trio.tcp import TcpTransport
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import handlers


def partition_of(key):
    return partition_of_hash(key_hash(key), 4)


async def read_until(stream, count):
    """(partition, seq, key, value) of the next ``count`` mutations."""
    rows = []
    async for event in stream:
        if isinstance(event, Mutations):
            rows += [(event.partition, m.seq, m.key, m.value) for m in event]
            if len(rows) >= count:
                break
    return rows


async def read_all(stream):
    return await read_until(stream, 1 << 60)


class Collector:
    """A loop over a stream in a task of its own, as an application would have it."""

    def __init__(self, feed, **options):
        self.rows = []
        self.rollbacks = []
        self.refetched = {}
        self.stream = None
        self.error = None
        self._feed = feed
        self._options = options
        self._scope = trio.CancelScope()

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        with self._scope:
            try:
                async with self._feed.consume(**self._options) as self.stream:
                    task_status.started(self)
                    async for event in self.stream:
                        self.take(event)
            except StreamEnded as error:
                self.error = error

    def take(self, event):
        if isinstance(event, Mutations) and event.refetched:
            self.refetched |= {m.key: m.value for m in event}
        elif isinstance(event, Mutations):
            self.rows += [(event.partition, m.seq, m.key, m.value) for m in event]
        elif isinstance(event, Rollback):
            self.rollbacks.append((event.partition, event.seq, event.keys))
            self.rows = [row for row in self.rows if row[0] != event.partition or row[1] <= event.seq]

    def state(self):
        latest = {key: value for _, _, key, value in self.rows}
        return {key: value for key, value in latest.items() if value is not None}

    def check(self, *, repeats=False):
        """In the order of each partition, without a gap; once, unless ``repeats``."""
        for partition in range(4):
            seqs = [seq for p, seq, _, _ in self.rows if p == partition]
            assert sorted(set(seqs)) == list(range(1, len(set(seqs)) + 1)), "something was left out"
            assert seqs == sorted(seqs), "out of order"
            assert repeats or len(seqs) == len(set(seqs)), "sent twice"

    def stop(self):
        self._scope.cancel()


@pytest.fixture
async def collect(nursery, feed):
    """A function that starts a `Collector`."""

    async def start(**options):
        return await nursery.start(Collector(feed, **options).run)

    return start


async def fill(feed, count=40, value=b"v", **options):
    async with feed.writer(batch_rows=3, **options) as writer:
        for number in range(count):
            await writer.put(b"key %d" % number, value)


async def test_a_snapshot_first_and_then_live(feed, collect):
    await fill(feed)
    collector = await collect()
    await collector.stream.barrier()
    assert len(collector.rows) == 40
    await feed.put(b"key 1", b"w")
    await collector.stream.barrier()
    assert collector.rows[-1][2:] == (b"key 1", b"w")
    collector.check()


async def test_until_now_ends_by_itself(feed):
    await fill(feed)
    async with feed.consume(until="now") as stream:
        assert len(await read_all(stream)) == 40
        with pytest.raises(StopAsyncIteration):
            await stream.__anext__()
        assert all(status.state == "ended" for status in stream.status().partitions)
    async with feed.consume(until="now", since=stream.positions) as again:
        assert await read_all(again) == []


async def test_large_blocks_that_a_program_keeps_stay_as_they_came(client):
    """They are received into buffers that are used again."""
    feed = await client.create_feed("large", partitions=2)
    rows = {b"%03d" % number: os.urandom(5_000) for number in range(200)}
    async with feed.writer() as writer:
        for _ in range(10):
            for key, value in rows.items():
                await writer.put(key, value)
    async with feed.consume(until="now") as stream:
        kept = [event async for event in stream if isinstance(event, Mutations)]
    assert max(len(event.block.body) for event in kept) > PLACED_BYTES_MIN
    assert sum(map(len, kept)) == 2_000
    for event in kept:
        assert event.values() == list(map(rows.get, event.keys()))


async def test_other_tasks_have_the_loop_while_large_blocks_come(client):
    feed = await client.create_feed("large", partitions=1)
    async with feed.writer() as writer:
        for number in range(4_000):
            await writer.put(b"%04d" % number, os.urandom(5_000))
    turns, longest, largest, read = 0, 0, 0, 0

    async def count_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with feed.consume(until="now") as stream, trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        before = turns
        async for event in stream:
            if turns > before:
                before, read = turns, 0
            if isinstance(event, Mutations):
                read += event.block.nbytes
                longest, largest = max(longest, read), max(largest, event.block.nbytes)
        nursery.cancel_scope.cancel()
    # What one read had left of a block, that read, NOW_BYTES_MAX of further ones, and the last of these.
    assert largest > PLACED_BYTES_MIN
    assert longest < 4 * (NOW_BYTES_MAX + largest)


async def test_reads_without_a_turn_of_the_loop_are_bounded(client, monkeypatch):
    """A node that is faster than the program would otherwise have the loop for ever."""
    monkeypatch.setattr("tailrace.trio.stream.NOW_BYTES_MAX", 1)
    feed = await client.create_feed("large", partitions=1)
    async with feed.writer() as writer:
        for number in range(2_000):
            await writer.put(b"%04d" % number, os.urandom(5_000))
    reads = []

    def noted(name, read):
        def call(transport, buffers):
            reads.append(name)
            return read(transport, buffers)

        monkeypatch.setattr(TcpTransport, read.__name__, call)

    noted("now", TcpTransport.receive_into_now)
    noted("turn", TcpTransport.receive_into)
    async with feed.consume(until="now") as stream:
        rows = sum([len(event) async for event in stream if isinstance(event, Mutations)])
    assert rows == 2_000
    assert "now" in reads
    assert ("now", "now") not in itertools.pairwise(reads)


async def test_until_positions(feed):
    await fill(feed)
    async with feed.consume(until="now") as stream:
        first = await read_all(stream)
        positions = stream.positions
    await fill(feed, value=b"w")
    async with feed.consume(until=positions) as stream:
        assert sorted(await read_all(stream)) == sorted(first)


async def test_since_now_shows_what_comes_after(feed, collect):
    await fill(feed)
    collector = await collect(since="now")
    await feed.put(b"new", b"v")
    await collector.stream.barrier()
    assert [row[2] for row in collector.rows] == [b"new"]


async def test_since_now_is_fixed_when_the_body_begins(running, feed):
    """Hazard 17: what is written while the connection is down is not skipped."""
    await fill(feed)
    async with feed.consume(since="now") as stream:
        stored = Positions.parse(str(stream.positions))
        running.cut_connections()
        await feed.put(b"new", b"v")
        assert [row[2] for row in await read_until(stream, 1)] == [b"new"]
    async with feed.consume(since=stored) as stream:
        assert [row[2] for row in await read_until(stream, 1)] == [b"new"]


async def test_positions_that_were_stored_anywhere(feed):
    """A consumer that stops after any event, and goes on from the positions that it has stored, misses nothing."""
    await fill(feed)
    async with feed.consume(until="now") as stream:
        everything = sorted(await read_all(stream))
    rows, text, steps = [], None, 0
    while True:
        since = "beginning" if text is None else Positions.parse(text)
        async with feed.consume(since, until="now") as stream:
            try:
                for _ in range(3):
                    event = await stream.__anext__()
                    if isinstance(event, Mutations):
                        rows += [(event.partition, m.seq, m.key, m.value) for m in event]
            except StopAsyncIteration:
                break
            text = str(stream.latest_positions)
            steps += 1
    assert steps > 5
    assert sorted(rows) == everything


async def test_what_is_being_handled_comes_again_with_positions(feed):
    await feed.put(b"k", b"v")
    async with feed.consume() as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                positions = stream.positions
                break
    async with feed.consume(positions) as stream:
        assert len(await read_until(stream, 1)) == 1


async def test_some_partitions_only(feed):
    await fill(feed)
    async with feed.consume(partitions=[1, 3], until="now") as stream:
        rows = await read_all(stream)
        assert sorted(stream.positions) == [1, 3]
    assert {row[0] for row in rows} == {1, 3}
    assert {row[2] for row in rows} == {k for n in range(40) if partition_of(k := b"key %d" % n) in (1, 3)}
    with pytest.raises(tailrace.UnknownFeed, match="no partition 4"):
        async with feed.consume(partitions=[4]):
            raise AssertionError("there is no such partition")


async def test_positions_of_another_feed(client, feed):
    other = await client.create_feed("other", partitions=4)
    async with other.consume(until="now") as stream:
        positions = stream.positions
    with pytest.raises(tailrace.BadPosition, match="another feed"):
        async with feed.consume(positions):
            raise AssertionError("they were taken")
    with pytest.raises(tailrace.BadPosition, match="another feed"):
        async with feed.consume(until=positions):
            raise AssertionError("they were taken")


async def test_levels_of_visibility(feed, node, collect, monkeypatch):
    """At level memory a stream shows what is not durable; at level disk it waits, and a barrier makes it so."""
    gate = trio.Event()
    commit = node.storage.committer.commit

    async def wait_and_commit():
        await gate.wait()
        await commit()

    monkeypatch.setattr(node.storage.committer, "commit", wait_and_commit)
    monkeypatch.setattr(node.storage.committer, "turn_ended", lambda _: node.storage.committer._wanted.set())
    memory, disk = await collect(visibility="memory"), await collect()
    await feed.put(b"k", b"v", level="memory")
    await memory.stream.barrier()
    assert [row[2] for row in memory.rows] == [b"k"]
    assert disk.rows == []
    done = []

    async def barrier():
        await disk.stream.barrier()
        done.append(len(disk.rows))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(barrier)
        await memory.stream.barrier()
        assert not done
        gate.set()
    assert done == [1]


async def test_a_barrier_covers_all_that_was_acknowledged_before_it(feed, collect):
    collector = await collect()
    for number in range(100):
        key = b"key %d" % number
        await feed.put(key, b"v", level="memory" if number % 2 else "disk")
        if number % 5 == 0:
            await collector.stream.barrier()
            assert collector.state().get(key) == b"v"
    await collector.stream.barrier()
    assert len(collector.rows) == 100
    collector.check()


async def test_many_barriers_at_once(feed, collect):
    collector = await collect()
    reached = []

    async def barrier(number):
        await feed.put(b"%d" % number, b"v")
        await collector.stream.barrier()
        assert b"%d" % number in collector.state()
        reached.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(barrier, number)
    assert len(reached) == 100


async def test_a_barrier_of_an_empty_feed(collect):
    collector = await collect()
    await collector.stream.barrier()


async def test_a_barrier_is_cancelled_without_a_trace(feed, collect):
    collector = await collect()
    with trio.CancelScope() as scope:
        scope.cancel()
        await collector.stream.barrier()
    await collector.stream.barrier()
    assert not collector.stream._session._barriers


async def barriers_for_ever(stream):
    while True:
        await stream.barrier()
        await trio.lowlevel.checkpoint()


async def test_a_barrier_that_the_node_loses_again_and_again_comes_back(feed, collect, monkeypatch):
    collector = await collect()
    asked = []

    def lose(connection, frame):
        asked.append(trio.current_time())
        connection.answers.add(encode_frame(Opcode.BARRIER_LOST, bytes(frame.body)))
        connection.has_news()
        if len(asked) == 6:
            monkeypatch.undo()

    monkeypatch.setitem(handlers.HANDLERS, Opcode.BARRIER, lose)
    await feed.put(b"k", b"v")
    await collector.stream.barrier()
    assert len(collector.rows) == 1
    assert len(asked) == 6
    pauses = [FIRST_SECONDS / 2 * 2**tries for tries in range(5)]  # at least, with jitter
    assert asked[-1] - asked[0] >= sum(pauses), "each pause is longer than the one before"


async def test_a_barrier_of_a_loop_that_has_ended(feed, collect):
    collector = await collect()
    collector.stop()
    with pytest.raises(StreamEnded) as caught:
        await barriers_for_ever(collector.stream)
    assert caught.value.reason is EndReason.CLOSED


async def test_a_barrier_that_waits_when_the_loop_ends(running, feed, collect):
    """It does not hang."""
    collector = await collect()
    await running.stop()
    errors = []

    async def barrier():
        with pytest.raises(StreamEnded) as caught:
            await collector.stream.barrier()
        errors.append(caught.value.reason)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(barrier)
        await trio.testing.wait_all_tasks_blocked()
        collector.stop()
    assert errors == [EndReason.CLOSED]


async def test_a_barrier_after_the_end(feed):
    async with feed.consume(until="now") as stream:
        await read_all(stream)
        with pytest.raises(StreamEnded) as caught:
            await stream.barrier()
        assert caught.value.reason is EndReason.END_REACHED


async def test_iterating_over_a_stream_that_was_left(feed):
    async with feed.consume() as stream:
        pass
    with pytest.raises(StreamEnded):
        await stream.__anext__()


# Connections that break


async def test_a_stream_goes_on_after_its_connection_broke(running, feed, collect):
    """Whatever is written meanwhile is delivered, in order, and nothing twice."""
    collector = await collect()
    async with feed.writer(batch_rows=3, linger_s=0.0) as writer:
        for number in range(400):
            await writer.put(b"key %d" % (number % 50), b"%d" % number)
            if number % 40 == 20:
                running.cut_connections()
                await trio.lowlevel.checkpoint()
    await collector.stream.barrier()
    assert len(collector.rows) == 400
    collector.check()
    assert collector.state() == {b"key %d" % (n % 50): b"%d" % n for n in range(350, 400)}


async def test_a_stream_breaks_in_the_middle_of_large_blocks(running, client, nursery):
    feed = await client.create_feed("large", partitions=4)
    collector = await nursery.start(Collector(feed, window_bytes=300_000).run)
    value = os.urandom(100_000)
    async with feed.writer(batch_rows=2, linger_s=0.0) as writer:
        for number in range(60):
            await writer.put(b"%d" % number, value)
            if number % 10 == 5:
                running.cut_connections()
    await collector.stream.barrier()
    assert len(collector.rows) == 60
    collector.check()


async def test_barriers_survive_broken_connections(running, feed, collect):
    collector = await collect()
    for number in range(20):
        key = b"key %d" % number
        await feed.put(key, b"v")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collector.stream.barrier)
            await trio.lowlevel.checkpoint()
            running.cut_connections()
        assert collector.state().get(key) == b"v"
    collector.check()


@pytest.fixture
async def restarted(running, feed, collect):
    """A function that ends the node by ``end`` and starts it again, under a collector, which misses nothing."""

    async def restart(end):
        collector = await collect()
        await fill(feed)
        await collector.stream.barrier()
        await end()
        await running.start()
        await feed.put(b"after", b"v")
        await collector.stream.barrier()
        assert collector.rollbacks == []
        assert len(collector.rows) == 41
        collector.check()
        return collector

    return restart


async def test_a_clean_restart_is_not_noticed(running, restarted):
    collector = await restarted(running.stop)
    assert {p.log.term for p in collector.stream.positions.values()} == {1}


async def test_an_unclean_restart_that_has_lost_nothing_is_no_rollback(running, restarted):
    collector = await restarted(running.kill)
    assert collector.stream.positions[partition_of(b"after")].log.term == 2


async def lose_the_tail(running, feed, collector, tmp_path):
    """The node comes back without what was written at level memory after a copy of its data was taken."""
    await fill(feed)
    await collector.stream.barrier()
    running.copy_data(tmp_path / "copy")
    for number in range(10):
        await feed.put(b"key %d" % number, b"lost", level="memory")
    await collector.stream.barrier()
    await running.stop()
    running.put_back(tmp_path / "copy")
    await running.start()


async def test_what_the_node_has_lost_is_rolled_back(running, feed, collect, tmp_path):
    collector = await collect(visibility="memory")
    await lose_the_tail(running, feed, collector, tmp_path)
    await feed.put(b"after", b"v")
    await collector.stream.barrier()
    assert {partition for partition, _, _ in collector.rollbacks} == {partition_of(b"key %d" % n) for n in range(10)}
    collector.check()
    assert collector.refetched == {b"key %d" % n: b"v" for n in range(10)}
    assert collector.state() == {b"key %d" % n: b"v" for n in range(40)} | {b"after": b"v"}


async def test_a_rollback_may_end_the_stream(running, feed, collect, tmp_path):
    collector = await collect(visibility="memory", on_rollback="stop")
    await lose_the_tail(running, feed, collector, tmp_path)
    with pytest.raises(StreamEnded):
        await barriers_for_ever(collector.stream)
    while collector.error is None:
        await trio.lowlevel.checkpoint()
    assert collector.error.reason is EndReason.ROLLED_BACK


async def test_a_consumer_between_snapshots_whose_snapshot_was_lost(running, feed, tmp_path):
    """It was promised more than the node has now, and has handled none of it: it goes on, and waits for nothing."""
    await feed.put(b"k", b"1")
    running.copy_data(tmp_path / "copy")
    for value in (b"2", b"3"):
        await feed.put(b"k", value, level="memory")
    async with feed.consume(visibility="memory") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                break
        assert stream.latest_positions[partition_of(b"k")].snapshot_last == 1
        positions = Positions.parse(str(stream.latest_positions))
    assert positions.seqs()[partition_of(b"k")] == 1
    await running.stop()
    running.put_back(tmp_path / "copy")
    await running.start()
    version = await feed.put(b"k", b"4")
    assert version.seq == 2
    async with feed.consume(positions, visibility="memory") as stream:
        assert [(row[1], row[3]) for row in await read_until(stream, 1)] == [(2, b"4")]


async def test_a_dropped_feed_ends_its_streams(client, feed, collect):
    await fill(feed)
    with pytest.raises(tailrace.UnknownFeed, match="was dropped"):
        async with feed.consume() as stream:
            await client.drop_feed("orders")
            await read_all(stream)


async def test_a_node_that_is_behind_is_not_waited_for_for_ever(running, feed):
    """A directory restored from a backup, say: the consumer has seen a later term, and never rolls back for it."""
    async with tailrace.connect(running.url, retry_for=1.5) as client:
        async with feed.consume() as stream:
            log = FailoverLog([(b"x" * 16, 9, 5)])
            later = stream.positions.with_positions({p: Position.at(log, 5) for p in range(4)})
        with pytest.raises(tailrace.Unreachable, match="partition 0: behind: this node is at term 1"):
            async with client.feed("orders").consume(later):
                raise AssertionError("it was let in")


# Windows


@pytest.mark.parametrize("window_bytes", [1, 5000, 1 << 40])
async def test_any_window_lets_everything_through(run_node, node_config, window_bytes):
    """A node may grant less than what was asked for; credit comes in time all the same, not with the next noop."""
    limits = dataclasses.replace(node_config.limits, window_bytes_max=10_000, noop_interval_s=3600.0)
    config = dataclasses.replace(node_config, data=node_config.data + "-window", limits=limits)
    running = await run_node(config)
    async with tailrace.connect(running.url) as client:
        feed = await client.create_feed("f", partitions=2)
        for number in range(60):
            await feed.put(b"%d" % number, os.urandom(1000), level="memory")
        async with feed.consume(until="now", window_bytes=window_bytes) as stream:
            assert len(await read_all(stream)) == 60


@pytest.mark.slow
async def test_a_busy_consumer_tells_each_second_what_it_has_handled(run_node, node_config):
    """It takes a quarter of a second for each row, and has all rows at hand from the beginning."""
    limits = dataclasses.replace(node_config.limits, noop_interval_s=3600.0)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with tailrace.connect(running.url) as client:
        feed = await client.create_feed("f", partitions=1)
        for number in range(10):
            await feed.put(b"%d" % number, b"v", level="memory")
        async with feed.consume(until="now") as stream:
            told = set()
            async for event in stream:
                if isinstance(event, Mutations):
                    await trio.sleep(0.25)
                    told.add(max(connection.rounds.window.credited_bytes for connection in running.node.connections))
    assert len(told) >= 3, "nothing but the end of all rows was told"


async def test_a_consumer_that_does_not_read_holds_up_nobody(feed, collect):
    async with feed.consume(window_bytes=1000):
        await fill(feed, value=os.urandom(1000))
        collector = await collect()
        await collector.stream.barrier()
        assert len(collector.rows) == 40


async def test_status_tells_how_far_it_is(feed):
    await fill(feed)
    async with feed.consume() as stream:
        await read_until(stream, 40)
        statuses = stream.status().partitions
        assert [status.partition for status in statuses] == [0, 1, 2, 3]
        assert sum(status.seq for status in statuses) == 40
        assert all((status.lag, status.next_retry) == (0, None) for status in statuses)
