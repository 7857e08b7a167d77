"""The seqs that a follower has applied out of order, and the newest state that its readers see. Pure.

    seq       0 ............ 400        500 ..... 620      700 ... 710
              [   prefix    ]           [ range  ]         [range]
                       ^ visible seq 380: the newest end in the prefix

A follower that fetches several segments beside the live stream applies each part when it comes. All seqs of the prefix
are applied. Ranges above it are kept apart: readers do not see them, and no row of them supersedes a row below, until
the prefix reaches them. A row at or below the prefix that comes again is skipped. An *end* is a seq at which a snapshot
of the leader, a published batch or a segment ends.

A run, such as a segment, may lack rows that later rows of it supersede. So no state strictly inside it can be shown,
and its seqs count only when the whole run is applied. In a complete range nothing is missing, and each end stays.
"""

from __future__ import annotations

from typing import NamedTuple

# The most ranges beside the prefix; they are persisted with each change. Two segments that are fetched at the same
# time leave at most two.
RANGES_MAX = 64


class AppliedRange(NamedTuple):
    """The applied seqs (``after_seq``, ``last_seq``], and the newest ``end`` in them; 0: none is known."""

    after_seq: int
    last_seq: int
    end: int = 0


class AppliedRanges(NamedTuple):
    """The applied seqs of a partition; immutable, and small enough to be persisted with each change.

    All seqs up to ``prefix`` are applied. ``visible_seq`` is the newest end in the prefix. ``ranges`` lie above the
    prefix, in order, and do not touch each other.
    """

    prefix: int = 0
    visible_seq: int = 0
    ranges: tuple[AppliedRange, ...] = ()

    def with_complete(self, after_seq: int, last_seq: int) -> AppliedRanges | None:
        """Returns this state after all rows of (``after_seq``, ``last_seq``] were applied, superseded ones included.

        None if that makes more than RANGES_MAX ranges: the caller applies it when the prefix has come nearer.
        """
        return self._with(AppliedRange(after_seq, last_seq), keeps_ends=True)

    def with_run(self, after_seq: int, last_seq: int) -> AppliedRanges | None:
        """Returns this state after the whole run (``after_seq``, ``last_seq``] was applied. ``last_seq`` is an end.

        Ends strictly inside it are ends no more. None if that makes more than RANGES_MAX ranges.
        """
        return self._with(AppliedRange(after_seq, last_seq, last_seq), keeps_ends=False)

    def with_end(self, seq: int) -> AppliedRanges:
        """Returns this state after the leader has named ``seq`` as an end, whose rows came in a complete range."""
        if seq <= self.prefix:
            return self._replace(visible_seq=max(self.visible_seq, seq))
        ranges = tuple(
            one._replace(end=max(one.end, seq)) if one.after_seq < seq <= one.last_seq else one for one in self.ranges
        )
        return self._replace(ranges=ranges)

    @property
    def purge_bound(self) -> int:
        """The seq up to which a compaction may drop rows and tombstones: readers still see the puts that they hide."""
        return self.visible_seq

    def holes(self) -> tuple[tuple[int, int], ...]:
        """Returns the runs (after seq, last seq) that are missing between the prefix and the last range."""
        begins = (self.prefix, *(one.last_seq for one in self.ranges))
        return tuple((begin, one.after_seq) for begin, one in zip(begins, self.ranges, strict=False))

    def without_ranges(self) -> tuple[AppliedRanges, tuple[AppliedRange, ...]]:
        """Returns the state of a promotion that cannot fill the holes, and the dropped seqs.

        It leads from the visible seq on. The seqs above it in the prefix are the first dropped range.
        """
        rest = (AppliedRange(self.visible_seq, self.prefix),) if self.visible_seq < self.prefix else ()
        return AppliedRanges(self.visible_seq, self.visible_seq), (*rest, *self.ranges)

    def check(self) -> None:
        """Walks the invariants; AssertionError names the one that does not hold."""
        assert 0 <= self.visible_seq <= self.prefix, "the visible seq is above the prefix"
        below = self.prefix
        for one in self.ranges:
            assert below < one.after_seq < one.last_seq, "ranges touch each other, or are empty or out of order"
            assert one.end == 0 or one.after_seq < one.end <= one.last_seq, "a range's end is outside of it"
            below = one.last_seq
        assert len(self.ranges) <= RANGES_MAX, "there are too many ranges"

    def _with(self, added: AppliedRange, *, keeps_ends: bool) -> AppliedRanges | None:
        """Returns the union with ``added``. Ranges that touch it, and the prefix if it does, are joined with it."""
        joined = [one for one in self.ranges if one.after_seq <= added.last_seq and added.after_seq <= one.last_seq]
        apart = [one for one in self.ranges if one not in joined]
        ends = [one.end for one in joined]
        if not keeps_ends:
            ends = [end for end in ends if not added.after_seq < end < added.last_seq]
        last_seq = max([added.last_seq, *(one.last_seq for one in joined)])
        end = max([added.end, *ends])
        if added.after_seq <= self.prefix:
            return AppliedRanges(max(self.prefix, last_seq), max(self.visible_seq, end), tuple(apart))
        after_seq = min([added.after_seq, *(one.after_seq for one in joined)])
        ranges = tuple(sorted((*apart, AppliedRange(after_seq, last_seq, end))))
        return self._replace(ranges=ranges) if len(ranges) <= RANGES_MAX else None
