"""What the compactor does with a partition, and what it would do next: a picture for people."""

from __future__ import annotations

from typing import NamedTuple


class PlannedCompaction(NamedTuple):
    """A compaction of the segments from index ``first`` to index ``last`` of the chain, both included."""

    first: int
    last: int
    nbytes: int
    rows: int
    reason: str
    is_major: bool


class RunningCompaction(NamedTuple):
    """The same of one that is under way, for so many seconds."""

    first: int
    last: int
    nbytes: int
    since_s: float


class CompactionState(NamedTuple):
    """A partition's compactions. ``pause_s`` are the seconds until the next try after a ``failure``; None: no pause."""

    running: RunningCompaction | None
    planned: PlannedCompaction | None
    pause_s: float | None
    failure: str
