"""Each reason for which a single node ends a stream, over real sockets, and the consumer's reaction (docs/protocol)."""

import dataclasses
import os

import pytest
import trio

from tailrace import DataGone, EndReason, Mutations, Rollback, UnknownFeed
from tailrace.errors import NotDurable
from tailrace_server.config import StorageConfig


@pytest.fixture
def node_config(node_config):
    """Nothing is flushed for its age."""
    storage = StorageConfig(flush_age_s=1e9, reserve_bytes=0, free_bytes_min=0)
    return dataclasses.replace(node_config, storage=storage)


@pytest.fixture(params=["compact"])
async def feed(client, node, request):
    """A feed of one partition."""
    node.storage.compactor.consider = lambda partition: None  # folds are of a test's own making
    return await client.create_feed("orders", partitions=1, retention=request.param)


class Consumer:
    """A loop over a stream, which may have to wait after mutations. ``state`` is what these and rollbacks come to."""

    def __init__(self, feed, *, paused=False, **options):
        self.stream = feed.consume(**options)
        self.state, self.rollbacks, self.error = {}, [], None
        self.may_go_on = trio.Event()
        if not paused:
            self.may_go_on.set()

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        try:
            async with self.stream:
                task_status.started(self)
                async for event in self.stream:
                    self.take(event)
                    if isinstance(event, Mutations):
                        await self.may_go_on.wait()
        except Exception as error:  # whatever it is: a test looks at it
            self.error = error

    def take(self, event):
        if isinstance(event, Rollback):
            self.rollbacks.append((event.seq, event.keys))
            if event.keys is None:
                self.state.clear()
        elif isinstance(event, Mutations):
            self.state |= dict(zip(event.keys(), event.values(), strict=True))

    @property
    def status(self):
        return self.stream.status().partitions[0]

    async def ends_with(self, reason):
        """Returns once a stream has ended for ``reason``."""
        await until(lambda: self.status.last_end is reason)

    async def has(self, key, value):
        await until(lambda: self.state.get(key) == value)


async def until(condition):
    while not condition():
        await trio.lowlevel.checkpoint()


@pytest.fixture
async def consume(nursery, feed):
    async def start(**options):
        return await nursery.start(Consumer(feed, **options).run)

    return start


@pytest.fixture
async def consumer(consume, feed):
    """A consumer that has the two mutations that there are."""
    await feed.put(b"a", b"1")
    await feed.put(b"b", b"1")
    started = await consume()
    await started.stream.barrier()
    return started


def partition_of(node):
    [partition] = node.feeds.named("orders").partitions
    return partition


def connection_of(node):
    """The one with the consumer's stream."""
    [connection] = [connection for connection in node.connections if connection.rounds.slots]
    return connection


async def test_end_reached(consume, feed):
    await feed.put(b"a", b"1")
    consumer = await consume(until="now")
    await consumer.ends_with(EndReason.END_REACHED)
    assert consumer.status.state == "ended"
    await consumer.has(b"a", b"1")
    assert consumer.error is None


async def test_closed(node, consumer, feed):
    """Which the node says to who has asked for it; a consumer that has not asks again."""
    connection = connection_of(node)
    for stream_id in list(connection.rounds.slots):
        connection.rounds.close(stream_id, EndReason.CLOSED, "closed by a test")
    connection.pump()
    await consumer.ends_with(EndReason.CLOSED)
    await feed.put(b"a", b"2")
    await consumer.has(b"a", b"2")
    assert consumer.rollbacks == []


async def test_behind(running, consumer, feed, tmp_path):
    """An older copy of the data: the consumer waits for a node that knows as much, and undoes nothing."""

    async def unclean_restart():
        await running.kill()
        await running.start()

    await running.stop()
    running.copy_data(tmp_path / "older")
    await running.start()
    for number in range(3):
        await unclean_restart()
        await feed.put(b"c", b"%d" % number)
    await consumer.has(b"c", b"2")
    await running.stop()
    running.copy_data(tmp_path / "newer")
    running.put_back(tmp_path / "older")
    await running.start()
    await consumer.ends_with(EndReason.BEHIND)
    assert "the consumer has seen" in consumer.status.reason
    await running.stop()
    running.put_back(tmp_path / "newer")
    await running.start()
    await feed.put(b"a", b"2")
    await consumer.has(b"a", b"2")
    assert consumer.rollbacks == []


