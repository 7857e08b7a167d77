"""Ranges of partitions, and how they are cut into tasks. Pure.

    range  (start .................................. end]        what a micro-batch reads of a partition
    parts  (start ..... stop] (start ..... stop] (.. stop]       of a history: each seq is a row, and stays one
    tasks  a part each; small parts of several partitions together

A range of a compact feed is one part: which of its rows are still there depends on where its runs end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from pyspark.sql.datasource import InputPartition

from tailrace.model.position import Position, Positions

# Parts of different partitions are read in one task up to so many seqs: a task costs some 20 ms, whatever it reads.
TOGETHER_ROWS = 20_000
# A task has at most so many: each has to be asked for.
TOGETHER_PARTS = 256


class SeqRange(NamedTuple):
    """The rows of ``partition`` above ``start`` up to ``stop_seq``, of a range that ends at ``end``."""

    partition: int
    start: Position
    stop_seq: int
    end: Position

    @property
    def rows(self) -> int:
        """How many seqs it has."""
        return self.stop_seq - self.start.seq


class Split(InputPartition):
    """A task's parts, at most one of each partition."""

    def __init__(self, cluster_id: bytes, feed_id: bytes, parts: Iterable[SeqRange], *, is_history: bool) -> None:
        self.parts = tuple(parts)
        self.cluster_id = cluster_id
        self.feed_id = feed_id
        self.is_history = is_history

    def with_parts(self, parts: Iterable[SeqRange]) -> Split:
        """A split of the same feed."""
        return Split(self.cluster_id, self.feed_id, parts, is_history=self.is_history)

    @property
    def starts(self) -> Positions:
        """Where each part begins; nothing of those that begin at the beginning."""
        starts = {part.partition: part.start for part in self.parts if part.start.log}
        return Positions(self.cluster_id, self.feed_id, starts)

    def __repr__(self) -> str:
        return f"Split({', '.join(f'{p.partition}: ({p.start.seq}, {p.stop_seq}]' for p in self.parts)})"


def cut(ranges: Iterable[SeqRange], min_partitions: int | None, *, exact: bool) -> list[list[SeqRange]]:
    """The parts of each task: at least ``min_partitions`` of these where ``exact`` and there are so many rows.

    ``ranges`` are whole ranges, none empty. ``exact``: a range may be read in several pieces.
    """
    whole = sorted(ranges)
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
    """Neighbours in one task, as long as these are small, of different partitions, and tasks remain enough."""
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
