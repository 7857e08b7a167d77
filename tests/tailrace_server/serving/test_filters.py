"""Filtered consumers over real connections: live, from segments, folded or not, across reconnects, with barriers."""

import dataclasses
import os

import pytest
import trio

from tailrace import Mutations, Rollback, SnapshotEnd
from tailrace.errors import TooLarge
from tailrace_server.config import StorageConfig

PARTITIONS = 4


@pytest.fixture
def node_config(node_config):
    """Nothing is flushed by itself."""
    storage = StorageConfig(flush_age_s=1e9, reserve_bytes=0, free_bytes_min=0)
    return dataclasses.replace(node_config, storage=storage)


class Reader:
    """Reads a stream in a task of its own; ``state`` and ``rows`` are what it was given."""

    def __init__(self, feed, since="beginning", **arguments):
        self.feed, self.since, self.arguments = feed, since, arguments
        self.state, self.rows = {}, []
        self.stream = None

    async def run(self, *, task_status=trio.TASK_STATUS_IGNORED):
        async with self.feed.consume(self.since, **self.arguments) as self.stream:
            task_status.started(self)
            async for event in self.stream:
                assert not isinstance(event, Rollback)
                if isinstance(event, Mutations):
                    self.take(event)

    def take(self, event):
        for row in event:
            self.rows.append((row.key, row.value, row.deleted))
            if row.deleted:
                self.state.pop(row.key, None)
            else:
                self.state[row.key] = row.value


async def write(feed, count):
    """Puts of orders and users, and deletions of some of both; the state of orders that they come to."""
    state = {}
    async with feed.writer() as writer:
        for number in range(count):
            order, user = b"order/%d" % (number % 50), b"user/%d" % number
            value = b"%d " % number + os.urandom(40) * 3
            await writer.put(order, value)
            await writer.put(user, value)
            state[order] = value
            if number % 7 == 0:
                await writer.delete(order)
                await writer.delete(user)
                del state[order]
    return state


async def flush(node):
    for partition in node.feeds.partitions():
        await node.storage.flusher.flush(partition)


async def consume(feed, since="beginning", **arguments):
    """What a consumer has that reads all that is there now, and its stream."""
    reader = Reader(feed, since, until="now", **arguments)
    await reader.run()
    return reader


async def test_live_writes_and_a_barrier(feed, nursery):
    reader = await nursery.start(Reader(feed, key_prefix=b"order/").run)
    state = await write(feed, 300)
    await reader.stream.barrier()
    assert reader.state == state
    assert all(key.startswith(b"order/") for key, _, _ in reader.rows)
    for number in range(20):
        await feed.put(b"user/%d" % number, b"")
    await reader.stream.barrier()
    assert reader.state == state
    assert [status.lag for status in reader.stream.status().partitions] == [0] * PARTITIONS
    infos = await feed.partitions()
    assert reader.stream.latest_positions.seqs() == {info.id: info.high_seq for info in infos}


@pytest.mark.parametrize(("segments", "folded"), [(2, False), (5, True)])
async def test_segments_and_the_tree(running, feed, segments, folded):
    """A node folds several segments by itself."""
    node = running.node
    for _ in range(segments):
        await write(feed, 100)
        await flush(node)
    partitions = [partition for found in node.feeds for partition in found.partitions]
    while folded and not all(p.chain.segments[0].identity.deduplicated for p in partitions):
        await trio.lowlevel.checkpoint()
    state = await write(feed, 200)
    reader = await consume(feed, key_prefix=b"order/")
    assert reader.state == state
    keys = await consume(feed, key_prefix=b"order/", keys_only=True)
    assert keys.state == dict.fromkeys(state)
    assert all(value is None for _, value, _ in keys.rows)
    everything = await consume(feed, keys_only=True)
    assert {key for key in everything.state if key.startswith(b"order/")} == state.keys()
    assert {item.key: item.value async for item in feed.items(key_prefix=b"order/")} == state


async def test_a_filter_that_matches_nothing_resumes_where_everything_was_passed_over(running, feed):
    await write(feed, 200)
    await flush(running.node)
    await write(feed, 10)
    ends = []
    async with feed.consume(key_prefix=b"other/", until="now") as stream:
        async for event in stream:
            assert not isinstance(event, Mutations)
            ends += [event] if isinstance(event, SnapshotEnd) else []
        positions = stream.latest_positions
    assert positions.seqs() == {info.id: info.high_seq for info in await feed.partitions()}
    assert {(end.partition, end.last_seq) for end in ends} >= set(positions.seqs().items())
    await feed.put(b"other/1", b"v")
    reader = await consume(feed, positions, key_prefix=b"other/")
    assert reader.rows == [(b"other/1", b"v", False)]


async def test_a_filtered_consumer_goes_on_after_a_lost_connection(running, feed, nursery):
    reader = await nursery.start(Reader(feed, key_prefix=b"order/", keys_only=True).run)
    await write(feed, 50)
    await reader.stream.barrier()
    rows = len(reader.rows)
    running.cut_connections()
    await feed.put(b"user/1", b"v")
    await feed.put(b"order/new", b"v")
    await reader.stream.barrier()
    assert reader.rows[rows:] == [(b"order/new", None, False)]


async def test_filters_that_no_node_would_take(feed):
    with pytest.raises(TypeError, match="key_prefix is 'order/'"):
        feed.consume(key_prefix="order/")
    with pytest.raises(TypeError, match="keys_only is 1"):
        feed.consume(keys_only=1)
    with pytest.raises(ValueError, match="4097 bytes"):
        feed.items(key_prefix=bytes(4097))
    with pytest.raises(TooLarge):
        await feed.put(bytes(4097), b"")
