"""Which neighbouring segments of a partition are folded into one, and which go for good. Pure.

    oldest                                                        newest
    [ 600 MB, major ]   [ 90 MB ][ 70 MB ]   [ 20 MB ][ 17 MB ]   [ 4 MB ][ 5 MB ][ 4 MB ][ 5 MB ]
     tier 6              tier 5               tier 4               tier 3: four of them, so they are folded

A segment's tier is the logarithm of its size to base 4. A segment that is smaller than a newer one counts as large as
that, so that tiers never grow towards the newest and the segments of a tier are neighbours. In a feed that keeps the
latest value of each key, the first of these that holds decides:

    SHARE        the newer segments have half the bytes, or half the rows, of the oldest: all are folded
    TIER         four or more are of one tier: these are folded, the lowest tier first
    TOMBSTONES   a fifth of the rows of the oldest ones are tombstones that may go: just these are folded

What it costs, in theory; the tests hold it to that:

    segments      at most 3 of a tier, so at most 3 for each factor of 4 between the largest and 64 KiB
    writing       each byte once by the flush, once for each tier that it passes, and (1 + 1/2) / (1/2) = 3 times for
                  majors. A segment that hides in a higher tier adds at most 3 more writes a tier.
    space         at most 1.5 times the oldest segment, plus a flush, and while all are folded as much again. A row
                  supersedes one at most, so of an oldest segment that has been folded half the rows are live at
                  least: where nothing is deleted that makes 1.5 times the live rows, where half have just been, 3.

Half, because a third of the space for good is less than the second and third copy of the data that every compaction
needs for its time, and a smaller share costs writes: 5 for a quarter. Below 64 KiB nothing is worth a process.

A ``history`` feed keeps every row, so that only TIER counts there, and folding saves nothing but files. It is trimmed
by whole segments, so a folded one gets no larger than an eighth of the bytes, and no longer than an eighth of the time,
that the feed keeps.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.compaction.task import INPUTS_MAX
from tailrace_server.segment.identity import ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.model import FeedInfo
    from tailrace_server.manifest import SegmentEntry

_HISTORY_PARTS = 8  # what is kept too long by trimming whole segments is an eighth at most


class Reason(enum.Enum):
    """Why segments are folded; the table above."""

    SHARE = "share"
    TIER = "tier"
    TOMBSTONES = "tombstones"


class PartitionRetention(NamedTuple):
    """What a partition keeps: the latest of each key, or with ``history`` every row, as long and as much as it says.

    ``age_us`` (microseconds) and ``nbytes`` bound a history; None: no bound.
    """

    history: bool = False
    age_us: int | None = None
    nbytes: int | None = None

    @classmethod
    def of(cls, info: FeedInfo) -> PartitionRetention:
        """That of each partition of a feed, which has an equal share of the feed's bytes."""
        if info.retention != "history":
            return cls()
        return cls(
            history=True,
            age_us=None if info.history_age_s is None else int(info.history_age_s * 1e6),
            nbytes=None if info.history_bytes is None else int(info.history_bytes / info.partitions),
        )


class CompactionLimits(NamedTuple):
    """The numbers of the table above, and what one compaction may take on.

    ``inputs_max`` bounds open files, and leaves room for all of them in the result's identity; ``rows_max`` is the key
    table's 32 bits.
    """

    tier_segments_min: int = 4
    tier_ratio: int = 4
    tier_bytes_min: int = 64 * 1024
    major_share: float = 0.5
    tombstone_share: float = 0.2
    inputs_max: int = INPUTS_MAX
    rows_max: int = ROWS_MAX


class CompactionPlan(NamedTuple):
    """Fold the segments from index ``first`` to index ``last`` of the chain, both included.

    ``is_major``: the oldest is among them. ``nbytes`` and ``rows`` are theirs together.
    """

    first: int
    last: int
    is_major: bool
    reason: Reason
    nbytes: int
    rows: int


class Trim(NamedTuple):
    """The ``segments`` oldest ones go, and everything up to ``trim_seq`` with them."""

    segments: int
    trim_seq: int


def choose(
    entries: Sequence[SegmentEntry],
    *,
    retention: PartitionRetention,
    stable_seq: int,
    purge_before_us: int | None,
    old_seq: int = 0,
    marks: Sequence[int] = (),
    limits: CompactionLimits | None = None,
) -> CompactionPlan | None:
    """What to fold next of a partition's chain, oldest first; None where it may stay as it is.

    Only segments that end at or below ``stable_seq`` are folded: one that a rollback may still drop is better dropped
    alone. ``purge_before_us`` is the timestamp up to which tombstones may go (microseconds since 1970 UTC); None while
    nobody vouches for the clock. Where stamps lie ahead of the clock, tombstones may go up to ``old_seq`` instead, if
    that is not 0; and a history is folded so that at most one of the rising seqs ``marks``, which tell its age, lies
    inside. Folding as chosen and choosing again comes to an end.
    """
    limits = limits or CompactionLimits()
    stable = [entry for entry in entries if entry.last_seq <= stable_seq]
    if retention.history:
        return _compact_tier(stable, retention, limits, marks)
    return (
        _compact_all(stable, limits)
        or _compact_tier(stable, retention, limits)
        or _compact_tombstones(stable, purge_before_us, old_seq, limits)
    )


