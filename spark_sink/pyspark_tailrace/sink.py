"""The sink: each task writes its rows as blocks, acknowledged at level disk before the micro-batch commits.

Delivery is at least once: a task that Spark runs again writes again. What a task itself sends again, after a broken
connection or while the node restarts, is written once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from pyspark_tailrace.options import SinkOptions
from pyspark_tailrace.routing import Router
from tailrace import blocking

IN_FLIGHT_BYTES = 8 * 1024 * 1024  # a task's: several run on one machine


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver: counts only, since these travel through it."""

    partition: int
    rows: int
    blocks: int


class StreamSink(DataSourceStreamArrowWriter):
    """``df.writeStream.format("tailrace")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows; returns once the node has them on disk."""
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what the tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what was written stays, and the batch is written again when the query is restarted."""


class BatchSink(DataSourceArrowWriter):
    """``df.write.format("tailrace").mode("append")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes a task's rows; returns once the node has them on disk."""
        return write_batches(self._options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what the tasks have written is there."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing: what was written stays."""


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises ValueError where the columns are not those that the sink takes; says which and what to do."""
    types = {field.name: field.dataType for field in schema.fields}
    wanted: dict[str, tuple[type, ...]] = {
        options.key: (BinaryType, StringType),
        options.value: (BinaryType, StringType),
    }
    if options.deleted in types:
        wanted[options.deleted] = (BooleanType,)
    if options.partition_column is not None:
        wanted[options.partition_column] = (ByteType, ShortType, IntegerType, LongType)
    for name, permitted in wanted.items():
        if name not in types:
            raise ValueError(f"there is no column {name!r}; the columns are {', '.join(types)}")
        if not isinstance(types[name], permitted):
            names = " or ".join(kind().typeName() for kind in permitted)
            raise ValueError(f"column {name!r} is {types[name].simpleString()}, and has to be {names}")
    for name, _ in options.order_by:
        if name not in types:
            raise ValueError(f"option 'order_by': there is no column {name!r}; the columns are {', '.join(types)}")
    extra = types.keys() - wanted.keys() - {name for name, _ in options.order_by}
    if extra:
        raise ValueError(
            f"the sink has no use for the columns {', '.join(sorted(extra))}: put them into {options.value!r}, for "
            "example by to_json(struct(...)), or drop them"
        )


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """The body of a task."""
    context = TaskContext.get()
    partition = -1 if context is None else context.partitionId()
    rows = blocks = 0
    writer: blocking.Writer | None = None
    router: Router | None = None
    for batch in _in_order(options, batches):
        if not batch.num_rows:
            continue
        if writer is None or router is None:
            feed, writer = _open(options)
            router = Router(feed.resolve().partitions)
        keys, values, numbers = _columns(batch, options)
        for block in router.add(keys, values, numbers):
            _send(options, writer, block)
            blocks += 1
        rows += batch.num_rows
    if writer is not None and router is not None:
        for block in router.rest():
            _send(options, writer, block)
            blocks += 1
        with _forgetting_on_error(options):
            writer.flush()
    return Written(partition, rows, blocks)


def _in_order(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The task's rows by ``order_by``: all of them are held in memory for it."""
    if not options.order_by:
        yield from batches
        return
    held = list(batches)
    if held:
        keys = [(name, "descending" if descending else "ascending") for name, descending in options.order_by]
        table = pa.Table.from_batches(held)
        held.clear()
        # A sort of the small columns first, then slices: a sorted copy of everything would double the memory.
        order = pc.sort_indices(table.select([name for name, _ in keys]), sort_keys=keys)
        for start in range(0, len(order), _SLICE_ROWS):
            yield from table.take(order[start : start + _SLICE_ROWS]).combine_chunks().to_batches()


_SLICE_ROWS = 10_000


def _columns(batch: pa.RecordBatch, options: SinkOptions) -> tuple[Any, Any, Any | None]:
    """Keys and values as binary arrays, nulls in place of the values of deletions; the partition column, if any."""
    keys, values = _binary(batch.column(options.key)), _binary(batch.column(options.value))
    if options.deleted in batch.schema.names:
        deleted = pc.fill_null(batch.column(options.deleted), False)
        values = pc.if_else(deleted, pa.scalar(None, pa.binary()), values)
    numbers = None if options.partition_column is None else batch.column(options.partition_column)
    return keys, values, numbers


def _binary(column: Any) -> Any:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


# Spark's Python workers live on from task to task. So does the connection, and with it the writer's producer: were it
# a new one for each task, the node would soon have to forget some.
_cache: dict[tuple[int, SinkOptions], tuple[blocking.Client, blocking.Feed, blocking.Writer]] = {}


def _open(options: SinkOptions) -> tuple[blocking.Feed, blocking.Writer]:
    key = (os.getpid(), options)
    held = _cache.get(key)
    if held is None:
        client = blocking.connect(
            options.url,
            token=options.token,
            name="spark sink",
            connect_timeout=options.retry_for_s,
            retry_for=options.retry_for_s,
        )
        client.__enter__()
        try:
            feed = client.feed(options.feed)
            if options.create_feed:
                feed = client.create_feed(options.feed, partitions=options.partitions)
            held = _cache[key] = (client, feed, feed.writer(in_flight_bytes=IN_FLIGHT_BYTES))
        except BaseException:
            client.close()
            raise
    return held[1], held[2]


def _send(options: SinkOptions, writer: blocking.Writer, block: Any) -> None:
    with _forgetting_on_error(options):
        writer.send(block)


class _forgetting_on_error:
    """A writer that has failed is not used again: the next task begins with another one."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is not None:
            held = _cache.pop((os.getpid(), self._options), None)
            if held is not None:
                held[0].close()
