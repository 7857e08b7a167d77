"""Chooses which neighbouring segments of a partition are compacted into one, and which are dropped. Pure.

    oldest                                                        newest
    [ 600 MB, major ]   [ 90 MB ][ 70 MB ]   [ 20 MB ][ 17 MB ]   [ 4 MB ][ 5 MB ][ 4 MB ][ 5 MB ]
     tier 6              tier 5               tier 4               tier 3: four of them, so they are compacted

A segment's tier is the logarithm of its size to base 4. A segment that is smaller than a newer one counts as large as
the newer one. So tiers never grow towards the newest, and the segments of a tier are neighbours. In a feed that keeps
the latest value of each key, the first rule that holds decides:

    SHARE        the newer segments have half the bytes, or half the rows, of the oldest: all are compacted
    TIER         four or more are of one tier: these are compacted, the lowest tier first
    TOMBSTONES   a fifth of the rows of the oldest ones are tombstones that may go: only these are compacted

The costs, in theory; the tests check them:

    segments      at most 3 of a tier, so at most 3 for each factor of 4 between the largest and 64 KiB
    writing       each byte once by the flush, once for each tier that it passes, and (1 + 1/2) / (1/2) = 3 times for
                  majors. A segment that counts to a higher tier adds at most 3 more writes a tier.
    space         at most 1.5 times the oldest segment, plus a flush, and twice that while all are compacted. A row
                  supersedes at most one row, so at least half the rows of a compacted oldest segment are live: 1.5
                  times the live rows without deletions, and 3 times if half of the rows were just deleted.

The share is a half, because a third of the space is less than the second and third copy of the data that every
compaction needs for a while, and a smaller share costs writes: 5 for a quarter. Below 64 KiB a process costs more than
it saves.

A ``history`` feed keeps every row, so only TIER counts there, and compaction only saves files. It is trimmed by whole
segments, so a compacted one has at most an eighth of the bytes, and of the time, that the feed keeps.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from tailrace.segment.identity import ROWS_MAX
from tailrace_server.compaction.task import INPUTS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.model import FeedInfo
    from tailrace_server.manifest import SegmentEntry

_HISTORY_PARTS = 8  # trimming whole segments keeps at most an eighth too much


class Reason(enum.Enum):
    """The reason for a compaction; see the table above."""

    SHARE = "share"
    TIER = "tier"
    TOMBSTONES = "tombstones"


class PartitionRetention(NamedTuple):
    """The rows that a partition keeps: the latest of each key, or with ``history`` every row within the bounds.

    ``age_us`` (microseconds) and ``nbytes`` are the bounds of a history; None: no bound.
    """

    history: bool = False
    age_us: int | None = None
    nbytes: int | None = None

    @classmethod
    def of(cls, info: FeedInfo) -> PartitionRetention:
        """Returns the retention of each partition of a feed. Each has an equal share of the feed's bytes."""
        if info.retention != "history":
            return cls()
        return cls(
            history=True,
            age_us=None if info.history_age_s is None else int(info.history_age_s * 1e6),
            nbytes=None if info.history_bytes is None else int(info.history_bytes / info.partitions),
        )


class CompactionLimits(NamedTuple):
    """The numbers of the table above, and the bounds of one compaction.

    ``inputs_max`` bounds open files, and the ids in the result's identity. ``rows_max`` comes from the 32 bits of the
    key table.
    """

    tier_segments_min: int = 4
    tier_ratio: int = 4
    tier_bytes_min: int = 64 * 1024
    major_share: float = 0.5
    tombstone_share: float = 0.2
    inputs_max: int = INPUTS_MAX
    rows_max: int = ROWS_MAX


class CompactionPlan(NamedTuple):
    """A compaction of the segments from index ``first`` to index ``last`` of the chain, both included.

    ``is_major``: the oldest is among them. ``nbytes`` and ``rows`` are their sums.
    """

    first: int
    last: int
    is_major: bool
    reason: Reason
    nbytes: int
    rows: int


class Trim(NamedTuple):
    """Drops the oldest ``segments`` segments, and all rows up to ``trim_seq``."""

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
    """Returns the next compaction of a partition's chain, which begins with the oldest; None if it needs none.

    Only segments that end at or below ``stable_seq`` are compacted, because a rollback may still drop later ones.
    ``purge_before_us`` is the timestamp up to which tombstones may go (microseconds since 1970 UTC), None while the
    clock is not trusted. If timestamps are ahead of the clock, tombstones may go up to ``old_seq`` instead, unless it
    is 0. ``marks`` are rising seqs that tell the age of a history: a result has at most one of them inside. Repeated
    compactions come to an end.
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
    """Returns the oldest segments of a history feed that are dropped; None if all stay.

    A segment is dropped if all its rows are older than ``before_us`` (microseconds since 1970 UTC) or at or below
    ``old_seq``, or if the newer ones have ``bytes_max`` bytes without it. None: no bound, or the clock is not trusted.
    So the feed keeps at least its bounds, and at most one segment more.
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
    """Returns the tier of a segment of ``nbytes`` bytes: 0 below the least size times the ratio, then 1 a ratio."""
    tier, bound = 0, limits.tier_bytes_min * limits.tier_ratio
    while nbytes >= bound:
        tier, bound = tier + 1, bound * limits.tier_ratio
    return tier


def _compact_all(entries: Sequence[SegmentEntry], limits: CompactionLimits) -> CompactionPlan | None:
    """Applies rule SHARE. If there are too many segments for one compaction, it takes the oldest."""
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
    """Applies rule TIER."""
    for first, stop in _tiers(entries, limits):
        while stop - first >= limits.tier_segments_min:
            count = _fitting(entries[first:stop], retention, limits, marks)
            if count >= limits.tier_segments_min:
                return _plan(entries, first, first + count - 1, Reason.TIER, limits)
            first += 1
    return None


def _tiers(entries: Sequence[SegmentEntry], limits: CompactionLimits) -> Iterator[tuple[int, int]]:
    """Yields the segments of each tier, the newest and lowest first, as (first index, index after the last)."""
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
    """Returns how many of the first ``entries`` fit into one segment."""
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
    """Applies rule TOMBSTONES: takes the fewest of the oldest segments that have enough tombstones.

    Only segments with old rows alone count, so that all counted tombstones go.
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
    """Returns the plan, or None if it has more rows than a segment can have."""
    chosen = entries[first : last + 1]
    rows = sum(entry.rows for entry in chosen)
    if rows > limits.rows_max:
        return None
    return CompactionPlan(first, last, first == 0, reason, sum(entry.nbytes for entry in chosen), rows)
