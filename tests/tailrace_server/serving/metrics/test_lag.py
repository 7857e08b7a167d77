"""The lag of consumers: exact for those that wait, that work, and that stand still."""

from __future__ import annotations

import contextlib

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace_server.serving.metrics import first_rows
from tailrace_server.serving.metrics.catalogue import CONSUMERS_MAX, OTHER

SECOND = 1_000_000


class WallClock:
    """A clock of the node whose wall time a test moves."""

    def __init__(self, clock):
        self._clock = clock
        self.at_us = clock.wall_us()

    def monotonic(self):
        return self._clock.monotonic()

    def wall_us(self):
        return self.at_us


@pytest.fixture
def wall(running, monkeypatch):
    """The wall clock of the node, which stands still."""
    node = running.node
    wall = WallClock(node.services.clock)
    monkeypatch.setattr(node.services, "clock", wall)
    return wall


@contextlib.asynccontextmanager
async def consumer(running, name="c", feed="orders", **options):
    async with (
        tailrace.connect(running.url, name=name, retry_for=60) as client,
        client.feed(feed).consume(**options) as stream,
    ):
        yield stream


async def read(stream, count):
    """Handles events until ``count`` mutations have come; the last event counts as handled."""
    async for event in stream:
        count -= len(event) if isinstance(event, tailrace.Mutations) else 0
        if count <= 0 and isinstance(event, tailrace.RoundComplete):
            return


async def put_each_second(feed, wall, count, key=b"k"):
    """Puts rows a second apart; the clock is a second behind the last one then."""
    for number in range(count):
        await feed.put(key + b"%d" % number, b"v")
        wall.at_us += SECOND


def lag(found, name="c", feed="orders"):
    """The lag of a consumer in seconds and in mutations."""
    labels = {"consumer": name, "feed": feed}
    return tuple(found.value(f"tailrace_consumer_lag_{unit}", **labels) for unit in ("seconds", "mutations"))


async def keep_reading(stream):
    async for _ in stream:
        pass


async def until_lag(scraped, wanted):
    """Scrapes until the lag is this. A consumer credits what it has handled within some seconds."""
    while True:
        found = await scraped()
        if lag(found) == wanted:
            return found
        await trio.sleep(0.05)


async def test_a_consumer_of_a_quiet_feed_has_no_lag(feed, scraped, running, wall):
    async with consumer(running):
        assert lag(await scraped()) == (0, 0)
        wall.at_us += 100 * SECOND
        assert lag(await scraped()) == (0, 0)


@pytest.mark.slow
async def test_a_consumer_that_has_handled_all_has_none_however_old_the_rows_are(feed, scraped, running, wall, nursery):
    await put_each_second(feed, wall, 5)
    async with consumer(running) as stream:
        nursery.start_soon(keep_reading, stream)
        wall.at_us += 100 * SECOND
        await until_lag(scraped, (0, 0))
        wall.at_us += 100 * SECOND
        found = await scraped()
        assert lag(found) == (0, 0)
        assert found.value("tailrace_consumer_streams", consumer="c", feed="orders") == 4
        nursery.cancel_scope.cancel()


async def test_the_lag_of_a_consumer_that_stopped_grows(feed, scraped, running, wall):
    """It is connected and reads no more: what it was sent counts as much as what it was not."""
    async with consumer(running):
        await feed.put(b"first", b"v")
        wall.at_us += 7 * SECOND
        await feed.put(b"second", b"v")
        await until_sent(running, 2)
        assert lag(await scraped()) == (7, 2)
        wall.at_us += 60 * SECOND
        assert lag(await scraped()) == (67, 2)


async def until_sent(running, blocks):
    def sent():
        return sum(connection.rounds.window.sent_blocks for connection in running.node.connections) >= blocks

    await until(sent)


@pytest.mark.slow
async def test_the_lag_is_the_age_of_the_oldest_row_that_is_not_handled(feed, scraped, running, wall):
    """The rows are a second apart, and the consumer goes on by one each time."""
    await put_each_second(feed, wall, 5)
    async with consumer(running, partitions=None) as stream:
        handled = []
        async for event in stream:
            if not isinstance(event, tailrace.Mutations):
                continue
            # The event before this one is handled, and credited within some seconds.
            left = sorted(5 - int(key[1:]) for key in (b"k0", b"k1", b"k2", b"k3", b"k4") if key not in handled)
            await until_lag(scraped, (left[-1], len(left)))
            handled += event.keys()
            if len(handled) == 5:
                break


async def test_a_full_window_leaves_rows_unsent(feed, scraped, running, wall):
    async with consumer(running, window_bytes=1):
        await put_each_second(feed, wall, 3)
        await until_sent(running, 1)
        assert lag(await scraped()) == (3, 3)
        wall.at_us += 10 * SECOND
        await feed.put(b"later", b"v")
        assert lag(await scraped()) == (13, 4)


