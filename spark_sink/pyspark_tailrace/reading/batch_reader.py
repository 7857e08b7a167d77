"""The reader of a batch job, ``spark.read``: the latest state of a feed, or every mutation that it has kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tailrace.reading.feed_client import FeedClient, open_stream
from pyspark_tailrace.reading.latest_state import LatestState
from pyspark_tailrace.reading.offsets import NOTHING, FeedState, PartitionState, resume_at
from pyspark_tailrace.reading.options import AUTO, EARLIEST, LATEST, STATE, STREAM, ReadOptions
from pyspark_tailrace.reading.partition_reader import read_split
from pyspark_tailrace.reading.schema import Shape, has_column
from pyspark_tailrace.reading.segment_plan import TASK_BYTES, cut_by_segments, fits, plan_case
from pyspark_tailrace.reading.splits import SeqRange, Split, cut, renewed_checkpoints
from pyspark_tailrace.worker_memory import spare_modules
from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.session import Subscription
from tailrace.errors import DataGone, StreamEnded, UnknownFeed
from tailrace.model import EndReason
from tailrace.model.position import Position
from tailrace.wire.filters import StreamFilter
from tailrace.wire.segment_messages import PartitionCheckpoint

_GOES_ON = ".option('failOnDataLoss', 'false') reads the remaining rows"


class BatchReader(DataSourceReader):
    """Plans in the driver, from the feed's state at that moment, and reads in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Returns the tasks. Raises UnknownFeed, also for an unknown partition, Unreachable, ..."""
        with contextlib.closing(FeedClient(self._options)) as node:
            feed = node.confirmed_feed()
            starts, ends, trimmed = node.starting(feed), node.ending(feed), node.kept_since(feed)
            ranges = [
                self._range(id, feed, starts.get(id, NOTHING), ends.get(id, NOTHING), trimmed[id])
                for id in self._wanted_partitions(feed)
            ]
            ranges = [part for part in ranges if part.rows > 0]
            checkpoints = self._checkpoints(node, feed, ranges) if self._exact(feed) else {}
        pieces = [
            piece
            for part in ranges
            for piece in (
                cut_by_segments(part, checkpoints[part.partition], TASK_BYTES)
                if part.partition in checkpoints
                else [part]
            )
        ]
        tasks = cut(pieces, self._options.min_partitions, exact=self._exact(feed))
        renewed = renewed_checkpoints(checkpoints.values())
        spare_modules()
        # Spark turns an empty list into one task without a partition.
        return [
            Split(
                feed.cluster_id,
                feed.feed_id,
                task,
                is_history=feed.is_history,
                checkpoints=checkpoints,
                renewed=renewed,
            )
            for task in tasks or [[]]
        ]

    def _checkpoints(
        self, node: FeedClient, feed: FeedState, ranges: Iterable[SeqRange]
    ) -> dict[int, PartitionCheckpoint]:
        """Returns the checkpoints by which ranges of a history are planned. The node keeps their segments."""
        found: dict[int, PartitionCheckpoint] = {}
        for part in ranges:
            state = feed.partitions[part.partition]
            if plan_case(self._options.catch_up, part, state, is_filtered=self._is_filtered).by_segments:
                told = node.checkpoint(feed, part.partition)
                if told is None:  # the node may have no room for more
                    break
                if fits(told, part):
                    found[part.partition] = told
        return found

    def _exact(self, feed: FeedState) -> bool:
        """Returns whether ranges may be cut: in a history no seq goes away, and mutations need no comparison."""
        return feed.is_history and self._options.read != STATE

    @property
    def _is_filtered(self) -> bool:
        """Whether a stream would leave out rows, or their values."""
        return bool(self._options.key_prefix) or not has_column(self._schema, "value")

    def _wanted_partitions(self, feed: FeedState) -> Iterable[int]:
        only = self._options.partition_ids
        if only is None:
            return feed.partitions
        missing = only - feed.partitions.keys()
        if missing:
            count = len(feed.partitions)
            raise UnknownFeed(f"the feed has no partition {min(missing)}: it has {count} (option 'partition_ids')")
        return sorted(only)

    def _range(self, id: int, feed: FeedState, start: Position, end: Position, trim_seq: int) -> SeqRange:
        """Returns the range of a partition to read. Raises DataGone or StreamEnded if rows of it are lost."""
        options, partition = self._options, feed.partitions[id]
        start, end = (self._in_history(id, position, partition) for position in (start, end))
        if not self._exact(feed):
            if options.read == STATE and options.end != LATEST:
                self._check_as_of(id, feed, trim_seq)
            if not feed.is_history and options.end != LATEST and options.key_prefix:
                raise ValueError(
                    "options 'endingOffsets' and 'key_prefix' together need a feed with retention 'history': in a "
                    "compact feed, purged rows cannot be told from rows with another prefix"
                )
            if options.start == EARLIEST:
                start = NOTHING
        elif start.seq < trim_seq:
            if options.fail_on_data_loss:
                raise DataGone(f"partition {id}: seq {start.seq + 1} has been trimmed: {_GOES_ON}")
            start = Position.at(partition.log, trim_seq)
        return SeqRange(id, start, end.seq, end)

    def _in_history(self, id: int, position: Position, partition: PartitionState) -> Position:
        """Returns the position, or the last one before it that the node's history shares."""
        found = resume_at(position, partition)
        if found.waits:
            raise StreamEnded(
                f"partition {id}: the node does not know seq {position.seq} of term {position.log.term} yet: it was "
                "restored from an older copy, or is behind its leader",
                reason=EndReason.BEHIND,
            )
        if found.lost and self._options.fail_on_data_loss:
            raise StreamEnded(
                f"partition {id}: the positions are at seq {position.seq} of branch {position.log.branch.hex()[:8]}, "
                f"and the node's history agrees with that up to seq {found.position.seq} only: {_GOES_ON}",
                reason=EndReason.ROLLED_BACK,
            )
        return found.position

    def _check_as_of(self, id: int, feed: FeedState, trim_seq: int) -> None:
        """Raises DataGone if the feed has not kept the state of an earlier moment."""
        if not feed.is_history:
            raise DataGone(
                "the feed is compact and keeps the newest row of each key only: the state of an earlier moment "
                "('endingOffsets') needs a feed with retention 'history'"
            )
        if trim_seq and self._options.fail_on_data_loss:
            raise DataGone(
                f"partition {id}: the history up to seq {trim_seq} has been trimmed, so keys that have not changed "
                f"since would be missing: {_GOES_ON}"
            )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields a task's rows, as Arrow batches of the schema."""
        assert isinstance(partition, Split)
        shape = Shape(self._schema)
        wanted = StreamFilter(self._options.key_prefix, not has_column(self._schema, "value"))
        options = self._options
        if options.catch_up == AUTO and self._is_filtered:
            options = replace(options, catch_up=STREAM)
        if options.read == STATE and options.end != LATEST:
            rows: Iterator[Any] = map(shape.of, newest_of(partition, read_split(options, partition, wanted)))
        elif options.read == STATE:
            rows = map(shape.of, read_state(options, partition, wanted))
        elif partition.is_history or options.end != LATEST:
            rows = read_split(options, partition, wanted, shape.of_event)
        else:
            rows = read_mutations(options, partition, wanted, shape.of_event)
        yield from shape.joined(rows)
        spare_modules()


