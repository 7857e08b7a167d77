"""The sink: each task writes its rows as blocks, acknowledged at level disk or quorum before the micro-batch commits.

Delivery is at least once: a task that Spark runs again writes again. What a task itself sends again, after a broken
connection or while the node restarts, is written once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DatetimeType,
    IntegerType,
    LongType,
    NumericType,
    ShortType,
    StringType,
    StructType,
)

from pyspark_tailrace.connections import held_writer
from pyspark_tailrace.options import SinkOptions
from pyspark_tailrace.ordering import in_order
from pyspark_tailrace.routing import Router


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
    wanted: dict[str, tuple[type[DataType], ...]] = {options.key: _STRINGS, options.value: _STRINGS}
    if options.deleted in types:
        wanted[options.deleted] = (BooleanType,)
    if options.partition_column is not None:
        wanted[options.partition_column] = _INTEGERS
    for name, permitted in wanted.items():
        _check_column(name, types, permitted, " or ".join(kind.typeName() for kind in permitted))
    for name, _ in options.order_by:
        _check_column(name, types, _SORTABLE, "a number, a string, a time, binary or boolean: option 'order_by'")
    extra = types.keys() - wanted.keys() - {name for name, _ in options.order_by}
    if extra:
        raise ValueError(
            f"the sink has no use for the columns {', '.join(sorted(extra))}: put them into {options.value!r}, for "
            "example by to_json(struct(...)), or drop them"
        )


_STRINGS = (BinaryType, StringType)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_SORTABLE = (NumericType, StringType, BinaryType, BooleanType, DatetimeType)


def _check_column(name: str, types: Mapping[str, DataType], permitted: tuple[type[DataType], ...], names: str) -> None:
    if name not in types:
        raise ValueError(
            f"there is no column {name!r}; the columns are {', '.join(types)}. Rename one, or say by the options "
            "'key', 'value', 'deleted', 'order_by' and 'partition_column' which are meant"
        )
    if not isinstance(types[name], permitted):
        advice = "cast it" if isinstance(types[name], AtomicType) else "make one of it, for example by to_json()"
        raise ValueError(f"column {name!r} is {types[name].simpleString()}, and has to be {names}: {advice}")


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    """The body of a task. A task without rows asks nothing of the node.

    Raises ValueError or TooLarge for rows that no feed takes, UnknownFeed, Unreachable after ``retry_for`` seconds, and
    what else the node refuses for good; a part of the rows may be written then.
    """
    context = TaskContext.get()
    written = Written(-1 if context is None else context.partitionId(), 0, 0)
    batches = (batch for batch in _ordered(options, batches) if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return written
    with held_writer(options) as (feed, writer):
        router = Router(feed.resolve().partitions)
        for batch in itertools.chain((first,), batches):
            for block in router.add(*_columns(batch, options)):
                writer.send(block)
                written.blocks += 1
            written.rows += batch.num_rows
        for block in router.rest():
            writer.send(block)
            written.blocks += 1
        writer.flush()
    return written


def _ordered(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not options.order_by:
        return batches
    columns = {options.key, options.value, options.deleted, options.partition_column or options.key}
    return in_order(batches, options.order_by, columns)


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
