"""A task: reads the rows of its ranges as Arrow batches, each row once, or raises an error if rows are lost.

A history keeps every seq, so a gap in it is a loss. A compact feed drops superseded rows. If the snapshot that drops
them ends within the range, the state at the range's end is complete. If it ends above, the newer row lies outside of
the range, and the state at the range's end is lost.

    range                (100 .................. 200]
    snapshot, fine    (50 ........... 180]                k@120 is dropped, k@180 comes
    snapshot, lost                 (150 ............. 300]   k@160 is dropped, k@300 is outside of the range
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark_tailrace.reading.feed_client import FeedClient, open_stream
from pyspark_tailrace.reading.offsets import agree
from pyspark_tailrace.reading.options import ReadOptions
from pyspark_tailrace.reading.plan_renewals import renewals_of
from pyspark_tailrace.reading.splits import SeqRange, Split
from tailrace.consuming.events import Mutations, OfNoPartition, SnapshotEnd, SnapshotStart
from tailrace.consuming.session import Subscription
from tailrace.errors import DataGone, StreamEnded
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.filters import StreamFilter

# After this time without an event, the task asks the node whether the ends of its ranges still exist.
QUIET_SECONDS = 5.0

ADVICE = (
    "this range can no longer be read completely. .option('failOnDataLoss', 'false') continues with the remaining "
    "rows; a new checkpoint starts from the beginning"
)


class RangeProgress:
    """The progress of reading a range. Pure."""

    def __init__(self, part: SeqRange, *, is_history: bool, strict: bool) -> None:
        """Begins at the start of ``part``. ``strict``: a loss is an error."""
        self.part = part
        self._is_history = is_history
        self._strict = strict
        self._after_seq = part.start.seq  # rows above it are read
        self._at_seq = part.start.seq  # all rows up to it have come, or are lost
        self._snapshot_last = 0

    @property
    def at_seq(self) -> int:
        """The seq up to which all rows of the range have come, or are lost."""
        return self._at_seq

    @property
    def done(self) -> bool:
        """Whether all of the range has come."""
        return self._at_seq >= self.part.stop_seq

    def snapshot_started(self, last_seq: int) -> None:
        """Notes the end of a snapshot that was announced, or announced again."""
        self._snapshot_last = last_seq

    def snapshot_ended(self, last_seq: int) -> None:
        """Notes that all of a snapshot has come. Raises DataGone if it lacks rows that the range should have."""
        if last_seq > self._at_seq:
            self._missing(self._at_seq + 1)
            self._at_seq = last_seq

    def take(self, event: Mutations) -> tuple[int, int]:
        """Returns the rows of ``event`` that belong to the range, as (first, stop). Raises as ``snapshot_ended``."""
        seqs = event.seqs()
        first = bisect.bisect_right(seqs, self._after_seq)
        stop = bisect.bisect_right(seqs, self.part.stop_seq)
        if event.first_seq > self._at_seq + 1:
            self._missing(self._at_seq + 1)
        if len(seqs) != event.last_seq - event.first_seq + 1:
            for earlier, later in itertools.pairwise(seqs):
                if later != earlier + 1:
                    self._missing(earlier + 1)
                    break
        self._at_seq = max(self._at_seq, event.last_seq)
        return first, stop

    def begins_anew(self) -> None:
        """Notes that the partition starts again from its beginning."""
        self._after_seq = self._at_seq = self._snapshot_last = 0

    def check_end(self, log: FailoverLog) -> None:
        """Raises StreamEnded if, by ``log``, the mutation at the end of the range is another than planned."""
        stop_seq = self.part.stop_seq
        if not agree(self.part.end, log, stop_seq):
            raise StreamEnded(
                f"partition {self.part.partition}: seq {stop_seq} was lost after the range up to it was planned, and "
                "another mutation may have its number now: start the query again, which then tells from which seq the "
                "node's history differs from that of the query",
                reason=EndReason.HISTORY_CHANGED,
            )

    def _missing(self, seq: int) -> None:
        if not self._strict or seq > self.part.stop_seq:
            return
        if self._is_history:
            raise DataGone(f"partition {self.part.partition}: seq {seq} has been trimmed: {ADVICE}", first_seq=seq)
        if self._snapshot_last > self.part.end.seq:
            raise DataGone(
                f"partition {self.part.partition}: seq {seq} has been superseded by a mutation above seq "
                f"{self.part.end.seq}, the end of the range (the feed is compact: exact replay needs retention "
                f"'history'): {ADVICE}"
            )


def read_split(
    options: ReadOptions, split: Split, rows: StreamFilter, make: Callable[[Mutations], Any] = Mutations.to_arrow
) -> Iterator[Any]:
    """Yields the rows of a split that pass the filter ``rows``, as Arrow batches that ``make`` makes.

    They are in order within each partition. If the filter drops rows, a loss is noticed only if the node tells of it.

    Raises DataGone if rows are lost, StreamEnded if the node's history differs from that of the split, Unreachable
    after ``retry_for`` seconds, and UnknownFeed or BadPosition if the feed was dropped.
    """
    strict, is_history = options.fail_on_data_loss, split.is_history
    is_strict = strict and not rows.selects
    waiting = {part.partition: RangeProgress(part, is_history=is_history, strict=is_strict) for part in split.parts}
    while waiting:
        try:
            yield from _read_stream(options, split, waiting, rows, make)
        except StreamEnded as error:
            if error.reason is not EndReason.ROLLED_BACK or is_history:
                raise
            # The range's start was in the node's history when it was planned: rows were purged since, not rolled back.
            raise DataGone(f"{error}: {ADVICE}") from None
        except DataGone as error:
            if strict or not is_history or not error.first_seq:
                raise
            # The error does not name the partition: each range that begins below first_seq has lost rows.
            split, waiting = _without_trimmed(options, split, waiting)


def _read_stream(
    options: ReadOptions,
    split: Split,
    waiting: dict[int, RangeProgress],
    rows: StreamFilter,
    make: Callable[[Mutations], Any],
) -> Iterator[Any]:
    wanted = Subscription(
        options.feed,
        split.starts,
        {id: progress.part.stop_seq for id, progress in waiting.items()},
        frozenset(waiting),
        options.level,
        # A compact feed that has purged deletions still has its state, which may be read again from the beginning.
        "stop" if split.is_history or options.fail_on_data_loss else "restart",
        stored=(split.starts,),
        ring_rows=0,
        filter=rows,
        catch_up=options.catch_up,
        checkpoints=split.checkpoints,
        exact_end=split.is_history,
        renewals=renewals_of(split.renewed),
    )
    with open_stream(options, wanted) as stream:
        while waiting:
            event = stream.next(QUIET_SECONDS)
            if event is None and not stream.finished:
                _check_ends(options, waiting)
                continue
            if event is None:
                # The node has sent all rows up to the ends: rows that have not come are lost.
                for id, progress in list(waiting.items()):
                    progress.snapshot_ended(progress.part.stop_seq)
                    del waiting[id]
                continue
            if isinstance(event, OfNoPartition) or event.partition not in waiting:
                continue
            progress = waiting[event.partition]
            if isinstance(event, Mutations):
                first, stop = progress.take(event)
                if first < stop:
                    batch = make(event)
                    yield batch if stop - first == len(event) else batch.slice(first, stop - first)
            elif isinstance(event, SnapshotStart):
                progress.snapshot_started(event.last_seq)
            elif isinstance(event, SnapshotEnd):
                progress.snapshot_ended(event.last_seq)
            else:
                progress.begins_anew()
            if progress.done:
                progress.check_end(stream.latest_positions[event.partition].log)
                del waiting[event.partition]


def _check_ends(options: ReadOptions, waiting: Mapping[int, RangeProgress]) -> None:
    """Raises StreamEnded if the node has lost the end of a range that has not come."""
    with contextlib.closing(FeedClient(options)) as node:
        partitions = node.feed().partitions
    for id, progress in waiting.items():
        log = partitions[id].log
        if log.term >= progress.part.end.log.term:  # otherwise the node is behind the query, and has to catch up
            progress.check_end(log)


def _without_trimmed(
    options: ReadOptions, split: Split, waiting: Mapping[int, RangeProgress]
) -> tuple[Split, dict[int, RangeProgress]]:
    """Returns the rest of the ranges that have not come completely, above the trimmed part of a history."""
    with contextlib.closing(FeedClient(options)) as node:
        trimmed = node.kept_since(node.feed())
    left = {}
    for id, progress in waiting.items():
        part = progress.part
        seq = max(trimmed[id], progress.at_seq)
        if seq < part.stop_seq:
            part = part._replace(start=Position.at(part.end.log, seq))
            left[id] = RangeProgress(part, is_history=True, strict=False)
    return split.with_parts([progress.part for progress in left.values()]), left
