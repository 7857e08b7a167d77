"""The sink: each task encodes its rows in blocks. With exactly_once the driver publishes them.

    exactly_once     task: a sealed stage ──message──> driver: one publish of the stages of all committed tasks
    at_least_once    task: writes, and returns when the node has its rows on disk

If Spark runs a task again, the task makes another stage, and the first one is never published. If it runs a micro-batch
again, the batch is published again, in any pieces, and each partition skips its share if it has it. See
docs/guides/spark.md.
"""

from __future__ import annotations

import collections
import itertools
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NumericType,
    ShortType,
    StringType,
    StructType,
)

from pyspark_tailrace.connections import cached_feed, cached_writer
from pyspark_tailrace.kept_files import KeptFolder
from pyspark_tailrace.options import EXACTLY_ONCE, JOB_PREFIX, SINK_ID_CHARS_MAX, SinkOptions
from pyspark_tailrace.ordering import in_order
from pyspark_tailrace.partition_numbers import check_numbers
from pyspark_tailrace.publishing import TaskStages, batch_origin, make_feed, publish_batch, publish_job, stage_blocks
from pyspark_tailrace.reading.schema import COLUMNS
from pyspark_tailrace.values import check_json_type, json_values
from pyspark_tailrace.versions import TIME_TYPES, StreamArrowWriter
from pyspark_tailrace.worker_memory import spare_modules
from tailrace.block.routing import Routed, Router
from tailrace.requests.staging import Published

log = logging.getLogger("tailrace.spark")

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass
class WrittenMessage(WriterCommitMessage):
    """A task's message to the driver after it has written: counts only, because messages pass through the driver."""

    partition: int
    rows: int
    blocks: int

    @property
    def has_rows(self) -> bool:
        return self.rows > 0


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's message to the driver: its stages, and their query and micro-batch ("" and -1 for a batch job)."""

    partition: int
    query_id: str
    batch: int
    stages: TaskStages

    @property
    def has_rows(self) -> bool:
        return bool(self.stages)


class StreamSink(StreamArrowWriter):
    """The sink of a streaming query: ``df.writeStream.format("tailrace")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._kept = _kept_folder(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages a task's rows, or writes them; returns once the node has them on disk."""
        if self._options.delivery != EXACTLY_ONCE:
            return write_batches(self._options, iterator)
        query_id, batch = _micro_batch()
        shares = stage_batches(self._options, iterator, self._kept, f"{query_id}-{batch}")
        return StagedMessage(_task(), query_id, batch, shares)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publishes the stages of these tasks, once, even if it is called again for this batch.

        Warns in the log if partitions had the batch already. Makes lost stages again if their tasks have kept them.
        Raises UnknownStage if they have not. Raises BatchBehind if another checkpoint has used the number or a later
        batch was published, and BatchChanged if this batch was published with other rows.
        """
        _make_feed_if_empty(self._options, messages)
        staged = [message for message in messages if isinstance(message, StagedMessage)]
        if not staged:
            return
        queries = {message.query_id for message in staged}
        if len(queries) != 1 or any(message.batch != batchId for message in staged):
            raise RuntimeError(f"the commit of batch {batchId} got messages of the queries {sorted(queries)}")
        [query_id] = queries
        sink, batch = self._options.sink_id or query_id, batchId + self._options.first_batch
        origin = batch_origin(query_id, self._options.first_batch)
        _warn_of_repeat(
            publish_batch(self._options, sink, batch, origin, [message.stages for message in staged]), sink, batch
        )
        self._kept.remove_up_to(query_id, batchId)
        spare_modules()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Removes the copies of blocks, since the next start stages the batch anew. Its commit removes what is left.

        Spark also calls it after a commit whose answer was lost, so the batch may be published. The node removes
        unpublished stages by itself.
        """
        for query_id in {message.query_id for message in messages if isinstance(message, StagedMessage)}:
            self._kept.remove_up_to(query_id, batchId)


def job_name(sink_id: str, job: str) -> str:
    """Returns the name under which a job publishes; it begins as the sink, since tokens go by the beginning."""
    room = SINK_ID_CHARS_MAX - len(JOB_PREFIX) - len(job) - 1
    return f"{JOB_PREFIX}{sink_id[:room]} {job}" if sink_id else f"{JOB_PREFIX}{job}"