async def late(consume, feed):
    """A consumer that has taken the first mutation of three, and takes no more for now: the node has to wait."""
    await feed.put(b"a", b"1")
    consumer = await consume(paused=True, window_bytes=1)
    await until(lambda: consumer.state)
    await feed.put(b"b", b"1")
    await feed.put(b"c", b"1")
    return consumer


async def test_purged(node, consume, feed):
    """Between two snapshots: the stream ends, and the request after it is told to begin anew."""
    consumer = await late(consume, feed)
    partition_of(node).purge_seq = 2
    consumer.may_go_on.set()
    await consumer.ends_with(EndReason.PURGED)
    await consumer.has(b"c", b"1")
    assert consumer.rollbacks == [(0, None)]
    assert consumer.state == {b"a": b"1", b"b": b"1", b"c": b"1"}


@pytest.mark.parametrize("feed", ["history"], indirect=True)
async def test_trimmed(node, consume, feed):
    consumer = await late(consume, feed)
    partition_of(node).trim_seq = 2
    consumer.may_go_on.set()
    await until(lambda: consumer.error is not None)
    assert isinstance(consumer.error, DataGone)
    assert consumer.error.first_seq == 3
    assert consumer.status.last_end is EndReason.TRIMMED


@pytest.mark.parametrize("feed", ["history"], indirect=True)
async def test_trimmed_while_it_was_away(running, consume, consumer, feed):
    positions = consumer.stream.positions
    partition_of(running.node).trim_seq = 3
    async with trio.open_nursery() as nursery:
        late = Consumer(feed, since=positions)
        nursery.start_soon(late.run)
    assert isinstance(late.error, DataGone)
    assert "the kept mutations begin above seq 3" in str(late.error)
    assert late.error.first_seq == 4


async def test_draining(node, consumer, feed):
    connection = connection_of(node)
    connection.drain()
    await consumer.ends_with(EndReason.DRAINING)
    await until(lambda: connection.received_at and consumer.status.state == "waiting")
    connection.draining, connection.rounds._draining = False, ""
    await feed.put(b"a", b"2")
    await consumer.has(b"a", b"2")
    assert consumer.rollbacks == []


async def test_draining_and_another_start(running, consumer, feed):
    await running.stop()
    await running.start()
    await feed.put(b"a", b"2")
    await consumer.has(b"a", b"2")
    assert consumer.status.last_end is EndReason.DRAINING
    assert consumer.rollbacks == []


async def test_too_slow(node, consume, feed):
    """It reads a segment that has been folded since, and the disk is nearly full; then it goes on with the new one."""
    partition = partition_of(node)
    for number in range(4):
        for row in range(20):
            await feed.put(b"%d" % row, b"%d " % number + os.urandom(200_000))
        await node.storage.flusher.flush(partition)
    slow = await consume(paused=True, window_bytes=1)
    await until(lambda: slow.state)
    while await node.storage.compactor.compact(partition, node.feeds.of_id(partition.feed_id).info):
        pass
    assert node.storage.pins.retired_bytes
    node.storage.space.on_low()
    assert not node.storage.pins.retired_bytes
    slow.may_go_on.set()
    await slow.ends_with(EndReason.TOO_SLOW)
    await slow.stream.barrier()
    assert {value[:2] for value in slow.state.values()} == {b"3 "}
    assert len(slow.state) == 20
    assert slow.error is None


async def test_feed_dropped(client, consumer):
    await client.drop_feed("orders")
    await until(lambda: consumer.error is not None)
    assert isinstance(consumer.error, UnknownFeed)
    assert consumer.status.last_end is EndReason.FEED_DROPPED


async def test_error(node, consume, feed):
    """What is in memory only will never be durable: a stream that shows it ends, and asks again."""
    await feed.put(b"a", b"1")
    consumer = await consume(visibility="memory")
    await consumer.has(b"a", b"1")
    node.storage.on_failed(NotDurable("the journal cannot be written: a test"))
    node.connections.flush()
    await consumer.ends_with(EndReason.ERROR)
    await feed.put(b"a", b"2")
    await consumer.has(b"a", b"2")
