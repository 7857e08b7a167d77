"""Cuts ranges of partitions into tasks. Pure.

    range  (start .................................. end]        read by a micro-batch of one partition
    parts  (start ..... stop] (start ..... stop] (.. stop]       of a history: each seq stays a row
    tasks  one part each, or small parts of several partitions

A range of a compact feed is not cut: which of its rows still exist depends on where its snapshots end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from tailrace.consuming.renewals import RenewedCheckpoint
from tailrace.model.position import Position, Positions
from tailrace.wire.segment_messages import PartitionCheckpoint

# A task reads parts of different partitions up to this many seqs, because a task costs some 20 ms whatever it reads.
TOGETHER_ROWS = 20_000
# A task has at most this many parts, because it sends a request for each.
TOGETHER_PARTS = 256


class SeqRange(NamedTuple):
    """The rows of ``partition`` above ``start`` up to ``stop_seq``, as a part of a range that ends at ``end``."""

    partition: int
    start: Position
    stop_seq: int
    end: Position

    @property
    def rows(self) -> int:
        """The number of seqs."""
        return self.stop_seq - self.start.seq


def within(told: PartitionCheckpoint, part: SeqRange) -> PartitionCheckpoint:
    """Returns the checkpoint with only the segments that have rows of ``part``."""
    segments = (file for file in told.segments if part.start.seq < file.last_seq and file.first_seq <= part.stop_seq)
    return told._replace(segments=tuple(segments))


def renewed_checkpoints(told: Iterable[PartitionCheckpoint]) -> tuple[RenewedCheckpoint, ...]:
    """Returns what a task needs to keep the checkpoints of the other tasks alive."""
    return tuple(RenewedCheckpoint(one.id, one.segments[0].id, one.kept_s) for one in told if one.segments)


class Split(InputPartition):
    """A task: ranges or parts of ranges, at most one of each partition."""

    def __init__(
        self,
        cluster_id: bytes,
        feed_id: bytes,
        parts: Iterable[SeqRange],
        *,
        is_history: bool,
        checkpoints: Mapping[int, PartitionCheckpoint] = MappingProxyType({}),
        renewed: tuple[RenewedCheckpoint, ...] = (),
    ) -> None:
        """``checkpoints`` are those of a plan, by partition. Spark pickles a split, so it keeps what its parts need.

        ``renewed`` are all of them, for other tasks: `renewed_checkpoints`.
        """
        self.parts = tuple(parts)
        self.cluster_id = cluster_id
        self.feed_id = feed_id
        self.is_history = is_history
        self.renewed = renewed
        self.checkpoints = {
            part.partition: within(checkpoints[part.partition], part)
            for part in self.parts
            if part.partition in checkpoints
        }

    def with_parts(self, parts: Iterable[SeqRange]) -> Split:
        """Returns a split of the same feed with other parts, which are within the present ones."""
        return Split(
            self.cluster_id,
            self.feed_id,
            parts,
            is_history=self.is_history,
            checkpoints=self.checkpoints,
            renewed=self.renewed,
        )

    @property
    def starts(self) -> Positions:
        """The position at which each part begins; without parts that begin at the partition's beginning."""
        starts = {part.partition: part.start for part in self.parts if part.start.log}
        return Positions(self.cluster_id, self.feed_id, starts)

    def __repr__(self) -> str:
        return f"Split({', '.join(f'{p.partition}: ({p.start.seq}, {p.stop_seq}]' for p in self.parts)})"


def cut(ranges: Iterable[SeqRange], min_partitions: int | None, *, exact: bool) -> list[list[SeqRange]]:
    """Returns the parts of each task, with at least ``min_partitions`` tasks if ``exact`` and there are enough rows.

    ``ranges`` are not empty, and do not overlap. ``exact``: a range may be read in several pieces.
    """
    whole = sorted(ranges, key=lambda part: (part.partition, part.start.seq))
    rows = sum(part.rows for part in whole)
    wanted = min(min_partitions or 1, rows)
    share = rows // wanted if rows else 1
    pieces = [piece for part in whole for piece in (_pieces(part, share) if exact else [part])]
    return _together(pieces, wanted)


def _pieces(part: SeqRange, share: int) -> list[SeqRange]:
    count = math.ceil(part.rows / share)
    bounds = [part.start.seq + part.rows * index // count for index in range(count + 1)]
    starts = [part.start, *(Position.at(part.end.log, seq) for seq in bounds[1:-1])]
    return [part._replace(start=start, stop_seq=stop) for start, stop in zip(starts, bounds[1:], strict=True)]


def _together(pieces: list[SeqRange], wanted: int) -> list[list[SeqRange]]:
    """Joins neighbouring pieces in one task while they are small and of different partitions, and tasks suffice."""
    tasks: list[list[SeqRange]] = []
    can_save = len(pieces) - wanted
    rows = 0
    for piece in pieces:
        fits = (
            can_save > 0
            and tasks
            and rows + piece.rows <= TOGETHER_ROWS
            and len(tasks[-1]) < TOGETHER_PARTS
            and tasks[-1][-1].partition != piece.partition
        )
        if fits:
            tasks[-1].append(piece)
            rows += piece.rows
            can_save -= 1
        else:
            tasks.append([piece])
            rows = piece.rows
    return tasks