class BatchSink(DataSourceArrowWriter):
    """The sink of a batch job: ``df.write.format("tailrace").mode("append")``."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        # Made in the driver, so that tasks and the commit have the same id.
        self._job = uuid.uuid4().hex
        self._job_id = job_name(options.sink_id or "", self._job)
        self._kept = _kept_folder(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages a task's rows, or writes them; returns once the node has them on disk."""
        if self._options.delivery != EXACTLY_ONCE:
            return write_batches(self._options, iterator)
        return StagedMessage(_task(), "", -1, stage_batches(self._options, iterator, self._kept, f"{self._job}-0"))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publishes the stages of the tasks, once. Warns in the log if partitions had a numbered batch already."""
        _make_feed_if_empty(self._options, messages)
        stages = [message.stages for message in messages if isinstance(message, StagedMessage)]
        options = self._options
        if options.batch_id is not None and options.sink_id is not None:
            origin = options.origin or options.sink_id
            told = publish_batch(options, options.sink_id, options.batch_id, origin, stages)
            _warn_of_repeat(told, options.sink_id, options.batch_id)
        else:
            publish_job(options, self._job_id, stages)
        self._kept.remove_up_to(self._job, 0)
        spare_modules()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes the copies of blocks. The node removes unpublished stages by itself."""
        self._kept.remove_up_to(self._job, 0)


def _kept_folder(options: SinkOptions) -> KeptFolder:
    """Returns the folder for the copies of large tasks; none if nothing is kept. For the driver."""
    is_kept = options.delivery == EXACTLY_ONCE and options.restage_bytes > 0
    return KeptFolder.find(options.restage_dir) if is_kept else KeptFolder()


