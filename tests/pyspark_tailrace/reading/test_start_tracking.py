"""Micro-batches of a Spark that tells neither start nor limit, as it calls the reader: 4.0 and 4.1."""

from __future__ import annotations

import functools
import logging

import pytest
import trio
from tests.pyspark_tailrace.reading.conftest import Query, schema_of
from tests.pyspark_tailrace.reading.test_stream_reader import write_many

from pyspark_tailrace.reading.schema import COLUMNS
from pyspark_tailrace.reading.start_tracking import StartTrackingReader


class OlderQuery(Query):
    """A run of a query; ``checkpoint`` is the end of its last micro-batch."""

    def __init__(self, url, feed, **options):
        super().__init__(url, feed, **options)
        self.reader = StartTrackingReader(self.options, schema_of(COLUMNS))

    async def next(self):
        self.reader._node._good_until = 0.0
        return await trio.to_thread.run_sync(functools.partial(self.reader.latestOffset))

    async def batches(self, start=None):
        """The rows of all micro-batches up to the end, and the last offset."""
        if start is not None:
            await self.tasks(start, start)  # what Spark does for a query that it starts again
        found = []
        while (end := await self.next()) != start:
            start = start or await self.initial()
            if end == start:
                break
            found.append(await self.rows(start, end))
            start = end
        return found, start


@pytest.fixture
def older(running):
    made = []

    def make(feed, **options):
        made.append(OlderQuery(running.url, feed, **options))
        return made[-1]

    yield make
    for reading in made:
        reading.reader.stop()


def sizes(batches):
    return [len(rows) for rows in batches]


async def test_limits_are_kept_without_spark(client, older):
    feed = await client.create_feed("c", partitions=2, retention="history")
    await write_many(feed, 50)
    found, end = await older("c", maxRowsPerTrigger="20").batches()
    assert sizes(found) == [20, 20, 10]
    await write_many(feed, 30)
    more, _ = await older("c", maxRowsPerTrigger="20").batches(end)
    assert sizes(more) == [20, 10]
    rows = [(row["partition"], row["seq"]) for batch in found + more for row in batch]
    assert len(set(rows)) == len(rows) == 80


async def test_without_limits_a_micro_batch_takes_everything(client, older):
    feed = await client.create_feed("c", partitions=2, retention="history")
    await write_many(feed, 50)
    found, _ = await older("c").batches()
    assert sizes(found) == [50]


async def test_an_end_that_is_asked_for_twice_is_the_same(client, older):
    feed = await client.create_feed("c", partitions=2, retention="history")
    await write_many(feed, 50)
    reading = older("c", maxRowsPerTrigger="20")
    assert await reading.next() == await reading.next()


async def test_rows_that_a_limit_leaves_are_told_once(client, older, caplog):
    feed = await client.create_feed("c", partitions=2, retention="history")
    await write_many(feed, 50)
    with caplog.at_level(logging.WARNING, "tailrace.spark"):
        await older("c").batches()
        assert not caplog.records
        await older("c", maxRowsPerTrigger="20").batches()
    [record] = caplog.records
    assert "leaves 30 mutations to later micro-batches" in record.getMessage()


async def test_an_end_that_spark_wants_before_it_tells_the_start(client, older):
    """The limit would count from the beginning of the feed, and the query would go back to there."""
    feed = await client.create_feed("c", partitions=2, retention="history")
    await write_many(feed, 50)
    _, checkpoint = await older("c").batches()
    limited = older("c", maxRowsPerTrigger="20")
    await limited.next()
    with pytest.raises(ValueError, match=r"triggerAvailableNowWrapper\.enabled is true: set it to false, or leave out"):
        await limited.tasks(checkpoint, checkpoint)
    whole = older("c")
    assert await whole.next() == checkpoint
    assert await whole.tasks(checkpoint, checkpoint) == []
