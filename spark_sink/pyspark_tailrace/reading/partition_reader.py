"""A task: the rows of its parts as Arrow batches, each row once, or an error where they can no longer be given.

A history keeps every seq, so a gap in it is a loss. In a compact feed rows go that are superseded: within a snapshot
that ends in the range this leaves the state at the range's end whole; where it ends above, the row that supersedes lies
outside of the range, and the state at its end is no longer there.

    range           (100 .................. 200]
    run, fine    (50 ........... 180]                k@120 is gone, k@180 comes
    run, lost                 (150 ............. 300]   k@160 is gone, k@300 is of another range
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from pyspark_tailrace.reading.feed_client import FeedClient, open_stream
from pyspark_tailrace.reading.offsets import agree
from pyspark_tailrace.reading.options import ReadOptions
from pyspark_tailrace.reading.splits import SeqRange, Split
from tailrace.consuming.events import Mutations, RoundComplete, SnapshotEnd, SnapshotStart
from tailrace.consuming.session import Wanted
from tailrace.errors import DataGone, StreamEnded
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.filters import StreamFilter

# So long nothing may come before it is looked whether the end of a part still exists.
QUIET_SECONDS = 5.0

ADVICE = (
    "the query cannot give this range whole any more. .option('failOnDataLoss', 'false') goes on with what is left of "
    "it; a new checkpoint begins anew"
)


class RangeProgress:
    """How much of a part has come. Pure."""

    def __init__(self, part: SeqRange, *, is_history: bool, strict: bool) -> None:
        """``strict``: a loss is an error."""
        self.part = part
        self._is_history = is_history
        self._strict = strict
        self._after_seq = part.start.seq  # rows above are wanted
        self._at_seq = part.start.seq  # all up to here has come, or is gone
        self._snapshot_last = 0

    @property
    def at_seq(self) -> int:
        """All of the part up to here has come, or is gone."""
        return self._at_seq

    @property
    def done(self) -> bool:
        """All of the part has come."""
        return self._at_seq >= self.part.stop_seq

    def snapshot_started(self, last_seq: int) -> None:
        """A snapshot was announced, or announced again."""
        self._snapshot_last = last_seq

    def snapshot_ended(self, last_seq: int) -> None:
        """All of a snapshot has come. DataGone where it lacks something that the part should have."""
        if last_seq > self._at_seq:
            self._missing(self._at_seq + 1)
            self._at_seq = last_seq

    def take(self, event: Mutations) -> tuple[int, int]:
        """The rows of ``event`` that belong to the part, as (first, stop). DataGone as ``snapshot_ended``."""
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
        """All of the partition comes, from its beginning."""
        self._after_seq = self._at_seq = self._snapshot_last = 0

    def check_end(self, log: FailoverLog) -> None:
        """StreamEnded where, by ``log``, the mutation at the end of the part is not the one that was meant."""
        stop_seq = self.part.stop_seq
        if not agree(self.part.end, log, stop_seq):
            raise StreamEnded(
                f"partition {self.part.partition}: seq {stop_seq} was lost after the range up to it was planned, and "
                "another mutation may have its number now: start the query again, which then says where the node's "
                "history has left that of the query",
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
                f"{self.part.end.seq}, where the range ends (the feed is compact: exact replay needs retention "
                f"'history'): {ADVICE}"
            )


def read_split(options: ReadOptions, split: Split, rows: StreamFilter) -> Iterator[Any]:
    """The rows of a split, as Arrow batches of all columns, in order within each partition.

    ``rows``: which of them are wanted. Where that is not all of them, what is lost does not show: ask for no error.

    Raises DataGone where some are lost, StreamEnded where the node's history is another one than that of the split,
    Unreachable after ``retry_for`` seconds, UnknownFeed and BadPosition where the feed was dropped.
    """
    strict, is_history = options.fail_on_data_loss, split.is_history
    waiting = {part.partition: RangeProgress(part, is_history=is_history, strict=strict) for part in split.parts}
    while waiting:
        try:
            yield from _read_stream(options, split, waiting, rows)
        except StreamEnded as error:
            if error.reason is not EndReason.ROLLED_BACK or is_history:
                raise
            # The range began in the node's history when it was planned: nothing was lost since, but purged.
            raise DataGone(f"{error}: {ADVICE}") from None
        except DataGone as error:
            if strict or not is_history or not error.first_seq:
                raise
            # Which partition it is of is not said: each that begins below has lost something.
            split, waiting = _without_trimmed(options, split, waiting)


def _read_stream(
    options: ReadOptions, split: Split, waiting: dict[int, RangeProgress], rows: StreamFilter
) -> Iterator[Any]:
    wanted = Wanted(
        options.feed,
        split.starts,
        {id: progress.part.stop_seq for id, progress in waiting.items()},
        frozenset(waiting),
        options.level,
        # Of a compact feed that has purged deletions since, the state is left: it may be read again as a whole.
        "stop" if split.is_history or options.fail_on_data_loss else "restart",
        stored=(split.starts,),
        ring_rows=0,
        filter=rows,
    )
    with open_stream(options, wanted) as stream:
        while waiting:
            event = stream.next_event(QUIET_SECONDS)
            if event is None and not stream.finished:
                _check_ends(options, waiting)
                continue
            if event is None:
                # The node has nothing more up to the ends: what has not come is gone.
                for id, progress in list(waiting.items()):
                    progress.snapshot_ended(progress.part.stop_seq)
                    del waiting[id]
                continue
            if isinstance(event, RoundComplete) or event.partition not in waiting:
                continue
            progress = waiting[event.partition]
            if isinstance(event, Mutations):
                first, stop = progress.take(event)
                if first < stop:
                    yield event.to_arrow().slice(first, stop - first)
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
    """StreamEnded where what is waited for will not come, since the node has lost it."""
    with contextlib.closing(FeedClient(options)) as node:
        partitions = node.feed().partitions
    for id, progress in waiting.items():
        log = partitions[id].log
        if log.term >= progress.part.end.log.term:  # else it knows less than the query, and has to catch up
            progress.check_end(log)


def _without_trimmed(
    options: ReadOptions, split: Split, waiting: Mapping[int, RangeProgress]
) -> tuple[Split, dict[int, RangeProgress]]:
    """What is left of the parts that have not come whole, of a history that has been trimmed."""
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
