"""Tells the age of rows whose timestamps lie ahead of the clock. Pure.

A timestamp never falls within a partition. So if a wall clock was once set to 2100, all later rows get a timestamp of
2100: by their timestamps they are never old, and a stream "since next year" has them all. Marks tell their age. From
time to time a mark records how far the partition was flushed, by the monotonic clock over all runs of the node:

    stamps      10:00 10:05 10:07 2100 2100 2100 2100 2100 2100 2100
    seqs            1     2     3    4    5    6    7    8    9   10
    marks                                 ^5             ^8            seen at 10:20 (2 h ago) and at 11:20 (1 h ago)

    older than an hour: all up to seq 8          since 11:30: all above seq 8, for 8 was there at 11:20

A row counts as too young, by the time until it was flushed and the time to the next mark; it never counts as too old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tailrace.model import BRANCH_BYTES
from tailrace.model.failover import SEQ_MAX, FailoverLog

# The error of a clock that a person or a time server sets, below which it does not count as wrong.
JUMP_US_MAX = 3_600_000_000
# The least distance of two marks; an eighth of the feed's age bound if that is less.
GAP_US_MIN = 600_000_000
# Because of the distance of marks rows stay longer, by at most an eighth of the age; whole segments do as well.
AGE_PARTS = 8


class Mark(NamedTuple):
    """The partition had all rows up to (``branch``, ``seq``) at ``up_us`` of the monotonic clock.

    ``up_us`` is negative in an earlier run of the node. ``wall_us`` is the wall clock at that time, or SEQ_MAX if it is
    known to have been behind.
    """

    branch: bytes
    seq: int
    wall_us: int
    up_us: int


class PartitionPlace(NamedTuple):
    """The feed and the number of a partition."""

    feed_id: bytes
    partition: int


def is_ahead(last_timestamp: int, wall_us: int) -> bool:
    """Returns whether a partition's last stamp is later than a clock of ``wall_us`` can have given by now."""
    return last_timestamp > wall_us + JUMP_US_MAX


class Ahead:
    """The marks of the partitions whose last stamp lies ahead of the clock. Times are microseconds."""

    def __init__(self, marks: Iterable[tuple[PartitionPlace, Sequence[Mark]]] = ()) -> None:
        self._marks = {place: list(of_place) for place, of_place in marks}

    def see(self, place: PartitionPlace, mark: Mark, log: FailoverLog, keep_us: int) -> None:
        """Adds ``mark`` of a partition that is ahead, unless the last mark is too near or has the same seq.

        ``keep_us`` is the age at which the partition drops rows. Marks that do not belong to the history of ``log`` go,
        and so do marks before one of that age.
        """
        marks = [known for known in self._marks.get(place, ()) if log.may_have(known.branch, known.seq)]
        if not marks or (mark.seq > marks[-1].seq and mark.up_us - marks[-1].up_us >= _gap(0, keep_us)):
            marks.append(mark)
        self._marks[place] = _thinned(marks, mark.up_us, keep_us)  # another list, as ``to_json`` may read the old one

    def forget(self, place: PartitionPlace) -> None:
        """Drops the marks of a partition that is not ahead any more, or was dropped."""
        self._marks.pop(place, None)

    def old_seq(self, place: PartitionPlace, log: FailoverLog, age_us: int, up_us: int) -> int:
        """Returns the last seq up to which all rows are at least ``age_us`` old at ``up_us``; 0 if no mark tells."""
        return self._last_seq(place, log, lambda mark: mark.up_us <= up_us - age_us)

    def seq_before(self, place: PartitionPlace, log: FailoverLog, wall_us: int) -> int:
        """Returns the last seq up to which all rows came before wall clock ``wall_us``; 0 if no mark tells."""
        return self._last_seq(place, log, lambda mark: mark.wall_us < wall_us)

    def seqs(self, place: PartitionPlace) -> list[int]:
        """Returns the seqs of the partition's marks, rising; rows between two of them came in one stretch of time."""
        return [mark.seq for mark in self._marks.get(place, ())]

    def _last_seq(self, place: PartitionPlace, log: FailoverLog, is_wanted: Callable[[Mark], bool]) -> int:
        marks = self._marks.get(place, ())
        return max((m.seq for m in marks if is_wanted(m) and log.may_have(m.branch, m.seq)), default=0)

    def to_json(self, up_us: int) -> list[list[Any]]:
        """``[[feed id, partition, [[branch, seq, wall_us, age in microseconds], ...]], ...]``, ids in hex."""
        return [
            [place.feed_id.hex(), place.partition, [[m.branch.hex(), m.seq, m.wall_us, up_us - m.up_us] for m in marks]]
            for place, marks in list(self._marks.items())  # at once: the caller may be in another thread
        ]

    @classmethod
    def from_json(cls, data: Any, up_us: int) -> Ahead:
        """The inverse of `to_json`, for a run that begins at ``up_us``. ValueError, TypeError for anything else."""
        return cls(
            (PartitionPlace(bytes.fromhex(feed_id), int(partition)), [_mark(item, up_us) for item in marks])
            for feed_id, partition, marks in data
        )


def _mark(item: Any, up_us: int) -> Mark:
    branch, seq, wall_us, age_us = item
    mark = Mark(bytes.fromhex(branch), int(seq), int(wall_us), up_us - int(age_us))
    if len(mark.branch) != BRANCH_BYTES or not 0 <= mark.seq <= SEQ_MAX or mark.up_us > up_us:
        raise ValueError(f"a mark is [branch in hex, seq, wall clock, age], not {item!r:.100}")
    return mark


def _gap(age_us: int, keep_us: int) -> int:
    """Returns the distance of marks of an age: half of it, so that older marks are fewer."""
    return min(keep_us // AGE_PARTS, max(GAP_US_MIN, age_us // 2))


def _thinned(marks: list[Mark], up_us: int, keep_us: int) -> list[Mark]:
    """Returns ``marks`` without those too near to both neighbours, and without those before one of age ``keep_us``."""
    kept: list[Mark] = []
    for mark in marks:
        if len(kept) >= 2 and mark.up_us - kept[-2].up_us <= _gap(up_us - mark.up_us, keep_us):
            kept.pop()
        kept.append(mark)
    old = sum(mark.up_us <= up_us - keep_us for mark in kept)
    return kept[max(0, old - 1) :]