async def test_flushed_rows_are_found_in_segments(feed, scraped, running, wall):
    await feed.put(b"before", b"v")
    async with consumer(running, window_bytes=1):
        await until_sent(running, 1)
        wall.at_us += SECOND
        await put_each_second(feed, wall, 20)
        before = lag(await scraped())
        for partition in running.node.feeds.partitions():
            await running.node.storage.flusher.flush_all(partition)
        assert lag(await scraped()) == before == (21, 21)


async def first_above(running, partition, seq):
    """The timestamp as a new scrape finds it, with a read of the segment if that is needed."""
    rows = first_rows.FirstRows(running.node.services)
    rows.begin()
    found = rows.above(partition, seq)
    if found is not None and found.segment is not None:
        await rows.read([(partition, seq, found.segment)])
        found = rows.above(partition, seq)
    return None if found is None else found.timestamp


@pytest.mark.parametrize("flushes", [(), (7,), (3, 9), (12,)])
@pytest.mark.parametrize("merged", [False, True])
async def test_the_first_row_above_each_seq(client, running, wall, flushes, merged):
    """In the tree, merged or not, at the ends of segments and inside of them."""
    feed = await client.create_feed("one", partitions=1)
    [partition] = running.node.feeds.named("one").partitions
    stamps = []
    for number in range(12):
        stamps.append(wall.at_us)
        await feed.put(b"%d" % number, b"v")
        if number + 1 in flushes:
            await running.node.storage.flusher.flush_all(partition)
        wall.at_us += SECOND
    if merged:
        for _ in range(64):
            stamps.append(wall.at_us)
            await feed.put(b"more", b"v")
            wall.at_us += SECOND
        partition.replace_tree(partition.tree.merge_aged(partition.stable_seq, partition.merge_cuts))
    found = [await first_above(running, partition, seq) for seq in range(len(stamps) + 1)]
    assert found == [*stamps, None]


async def test_compacted_rows_are_not_waited_for(client, running, wall):
    """A row that was superseded and dropped is none that a consumer lacks."""
    feed = await client.create_feed("one", partitions=1)
    node = running.node
    [partition] = node.feeds.named("one").partitions
    for key in (b"a", b"b", b"a", b"c"):
        await feed.put(key, b"v")
        await node.storage.flusher.flush_all(partition)
        wall.at_us += SECOND
    begin = wall.at_us - 4 * SECOND
    await until(lambda: len(partition.chain.segments) == 1)
    found = [(await first_above(running, partition, seq) - begin) // SECOND for seq in range(4)]
    assert found == [1, 1, 2, 3]


async def test_reads_are_bounded_and_go_on_with_the_next_scrape(client, running, wall, monkeypatch):
    monkeypatch.setattr(first_rows, "READS_MAX", 1)
    feed = await client.create_feed("one", partitions=1)
    [partition] = running.node.feeds.named("one").partitions
    stamps = []
    for number in range(5):
        stamps.append(wall.at_us)
        await feed.put(b"%d" % number, b"v")
        wall.at_us += SECOND
    await running.node.storage.flusher.flush_all(partition)
    rows = first_rows.FirstRows(running.node.services)
    bounds = []
    for _ in range(3):
        rows.begin()
        wanted = [(partition, seq, rows.above(partition, seq).segment) for seq in (2, 3)]
        await rows.read([each for each in wanted if each[2] is not None])
        bounds.append([rows.above(partition, seq).timestamp for seq in (2, 3)])
    assert bounds == [[stamps[2], stamps[0]], [stamps[2], stamps[3]], [stamps[2], stamps[3]]]


async def test_consumers_above_the_bound_are_others(feed, scraped, running, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.metrics.scrape.CONSUMERS_MAX", 2)
    running.node._scrapes._consumers._names_max = 2
    assert CONSUMERS_MAX > 2
    async with contextlib.AsyncExitStack() as stack:
        for name in ("a", "b", "c", "d"):
            await stack.enter_async_context(consumer(running, name=name))
        found = await scraped()
        assert len(found.by("tailrace_consumer_streams", "consumer")) == 3
        assert found.value("tailrace_consumer_streams", consumer=OTHER, feed="orders") == 8


async def test_connections_that_share_a_name_share_a_lag(feed, scraped, running, wall):
    await put_each_second(feed, wall, 1)
    async with consumer(running, name=None), consumer(running, name=None):
        await until_sent(running, 2)
        found = await scraped()
        assert lag(found, "unnamed") == (1, 2)
        assert found.value("tailrace_consumer_streams", consumer="unnamed", feed="orders") == 8


async def test_a_stream_with_an_end_lags_up_to_its_end_only(feed, scraped, running, wall):
    await put_each_second(feed, wall, 2)
    async with consumer(running, until="now", window_bytes=1):
        await put_each_second(feed, wall, 5, key=b"later")
        seconds, mutations = lag(await scraped())
        assert (seconds, mutations) == (7, 2)
