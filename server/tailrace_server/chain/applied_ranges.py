"""The seqs that a follower holds beyond its contiguous prefix: its sparse ranges, and the holes between them. Pure.

    seq       0 ............ 400        500 ..... 620      700 ... 710
              [   prefix    ]    hole   [ range  ]   hole  [range]

All seqs of the prefix are applied; readers and acknowledgements know only these. A range is durable, and kept apart
from the prefix, also if it begins at its end: its rows count once they are applied, and move the prefix then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class AppliedRange(NamedTuple):
    """The seqs (``after_seq``, ``last_seq``] that are held."""

    after_seq: int
    last_seq: int

    def __str__(self) -> str:
        return f"{self.after_seq + 1} to {self.last_seq}"


class AppliedRanges(NamedTuple):
    """The held seqs of a partition. ``ranges`` lie above ``prefix``, in order, and do not touch each other."""

    prefix: int = 0
    ranges: tuple[AppliedRange, ...] = ()

    @classmethod
    def of(cls, prefix: int, parts: Iterable[tuple[int, int]]) -> AppliedRanges:
        """Returns the state with these parts (after seq, last seq). What they have at or below the prefix is left out.

        Parts that overlap or touch each other are one range.
        """
        joined: list[AppliedRange] = []
        for after_seq, last_seq in sorted(parts):
            after_seq = max(after_seq, prefix)
            if last_seq <= after_seq:
                continue
            if joined and after_seq <= joined[-1].last_seq:
                after_seq, last_seq = joined[-1].after_seq, max(joined.pop().last_seq, last_seq)
            joined.append(AppliedRange(after_seq, last_seq))
        return cls(prefix, tuple(joined))

    def holes(self) -> tuple[AppliedRange, ...]:
        """Returns the seqs that are missing between the prefix and the last range."""
        begins = (self.prefix, *(one.last_seq for one in self.ranges))
        found = (AppliedRange(begin, one.after_seq) for begin, one in zip(begins, self.ranges, strict=False))
        return tuple(hole for hole in found if hole.after_seq < hole.last_seq)