def trim(
    entries: Sequence[SegmentEntry], *, before_us: int | None, bytes_max: int | None, old_seq: int = 0
) -> Trim | None:
    """Which of the oldest segments of a history feed go; None where all stay.

    A segment goes when all its rows are older than ``before_us`` (microseconds since 1970 UTC) or at or below
    ``old_seq``, or when the newer ones have ``bytes_max`` bytes without it; None: no bound, or nobody vouches for the
    clock. So at least what was asked for is kept, and at most a segment more.
    """
    left = sum(entry.nbytes for entry in entries)
    count = 0
    for entry in entries:
        left -= entry.nbytes
        too_old = before_us is not None and entry.newest_timestamp < before_us
        too_old |= entry.last_seq <= old_seq
        too_much = bytes_max is not None and left >= bytes_max
        if not too_old and not too_much:
            break
        count += 1
    return Trim(count, entries[count - 1].last_seq) if count else None


def tier_of(nbytes: int, limits: CompactionLimits) -> int:
    """The tier of a segment of ``nbytes`` bytes: 0 below the least size times the ratio, then one for each ratio."""
    tier, bound = 0, limits.tier_bytes_min * limits.tier_ratio
    while nbytes >= bound:
        tier, bound = tier + 1, bound * limits.tier_ratio
    return tier


def _compact_all(entries: Sequence[SegmentEntry], limits: CompactionLimits) -> CompactionPlan | None:
    """SHARE. Where there are too many for one compaction, the oldest of them."""
    if len(entries) < 2:
        return None
    oldest, newer = entries[0], entries[1:]
    nbytes, rows = sum(entry.nbytes for entry in newer), sum(entry.rows for entry in newer)
    large = nbytes >= limits.major_share * oldest.nbytes or rows >= limits.major_share * oldest.rows
    if nbytes < limits.tier_bytes_min or not large:
        return None
    last = min(len(entries), limits.inputs_max) - 1
    return _plan(entries, 0, last, Reason.SHARE, limits)


def _compact_tier(
    entries: Sequence[SegmentEntry], retention: PartitionRetention, limits: CompactionLimits, marks: Sequence[int] = ()
) -> CompactionPlan | None:
    """TIER."""
    for first, stop in _tiers(entries, limits):
        while stop - first >= limits.tier_segments_min:
            count = _fitting(entries[first:stop], retention, limits, marks)
            if count >= limits.tier_segments_min:
                return _plan(entries, first, first + count - 1, Reason.TIER, limits)
            first += 1
    return None


def _tiers(entries: Sequence[SegmentEntry], limits: CompactionLimits) -> Iterator[tuple[int, int]]:
    """The stretches of one tier, the newest and lowest first, as the first index and the one behind the last."""
    tiers: list[int] = []
    for entry in reversed(entries):
        tiers.append(max(tier_of(entry.nbytes, limits), tiers[-1] if tiers else 0))
    stop = len(entries)
    for _, group in groupby(tiers):
        first = stop - len(list(group))
        yield first, stop
        stop = first


def _fitting(
    entries: Sequence[SegmentEntry], retention: PartitionRetention, limits: CompactionLimits, marks: Sequence[int]
) -> int:
    """How many of the first of ``entries`` one segment may take."""
    bytes_max = retention.nbytes // _HISTORY_PARTS if retention.nbytes is not None else None
    span_max = retention.age_us // _HISTORY_PARTS if retention.age_us is not None else None
    nbytes = rows = 0
    for count, entry in enumerate(entries[: limits.inputs_max]):
        nbytes, rows = nbytes + entry.nbytes, rows + entry.rows
        span = entry.newest_timestamp - entries[0].oldest_timestamp
        too_large = bytes_max is not None and nbytes > bytes_max
        too_long = span_max is not None and span > span_max
        if span_max is not None and not too_long:
            too_long = bisect_left(marks, entry.last_seq) - bisect_right(marks, entries[0].after_seq) > 1
        if rows > limits.rows_max or too_large or too_long:
            return count
    return min(len(entries), limits.inputs_max)


def _compact_tombstones(
    entries: Sequence[SegmentEntry], purge_before_us: int | None, old_seq: int, limits: CompactionLimits
) -> CompactionPlan | None:
    """TOMBSTONES: the shortest stretch from the oldest on in which they are enough.

    Only segments whose rows are all old enough count: what is counted here does go, so nothing is folded in vain.
    """
    rows = expired = 0
    for last, entry in enumerate(entries[: limits.inputs_max]):
        rows += entry.rows
        if old_seq:
            is_old = entry.last_seq <= old_seq
        else:
            is_old = purge_before_us is not None and entry.newest_timestamp <= purge_before_us
        if not is_old:
            return None
        expired += entry.tombstones
        if expired and expired >= limits.tombstone_share * rows:
            return _plan(entries, 0, last, Reason.TOMBSTONES, limits)
    return None


def _plan(
    entries: Sequence[SegmentEntry], first: int, last: int, reason: Reason, limits: CompactionLimits
) -> CompactionPlan | None:
    """The plan, unless it has more rows than a segment can have."""
    chosen = entries[first : last + 1]
    rows = sum(entry.rows for entry in chosen)
    if rows > limits.rows_max:
        return None
    return CompactionPlan(first, last, first == 0, reason, sum(entry.nbytes for entry in chosen), rows)
