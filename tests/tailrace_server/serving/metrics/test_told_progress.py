"""The lag of a consumer that tells its progress: as long as it is connected, and after it has gone."""

from __future__ import annotations

import contextlib

import pytest
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.console.test_api import asking
from tests.tailrace_server.serving.metrics.test_lag import SECOND, lag, put_each_second, wall  # noqa: F401
from tests.tailrace_server.serving.metrics.test_stopped import streams

import tailrace
from tailrace.errors import UnknownFeed
from tailrace.model import Level
from tailrace.wire.opcodes import Opcode
from tailrace.wire.progress import Progress

NAME = "spark revenue"


class Query:
    """A program that tells its progress."""

    def __init__(self, client, node):
        self.client = client
        self.node = node

    async def tell(self, feed_id=None, seqs=None):
        """Tells these seqs; by default that all rows of "orders" are handled."""
        feed = self.node.feeds.named("orders")
        seqs = {partition.id: partition.high_seq for partition in feed.partitions} if seqs is None else seqs
        told = Progress(feed.info.feed_id if feed_id is None else feed_id, Level.DISK, seqs)
        return await self.client.call(Opcode.PROGRESS, told.to_json())


@contextlib.asynccontextmanager
async def query(running):
    async with tailrace.connect(running.url, name=NAME, retry_for=60) as client:
        yield Query(client, running.node)


async def test_it_is_0_once_all_is_handled_and_grows_from_the_next_row_on(running, feed, wall, scraped):  # noqa: F811
    await put_each_second(feed, wall, 5)
    assert lag(await scraped(), NAME) == (None, None)
    async with query(running) as told:
        assert await told.tell() == {}
        wall.at_us += 100 * SECOND
        found = await scraped()
        assert (lag(found, NAME), streams(found, NAME)) == ((0, 0), 0)
        await feed.put(b"k", b"v")
        wall.at_us += 7 * SECOND
        assert lag(await scraped(), NAME) == (7, 1)
        await told.tell()
        assert lag(await scraped(), NAME) == (0, 0)


async def test_it_goes_on_growing_when_the_query_has_gone(running, feed, node, wall, scraped):  # noqa: F811
    async with query(running) as told:
        await told.tell()
    await until(lambda: len(node.services.stopped) == 1)
    await feed.put(b"k", b"v")
    wall.at_us += 60 * SECOND
    assert lag(await scraped(), NAME) == (60, 1)


async def test_a_seq_that_was_rolled_back_counts_as_the_newest(running, feed, scraped):
    await feed.put(b"k", b"v")
    async with query(running) as told:
        await told.tell(seqs=dict.fromkeys(range(4), 1_000))
        assert lag(await scraped(), NAME) == (0, 0)


async def test_a_feed_or_partition_that_is_not_there_is_refused(running, feed):
    async with query(running) as told:
        with pytest.raises(UnknownFeed, match="no feed has the id"):
            await told.tell(bytes(16))
        with pytest.raises(UnknownFeed, match="feed orders has no partition 4: it has 4"):
            await told.tell(seqs={4: 0, 9: 0})


async def test_the_console_shows_it_as_a_query_of_spark_that_gets_on(running, feed):
    def state(value):
        return [each["state"] for each in value["consumers"]]

    async with asking(running.node) as ask:
        async with query(running) as told:
            await told.tell()
            await ask.until("/api/consumers", lambda value: state(value) == ["current"])
            await feed.put(b"k", b"v")
            value = await ask.until("/api/consumers", lambda value: state(value) == ["moving"])
            [row] = value["consumers"]
            assert (row["kind"], row["name"], row["streams"]) == ("spark", NAME, 0)
            assert (row["lag_mutations"], row["sent"] + 1) == (1, row["high"])
            assert "batch" in row["reason"]
        value = await ask.until("/api/consumers", lambda value: state(value) == ["away"])
        assert value["consumers"][0]["kind"] == "spark"
