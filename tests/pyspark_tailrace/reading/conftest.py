"""Readers as Spark calls them, without Spark, against a node in this process: they block, so they run in threads."""

from __future__ import annotations

import functools

import pytest
import trio
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_tailrace.reading.batch_reader import BatchReader
from pyspark_tailrace.reading.options import batch_options, stream_options
from pyspark_tailrace.reading.schema import COLUMNS, FURTHER
from pyspark_tailrace.reading.stream_reader import StreamReader

TYPES = [IntegerType(), LongType(), BinaryType(), BinaryType(), BooleanType(), TimestampType(), BooleanType()]


def schema_of(columns):
    """As Spark makes it of the DDL; that needs a session."""
    types = dict(zip(COLUMNS | FURTHER, TYPES, strict=True))
    return StructType([StructField(name, types[name]) for name in columns])


class Query:
    """A streaming query's driver and tasks, run in threads of their own."""

    def __init__(self, url, feed, columns=COLUMNS, **options):
        self.options = stream_options({"url": url, "feed": feed, "retry_for": "60"} | options)
        self.reader = StreamReader(self.options, schema_of(columns))

    async def call(self, name, *arguments):
        return await trio.to_thread.run_sync(functools.partial(getattr(self.reader, name), *arguments))

    async def initial(self):
        return await self.call("initialOffset")

    async def latest(self, start, limit=None):
        limit = self.reader.getDefaultReadLimit() if limit is None else limit
        # Not of a moment ago: each test waits for what it has written.
        self.reader._node._good_until = 0.0
        return await self.call("latestOffset", start, limit)

    async def tasks(self, start, end):
        return await self.call("partitions", start, end)

    async def read(self, task):
        """A task's rows, as dicts."""
        return await trio.to_thread.run_sync(lambda: rows_of(self.reader.read(task)))

    async def rows(self, start, end):
        """The rows of a micro-batch as dicts, by partition and seq; those of a task in the order in which they come."""
        found = []
        for task in await self.tasks(start, end):
            found += await self.read(task)
        return sorted(found, key=lambda row: (row.get("partition", 0), row.get("seq", 0)))

    async def batches(self, start=None, limit=None):
        """Micro-batches until there is nothing new: the rows of each, and the last offset."""
        start = await self.initial() if start is None else start
        found = []
        while (end := await self.latest(start, limit)) != start:
            found.append(await self.rows(start, end))
            start = end
        return found, start


class Job(Query):
    """A batch job."""

    def __init__(self, url, feed, columns=COLUMNS, **options):
        self.options = batch_options({"url": url, "feed": feed, "retry_for": "60"} | options)
        self.reader = BatchReader(self.options, schema_of(columns))

    async def tasks(self):
        return await self.call("partitions")

    async def rows(self):
        found = []
        for task in await self.tasks():
            found += await self.read(task)
        return found


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def query(running):
    """Makes queries, and stops them at the end."""
    made = []

    def make(feed, columns=COLUMNS, **options):
        made.append(Query(running.url, feed, columns, **options))
        return made[-1]

    yield make
    for reading in made:
        reading.reader.stop()


@pytest.fixture
def job(running):
    """Makes batch jobs."""
    return lambda feed, columns=COLUMNS, **options: Job(running.url, feed, columns, **options)
