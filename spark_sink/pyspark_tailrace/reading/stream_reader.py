"""The reader of a streaming query: ``spark.readStream.format("tailrace")``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tailrace.reading.admission import even_shares, next_turn, whole_snapshots
from pyspark_tailrace.reading.feed_client import FeedClient, check_feed
from pyspark_tailrace.reading.offsets import (
    NOTHING,
    FeedState,
    Resumption,
    from_offset,
    resume_at,
    rolled_back,
    to_offset,
)
from pyspark_tailrace.reading.options import FAIL, ReadOptions
from pyspark_tailrace.reading.partition_reader import read_split
from pyspark_tailrace.reading.schema import Shape, has_column
from pyspark_tailrace.reading.splits import SeqRange, Split, cut
from pyspark_tailrace.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark_tailrace.worker_memory import spare_modules
from tailrace.errors import DataGone, NotLeader
from tailrace.model.position import Position, Positions
from tailrace.wire.filters import StreamFilter


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches in a process of the driver that lives as long as the query, and reads in the tasks.

    Methods raise as ``tailrace.blocking`` does, after ``retry_for`` seconds. They raise StreamEnded if the node's
    history differs from that of the query and ``on_rollback`` is "fail".
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._node = FeedClient(options)
        self._initial: dict[str, str] | None = None
        self._target: Positions | None = None  # of Trigger.AvailableNow
        self._planned: Positions | None = None
        self._turn = 0  # of the partitions of a compact feed

    # Offsets

    def initialOffset(self) -> dict[str, str]:
        """Returns the offset of a query without a checkpoint, the same on each call."""
        if self._initial is None:
            self._initial = to_offset(self._node.starting(self._node.feed()))
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of the options. Spark passes it to ``latestOffset``, unless the trigger reads all rows."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Sets the query's end to the present end of the feed; in a compact feed a snapshot may end above it."""
        self._target = self._node.confirmed_feed().shown

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, str]:
        """Returns the end of the next micro-batch after ``start``, within ``limit``; ``start`` if nothing is new."""
        feed = self._node.feed(fresh=False)
        positions = from_offset(start)
        check_feed(positions, feed)
        begins = {id: self._resume_at(id, positions, feed) for id in feed.partitions}
        self._node.tell_progress(feed, positions.seqs())  # Spark has finished the batch that ends here
        begins, taken = self._taken(feed, begins, limit)
        ends = dict(positions)
        for id, rows in taken.items():
            begin = begins[id]
            if rows:
                ends[id] = Position.at(feed.partitions[id].log, begin.position.seq + rows)
            elif begin.lost:
                ends[id] = begin.position
        self._planned = Positions(feed.cluster_id, feed.feed_id, ends)
        return to_offset(self._planned)

    def _taken(
        self, feed: FeedState, begins: dict[int, Resumption], limit: ReadLimit
    ) -> tuple[dict[int, Resumption], dict[int, int]]:
        """Returns the micro-batch's start in each partition, and how many rows it takes there.

        If rows are lost and that is no error, it starts above them.
        """
        while True:
            available = {id: self._available(id, begin, feed) for id, begin in begins.items()}
            try:
                return begins, self._admitted(feed, begins, available, limit)
            except DataGone:
                # Tasks leave out lost rows, which should not fill micro-batches either. More may be trimmed meanwhile.
                kept = begins if self._options.fail_on_data_loss else self._kept(feed, begins)
                if kept == begins:
                    raise
                begins = kept

    def _kept(self, feed: FeedState, begins: Mapping[int, Resumption]) -> dict[int, Resumption]:
        """Returns ``begins``, moved to the first seq that the history keeps."""
        moved = dict(begins)
        for id, trim_seq in self._node.kept_since(self._node.feed()).items():
            begin = begins[id]
            if not begin.waits and trim_seq > begin.position.seq:
                moved[id] = begin._replace(position=Position.at(feed.partitions[id].log, trim_seq))
        return moved

    def _resume_at(self, id: int, positions: Positions, feed: FeedState) -> Resumption:
        position = positions.get(id, NOTHING)
        begin = resume_at(position, feed.partitions[id])
        if begin.lost and self._options.on_rollback == FAIL:
            raise rolled_back(id, position, begin.position.seq)
        return begin

    def _available(self, id: int, begin: Resumption, feed: FeedState) -> int:
        shown, seq = feed.partitions[id].visible_seq, begin.position.seq
        if begin.waits:
            return 0
        if self._target is not None:
            target = self._target[id].seq if id in self._target else 0
            # A compact feed can be cut at its present end; at an earlier seq, only the node knows.
            shown = min(shown, target) if feed.is_history or seq >= target else shown
        return max(shown - seq, 0)

    def _admitted(
        self, feed: FeedState, begins: Mapping[int, Resumption], available: Mapping[int, int], limit: ReadLimit
    ) -> dict[int, int]:
        rows = self._rows_limit(feed, begins, available, limit)
        if rows is None or sum(available.values()) <= rows:
            return dict(available)
        if feed.is_history:
            return even_shares(available, rows)

        def next_snapshot(id: int) -> int:
            seq = begins[id].position.seq
            return max(self._node.peek(feed, id, begins[id].position).snapshot_last - seq, 1)

        taken = whole_snapshots(available, rows, next_snapshot, self._turn)
        self._turn = next_turn(taken, self._turn)
        return taken

    def _rows_limit(
        self, feed: FeedState, begins: Mapping[int, Resumption], available: Mapping[int, int], limit: ReadLimit
    ) -> int | None:
        """Returns the most rows that the batch may have; None: no bound."""
        if isinstance(limit, ReadAllAvailable):
            return None
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        limits = [] if max_rows is None else [max_rows]
        largest = max(available, key=lambda id: available[id])
        if max_bytes is not None and available[largest]:
            row_bytes = self._node.peek(feed, largest, begins[largest].position).row_bytes
            limits.append(max(int(max_bytes / max(row_bytes, 1.0)), 1))
        return min(limits, default=None)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Returns the feed's present end, and by how many mutations the last planned batch is behind it."""
        feed = self._node.feed(fresh=False)
        planned = self._planned if self._planned is not None else Positions(feed.cluster_id, feed.feed_id)
        seqs = planned.seqs()
        behind = sum(max(p.visible_seq - seqs.get(id, 0), 0) for id, p in feed.partitions.items())
        return {"behind": behind, **to_offset(feed.shown)}

    # Tasks

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the tasks of a micro-batch, which may be from an earlier run of the query."""
        feed = self._node.feed()
        first, last = from_offset(start), from_offset(end)
        check_feed(first, feed)
        check_feed(last, feed)
        if self._planned is None:
            self._planned = last
        ranges = [part for id in last if (part := self._range(id, first, last, feed)) is not None]
        parts = cut(ranges, self._options.min_partitions, exact=feed.is_history)
        return [Split(feed.cluster_id, feed.feed_id, task, is_history=feed.is_history) for task in parts]

    def _range(self, id: int, first: Positions, last: Positions, feed: FeedState) -> SeqRange | None:
        begin, end = self._resume_at(id, first, feed), self._resume_at(id, last, feed)
        if begin.waits or end.waits:
            raise NotLeader(
                f"partition {id}: this node is at term {feed.partitions[id].log.term}, and the query has seen "
                f"{last[id].log.term}: the node was restored from an older copy, or follows another node, and has to "
                "catch up"
            )
        if end.position.seq <= begin.position.seq:
            return None
        return SeqRange(id, begin.position, end.position.seq, end.position)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yields a task's rows, as Arrow batches of the query's schema."""
        assert isinstance(partition, Split)
        shape = Shape(self._schema)
        wanted = StreamFilter(keys_only=not has_column(self._schema, "value"))
        yield from shape.joined(read_split(self._options, partition, wanted, shape.of_event))
        spare_modules()

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: Spark commits a batch only once another one follows. `latestOffset` tells the progress."""

    def stop(self) -> None:
        """Closes the connection. (Spark calls it in few cases.)"""
        self._node.close()
