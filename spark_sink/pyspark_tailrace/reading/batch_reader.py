"""``spark.read.format("tailrace")``: the latest state of a feed, or every mutation that it has kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_tailrace.reading.latest_state import LatestState
from pyspark_tailrace.reading.node import Node, open_stream
from pyspark_tailrace.reading.offsets import NOTHING, NodeFeed
from pyspark_tailrace.reading.options import STATE, ReadOptions
from pyspark_tailrace.reading.partition_reader import read_split
from pyspark_tailrace.reading.pushdown import Narrowed, narrowed
from pyspark_tailrace.reading.schema import Shape
from pyspark_tailrace.reading.splits import Part, Split, cut
from tailrace.block import KEY_BYTES_MAX
from tailrace.consuming.session import Wanted
from tailrace.errors import StreamEnded
from tailrace.events import Mutations, Rollback
from tailrace.hashing import key_hash, partition_of_hash
from tailrace.model import EndReason
from tailrace.position import Position
from tailrace.wire.filters import StreamFilter


def batch_reader(options: ReadOptions, schema: StructType) -> BatchReader:
    """A reader; one that takes filters, unless the job has switched that off. (A setting of Spark's may refuse it.)"""
    return NarrowingReader(options, schema) if options.pushdown else BatchReader(options, schema)


class BatchReader(DataSourceReader):
    """Plans in the driver, as of the moment of planning, and reads in the tasks."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._narrowed = Narrowed()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks. Raises UnknownFeed, Unreachable, ..."""
        with contextlib.closing(Node(self._options)) as node:
            feed = node.feed()
            bounds = self._bounds(node, feed)
        ranges = [self._range(id, feed, *bounds[id]) for id in self._wanted_partitions(feed)]
        tasks = cut((part for part in ranges if part.rows > 0), self._options.min_partitions, exact=self._exact(feed))
        # Spark would take no task at all for one whose partition it does not tell.
        return [Split(feed.cluster_id, feed.feed_id, task, is_history=feed.is_history) for task in tasks or [[]]]

    def _exact(self, feed: NodeFeed) -> bool:
        """Ranges may be read in pieces: seqs of a history stay what they are, and no two rows are to be compared."""
        return feed.is_history and self._options.read != STATE

    def _bounds(self, node: Node, feed: NodeFeed) -> dict[int, tuple[Position, int]]:
        """The position after which the wanted rows of each partition begin, and the seq up to which they go."""
        narrowed = self._narrowed
        trimmed = node.kept_since(feed)
        begins = node.since_if_kept(feed, narrowed.stamped_first) if narrowed.stamped_first else {}
        # Of the state, a later row is needed where it supersedes an earlier one.
        is_cut = self._options.read != STATE
        ends = node.since_if_kept(feed, narrowed.stamped_stop) if is_cut and narrowed.stamped_stop is not None else {}
        bounds = {}
        for id, partition in feed.partitions.items():
            begin = begins.get(id, NOTHING)
            # All that was acknowledged, at any level: the stream waits until its own level shows that.
            stop_seq = min(partition.high_seq, ends[id].seq if id in ends else partition.high_seq)
            if is_cut and narrowed.seq_stop is not None:
                stop_seq = min(stop_seq, narrowed.seq_stop - 1)
            after_seq = min(narrowed.seq_first - 1, partition.high_seq)
            if begin.seq or after_seq > 0 or self._exact(feed):
                after_seq = max(after_seq, trimmed[id])
            if after_seq > begin.seq:
                begin = Position.at(partition.log, after_seq)
            bounds[id] = begin, stop_seq
        return bounds

    def _wanted_partitions(self, feed: NodeFeed) -> Iterable[int]:
        only = self._narrowed.partitions
        key = self._narrowed.key
        if key is not None:
            owner = partition_of_hash(key_hash(key), len(feed.partitions))
            only = frozenset([owner]) if only is None else only & {owner}
        return [id for id in feed.partitions if only is None or id in only]

    def _range(self, id: int, feed: NodeFeed, begin: Position, stop_seq: int) -> Part:
        return Part(id, begin, stop_seq, Position.at(feed.partitions[id].log, stop_seq))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """A task's rows, as Arrow batches of the schema."""
        assert isinstance(partition, Split)
        shape = Shape(self._schema)
        wanted = StreamFilter(self._narrowed.key_prefix[:KEY_BYTES_MAX], "value" not in self._schema.names)
        if self._options.read == STATE:
            rows = read_state(self._options, partition, wanted)
        elif partition.is_history:
            rows = read_split(replace(self._options, fail_on_data_loss=False), partition, wanted)
        else:
            rows = read_mutations(self._options, partition, wanted)
        return shape.joined(map(shape.of, rows))


class NarrowingReader(BatchReader):
    """A BatchReader that asks the node for less where filters allow it. They are applied by Spark all the same."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Notes what the node can do with them."""
        self._narrowed = narrowed(filters)
        return filters


def read_state(options: ReadOptions, split: Split, wanted: StreamFilter) -> Iterator[Any]:
    """The newest rows of the keys of a split's partitions, without deletions."""
    states: dict[int, LatestState] = {part.partition: LatestState() for part in split.parts}
    for partition, batch in _read_whole(options, split, wanted):
        if batch is None:
            states[partition].clear()
        else:
            states[partition].add(batch)
    for state in states.values():
        yield from state.rows()


def read_mutations(options: ReadOptions, split: Split, wanted: StreamFilter) -> Iterator[Any]:
    """What a compact feed has kept of its mutations. StreamEnded where some were lost after they were given."""
    given: set[int] = set()
    for partition, batch in _read_whole(options, split, wanted):
        if batch is not None:
            given.add(partition)
            yield batch
        elif partition in given:
            raise StreamEnded(
                f"partition {partition}: the node's history has changed while it was read: run the job again",
                reason=EndReason.ROLLED_BACK,
            )


def _read_whole(options: ReadOptions, split: Split, wanted: StreamFilter) -> Iterator[tuple[int, Any]]:
    """Batches by partition, up to the end of the snapshot that has the end of each part; None: it begins anew.

    In a run the rows go on above the part's end: what they supersede is missing below it.
    """
    if not split.parts:
        return
    stream_wanted = Wanted(
        options.feed,
        split.starts,
        {part.partition: part.stop_seq for part in split.parts},
        frozenset(part.partition for part in split.parts),
        options.level,
        "restart",
        stored=(split.starts,),
        ring_rows=0,
        filter=wanted,
    )
    with open_stream(options, stream_wanted) as stream:
        for event in stream:
            if isinstance(event, Mutations):
                yield event.partition, event.to_arrow()
            elif isinstance(event, Rollback):
                yield event.partition, None