def read_state(options: ReadOptions, split: Split, wanted: StreamFilter) -> Iterator[Any]:
    """Yields the newest row of each key of a split's partitions, without deletions."""
    states: dict[int, LatestState] = {part.partition: LatestState() for part in split.parts}
    for partition, event in _read_whole(options, split, wanted):
        if event is None:
            states[partition].clear()
        else:
            states[partition].add(event.to_arrow())
    for state in states.values():
        yield from state.rows()


def newest_of(split: Split, rows: Iterator[Any]) -> Iterator[Any]:
    """Yields the newest row of each key of ``rows``, without deletions."""
    states = {part.partition: LatestState() for part in split.parts}
    for batch in rows:
        states[batch.column("partition")[0].as_py()].add(batch)
    for state in states.values():
        yield from state.rows()


def read_mutations(
    options: ReadOptions, split: Split, wanted: StreamFilter, make: Callable[[Mutations], Any] = Mutations.to_arrow
) -> Iterator[Any]:
    """Yields the mutations that a compact feed has kept, as batches that ``make`` makes.

    Raises StreamEnded if a rollback has lost yielded rows."""
    given: set[int] = set()
    # A restart from the beginning, and not from 'startingOffsets', would read another range.
    on_rollback = "stop" if options.start != EARLIEST and options.fail_on_data_loss else "restart"
    for partition, event in _read_whole(options, split, wanted, on_rollback):
        if event is not None:
            given.add(partition)
            yield make(event)
        elif partition in given:
            raise StreamEnded(
                f"partition {partition}: the node's history has changed while it was read: run the job again",
                reason=EndReason.ROLLED_BACK,
            )


def _read_whole(
    options: ReadOptions, split: Split, wanted: StreamFilter, on_rollback: str = "restart"
) -> Iterator[tuple[int, Mutations | None]]:
    """Yields mutations by partition, up to the end of the snapshot with the range's end; None: it starts again.

    The rows of a snapshot go on above the range's end, because they supersede rows below it.
    """
    if not split.parts:
        return
    stream_wanted = Subscription(
        options.feed,
        split.starts,
        {part.partition: part.stop_seq for part in split.parts},
        frozenset(part.partition for part in split.parts),
        options.level,
        on_rollback,
        stored=(split.starts,),
        ring_rows=0,
        filter=wanted,
        catch_up=options.catch_up,
    )
    with open_stream(options, stream_wanted) as stream:
        for event in stream:
            if isinstance(event, Mutations):
                yield event.partition, event
            elif isinstance(event, Rollback):
                yield event.partition, None
