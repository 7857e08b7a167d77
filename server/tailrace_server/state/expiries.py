"""The ranges of a partition's rows that will expire, with the time of the next look at each. Pure.

    seqs     1 ......... 5000 ............. 9000 .......... 9100
    ranges   [look at 10:05 ][ look at 10:20 ]   (nothing)  [look at 10:06 ]

A look reads the rows of a range, deletes the keys that are due, and puts ranges for the others in its place. Ranges are
seqs, not places, so merges, flushes and compactions do not change them. A row is looked at when it is due, and a share
of its ttl later at most: a block whose rows expire one after the other is read once for many of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import NamedTuple

# A row may be looked at later than it is due by this part of its ttl, and by this time at most.
LATE_PARTS = 64
LATE_US_MAX = 60_000_000
# Rows that come one after the other share a range up to this many seqs.
RANGE_SEQS = 4_096
# A partition has at most this many ranges, about 150 bytes each: then neighbours become one.
RANGES_MAX = 1_024
NEVER_US = 2**63 - 1


class ExpiryRange(NamedTuple):
    """The seqs ``first_seq`` to ``last_seq``, whose rows are looked at when the clock shows ``look_us``."""

    first_seq: int
    last_seq: int
    look_us: int


class PendingExpiries:
    """The ranges of one partition. Invariant: they rise, and do not overlap."""

    def __init__(self) -> None:
        self._ranges: list[ExpiryRange] = []
        self._earliest_us = NEVER_US

    def __len__(self) -> int:
        return len(self._ranges)

    @property
    def earliest_us(self) -> int:
        """The time of the next look, in microseconds since 1970; NEVER_US if there is none."""
        return self._earliest_us

    @property
    def ranges(self) -> Sequence[ExpiryRange]:
        """The ranges, by their seqs."""
        return tuple(self._ranges)

    def add(self, first_seq: int, last_seq: int, look_us: int) -> None:
        """Adds rows behind all others."""
        if look_us >= NEVER_US:
            return
        last = self._ranges[-1] if self._ranges else None
        assert last is None or last.last_seq < first_seq, "rows are added behind the others"
        if last is not None and last_seq - last.first_seq < RANGE_SEQS:
            self._ranges[-1] = ExpiryRange(last.first_seq, last_seq, min(last.look_us, look_us))
        else:
            self._ranges.append(ExpiryRange(first_seq, last_seq, look_us))
        self._earliest_us = min(self._earliest_us, look_us)
        self._bound()

    def due(self, now_us: int) -> ExpiryRange | None:
        """Returns the range with the earliest look if that is due; None if no look is."""
        if self._earliest_us > now_us:
            return None
        return min(self._ranges, key=lambda each: each.look_us)

    def replace(self, looked: ExpiryRange, left: Sequence[ExpiryRange]) -> None:
        """Puts ``left``, which lie in ``looked`` and rise, in the place of all that is there now."""
        begin = bisect_left(self._ranges, looked.first_seq, key=lambda each: each.last_seq)
        end = bisect_right(self._ranges, looked.last_seq, key=lambda each: each.first_seq)
        # Rows that came meanwhile may have made one range of this one and its neighbours.
        overlapping, kept = self._ranges[begin:end], [each for each in left if each.look_us < NEVER_US]
        if overlapping and overlapping[0].first_seq < looked.first_seq:
            kept.insert(0, overlapping[0]._replace(last_seq=looked.first_seq - 1))
        if overlapping and overlapping[-1].last_seq > looked.last_seq:
            kept.append(overlapping[-1]._replace(first_seq=looked.last_seq + 1))
        self._ranges[begin:end] = kept
        self._bound()
        self._earliest_us = min((each.look_us for each in self._ranges), default=NEVER_US)

    def _bound(self) -> None:
        """Makes one range of each two neighbours while there are too many."""
        while len(self._ranges) > RANGES_MAX:
            pairs = zip_longest(self._ranges[::2], self._ranges[1::2])
            self._ranges = [one if other is None else _joined(one, other) for one, other in pairs]

    def check(self) -> None:
        """Walks the invariants; AssertionError names the one that does not hold."""
        for one, other in pairwise(self._ranges):
            assert one.last_seq < other.first_seq, "two ranges overlap"
        assert all(each.first_seq <= each.last_seq for each in self._ranges), "a range ends before it begins"
        earliest = min((each.look_us for each in self._ranges), default=NEVER_US)
        assert self._earliest_us == earliest, "the next look is at another time"
        assert len(self._ranges) <= RANGES_MAX, "there are too many ranges"


def _joined(one: ExpiryRange, other: ExpiryRange) -> ExpiryRange:
    return ExpiryRange(one.first_seq, other.last_seq, min(one.look_us, other.look_us))