def _make_feed_if_empty(options: SinkOptions, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Creates or checks the feed if no task has rows: readers may wait for it, and a wrong count fails early."""
    if not any(message.has_rows for message in messages if isinstance(message, WrittenMessage | StagedMessage)):
        make_feed(options)


def _warn_of_repeat(published: Published, sink: str, batch: int) -> None:
    """Warns if parts of a batch were published before this call, for example by a driver that died before its note.

    It warns in the log, which goes to stderr, because Spark takes no metrics from a sink written in Python.
    """
    skipped = len(published.skipped)
    if skipped and published.written:
        partitions = skipped + len(published.written)
        log.warning(
            "tailrace: batch %d of %r was published before in %d of %d partitions, and now in the others",
            *(batch, sink, skipped, partitions),
        )
    elif skipped:
        log.warning("tailrace: batch %d of %r was published before: it is not written again", batch, sink)


def _task() -> int:
    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _micro_batch() -> tuple[str, int]:
    """Returns the query and the batch of this task. Raises RuntimeError if Spark does not tell them."""
    context = TaskContext.get()
    query_id, batch = (None if context is None else context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if not query_id or not batch:
        raise RuntimeError(
            "Spark does not tell this task its query and micro-batch, which exactly-once delivery needs: use "
            ".option('delivery', 'at_least_once')"
        )
    return query_id, int(batch)


def with_columns(options: SinkOptions, schema: StructType, *, is_case_sensitive: bool = False) -> SinkOptions:
    """Returns the options with the names of columns as the schema spells them, unless names are matched by case."""
    if is_case_sensitive:
        return options
    spelt: dict[str, str] = {}
    for name in schema.names:
        spelt.setdefault(name.lower(), name)

    def own(name: str) -> str:
        return name if name in schema.names else spelt.get(name.lower(), name)

    partition = options.partition_column
    return replace(
        options,
        key=own(options.key),
        value=options.value if options.is_json else own(options.value),
        deleted=own(options.deleted),
        order_by=tuple(column._replace(name=own(column.name)) for column in options.order_by),
        partition_column=None if partition is None else own(partition),
    )


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises ValueError if the sink cannot take these columns, with the column and what to do."""
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        twice = next(name for name, count in collections.Counter(schema.names).items() if count > 1)
        raise ValueError(f"there are several columns {twice!r}: drop all but one, or rename them")
    wanted: dict[str, tuple[type[DataType], ...]] = {options.key: _STRINGS}
    if not options.is_json:
        wanted[options.value] = _STRINGS
    if options.deleted in types or options.is_deleted_named:
        wanted[options.deleted] = (BooleanType,)
    if options.partition_column is not None:
        wanted[options.partition_column] = _INTEGERS
    for name, permitted in wanted.items():
        _check_column(name, types, permitted, " or ".join(kind.typeName() for kind in permitted))
    for name in (column.name for column in options.order_by):
        _check_column(name, types, _SORTABLE, "a number, a string, a time, binary or boolean: option 'order_by'")
    if not options.is_json and COLUMNS.keys() <= types.keys():  # as INSERT INTO a view gives them
        raise ValueError(
            "the node sets partition, seq and timestamp, so they cannot be written: select the other columns; for "
            "INSERT INTO create the view with (key BINARY, value BINARY, deleted BOOLEAN)"
        )
    extra = types.keys() - wanted.keys() - {column.name for column in options.order_by}
    if extra and not options.is_json:
        raise ValueError(
            f"the sink does not use the columns {', '.join(sorted(extra))}: put them into {options.value!r}, for "
            "example by to_json(struct(...)) or .option('value_format', 'json'), or drop them"
        )
    if options.is_json:
        for name in sorted(types.keys() - wanted.keys()):
            check_json_type(name, types[name])
    alike = [name for name in extra if name.lower() == options.deleted.lower()]
    if alike:  # it would be a part of the value, and deletions would be written as values
        raise ValueError(
            f"column {alike[0]!r} is not {options.deleted!r}: give .option('deleted', {alike[0]!r}) if it marks "
            "deletions, or rename it"
        )


_STRINGS = (BinaryType, StringType)
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_SORTABLE = (NumericType, StringType, BinaryType, BooleanType, *TIME_TYPES)


def _check_column(name: str, types: Mapping[str, DataType], permitted: tuple[type[DataType], ...], names: str) -> None:
    if name not in types:
        raise ValueError(
            f"there is no column {name!r}; the columns are {', '.join(types)}. Rename one, or name them by the options "
            "'key', 'value', 'deleted', 'order_by' and 'partition_column'"
        )
    if not isinstance(types[name], permitted):
        advice = "cast it" if isinstance(types[name], AtomicType) else "convert it, for example by to_json()"
        raise ValueError(f"column {name!r} is {types[name].simpleString()}, but must be {names}: {advice}")


def write_batches(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> WrittenMessage:
    """Writes the rows of a task that delivers at least once. A task without rows does not connect.

    Raises ValueError or TooLarge for rows that no feed takes, UnknownFeed, Unreachable after ``retry_for`` seconds, and
    other final errors of the node. A part of the rows may be written then.
    """
    written = WrittenMessage(_task(), 0, 0)
    first, rest = _first(options, batches)
    if first is None:
        return written
    with cached_writer(options) as (feed, writer):
        for routed in _blocks(options, feed.resolve().partitions, itertools.chain((first,), rest)):
            writer.send(routed.block)
            written.blocks += 1
            written.rows += routed.block.rows
        writer.flush()
    spare_modules()
    return written


def stage_batches(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], folder: KeptFolder | None = None, name: str = ""
) -> TaskStages:
    """Stages the rows of a task; see ``write_batches`` for the errors. Raises UnknownStage if a stage was lost."""
    first, rest = _first(options, batches)
    if first is None:
        return ()
    with cached_feed(options) as feed:
        blocks = _blocks(options, feed.resolve().partitions, itertools.chain((first,), rest))
        stages = stage_blocks(feed, blocks, options.restage_bytes, folder, name)
    spare_modules()
    return stages


def _first(
    options: SinkOptions, batches: Iterator[pa.RecordBatch]
) -> tuple[pa.RecordBatch | None, Iterator[pa.RecordBatch]]:
    """Returns the first batch with rows, or None, and the other batches."""
    rest = (batch for batch in _ordered(options, batches) if batch.num_rows)
    return next(rest, None), rest


def _blocks(options: SinkOptions, partitions: int, batches: Iterator[pa.RecordBatch]) -> Routed:
    router = Router(partitions)
    for batch in batches:
        keys, values, numbers = _columns(batch, options)
        check = None if numbers is None else partial(check_numbers, numbers, partitions)
        yield from router.add(keys, values, check)
    yield from router.flush()


def _ordered(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if not options.order_by:
        return batches
    columns = {options.key, options.value, options.deleted, options.partition_column or options.key}
    return in_order(batches, options.order_by, _Everything() if options.is_json else columns)


class _Everything:
    """A container of every name."""

    def __contains__(self, name: object) -> bool:
        return True


def _columns(batch: pa.RecordBatch, options: SinkOptions) -> tuple[Any, Any, Any | None]:
    """Returns keys and values as binary arrays, with a null value for a deletion, and the partition column, if any."""
    keys = _binary(batch.column(options.key))
    values = json_values(batch, _value_columns(batch, options)) if options.is_json else _value_of(batch, options)
    if options.deleted in batch.schema.names:
        deleted = pc.fill_null(batch.column(options.deleted), False)
        values = pc.if_else(deleted, pa.scalar(None, pa.binary()), values)
    numbers = None if options.partition_column is None else batch.column(options.partition_column)
    return keys, values, numbers


def _value_of(batch: pa.RecordBatch, options: SinkOptions) -> Any:
    return _binary(batch.column(options.value))


def _value_columns(batch: pa.RecordBatch, options: SinkOptions) -> list[str]:
    """Returns the columns of the value: those without another use. Columns of ``order_by`` are part of the value."""
    others = {options.key, options.deleted, options.partition_column}
    return [name for name in batch.schema.names if name not in others]


def _binary(column: Any) -> Any:
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())
