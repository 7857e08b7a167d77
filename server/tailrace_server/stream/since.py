"""Finds the start of a stream that is asked for since a time. Pure, but `find_start_in` reads blocks of one segment.

Timestamps never fall within a partition, so there is one seq such that all above it are stamped at the time or later,
and nothing below it is:

    segments                  [1 .. 40]       [41 .. 90]          tree [91][92 .. 99]
    stamped                   8:00 to 9:00    9:10 to 9:50             9:50  10:00
    since 9:20                                   ^ bisected, a block a step, in a thread
    since 9:55                                                            ^ by the blocks' headers

In a run the stream begins in the middle, and its consumer is told the run's bounds, like a consumer that resumed
there. It has no rows from below the start, so it does not need the superseded rows that are missing there. If the run
is rolled back, the consumer goes back to the run's start.

Stamps ahead of the clock do not help. Then `start_behind` uses the marks of the node (state/ahead.py).
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.errors import DataGone
from tailrace.model.failover import SEQ_MAX
from tailrace.model.times import to_text
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Segment


class StreamStart(NamedTuple):
    """A stream begins at ``seq``, within (``snapshot_first``, ``snapshot_last``]; all three are equal between runs.

    ``known_seq`` is the last existing row that was stamped before the time. A missing row above it may have been
    stamped later.
    """

    seq: int
    snapshot_first: int
    snapshot_last: int
    known_seq: int

    @classmethod
    def at(cls, seq: int, known_seq: int) -> StreamStart:
        """Between runs."""
        return cls(seq, seq, seq, known_seq)


class DroppedBefore(NamedTuple):
    """Upper bounds of the stamps of rows that were dropped for their age (microseconds since 1970 UTC)."""

    purged_before_us: int = SEQ_MAX + 1
    trimmed_before_us: int = SEQ_MAX + 1


def find_start(partition: Partition, since_us: int) -> StreamStart | Segment:
    """Returns the start of a stream since ``since_us``, or the segment that `find_start_in` has to search."""
    if since_us > partition.last_timestamp:
        return StreamStart.at(partition.high_seq, partition.high_seq)
    seq = partition.tree.seq_before(since_us)
    if seq > partition.flushed_seq:
        return StreamStart.at(seq, seq)
    known_seq = 0
    for segment in partition.chain.segments:
        identity = segment.identity
        if not identity.rows:
            continue
        if identity.oldest_timestamp >= since_us:
            return StreamStart.at(identity.after_seq, known_seq)
        if identity.newest_timestamp >= since_us:
            return segment
        known_seq = segment.last_row_seq
    return StreamStart.at(partition.flushed_seq, known_seq)


def find_start_in(segment: Segment, since_us: int) -> StreamStart:
    """Returns the start in a segment that has rows from before ``since_us`` and rows from then or later.

    Bisects the blocks, and reads one at each step. Raises SegmentDamaged.
    """
    low, high = 0, segment.blocks - 1  # the last one ends with the newest row
    while low < high:
        middle = (low + high) // 2
        if segment.read_block(middle).header.timestamp < since_us:
            low = middle + 1
        else:
            high = middle
    columns = segment.read_block(low).open_columns()
    row = columns.row_stamped(since_us)
    identity = segment.identity
    seq = columns.seqs()[row - 1] if row else int(segment.last_seqs[low - 1]) if low else identity.after_seq
    if identity.deduplicated and seq > identity.after_seq:
        return StreamStart(seq, identity.after_seq, identity.last_seq, seq)
    return StreamStart.at(seq, seq)


def start_behind(partition: Partition, start: StreamStart, seen_seq: int) -> StreamStart:
    """Returns ``start``, or the place behind ``seen_seq`` if that is further: those rows existed before the time.

    ``seen_seq`` is flushed. In a run the start gets the run's bounds, as from `find_start_in`.
    """
    if seen_seq <= start.seq:
        return start
    identity = next((s.identity for s in partition.chain.segments if s.identity.last_seq >= seen_seq), None)
    if identity is not None and identity.deduplicated and identity.after_seq < seen_seq < identity.last_seq:
        return StreamStart(seen_seq, identity.after_seq, identity.last_seq, seen_seq)
    return StreamStart.at(seen_seq, seen_seq)


def checked_start(partition: Partition, start: StreamStart, since_us: int, bounds: DroppedBefore) -> StreamStart:
    """Returns ``start``, or the place behind the purged and trimmed rows if these are known to be older.

    Raises DataGone if a mutation stamped at ``since_us`` or later may have been purged or trimmed.
    """
    if start.known_seq < partition.trim_seq and since_us < bounds.trimmed_before_us:
        raise DataGone(
            f"partition {partition.id} has been trimmed up to seq {partition.trim_seq}, and some since "
            f'{to_text(since_us)} may be among them: ask for a later time, or since "beginning" for all that are kept',
            first_seq=partition.trim_seq + 1,
        )
    if start.known_seq < partition.purge_seq and since_us < bounds.purged_before_us:
        raise DataGone(
            f"deletions of partition {partition.id} have been purged up to seq {partition.purge_seq}, and some of "
            f'those since {to_text(since_us)} may be among them: ask for a later time, or since "beginning" for the '
            "whole present state",
            first_seq=partition.purge_seq + 1,
        )
    gone_seq = max(partition.trim_seq, partition.purge_seq)
    if start.seq >= gone_seq:
        return start
    # The gone rows are older than the time, so all rows up to gone_seq are. A stream that began below it would end with
    # TRIMMED or PURGED.
    if gone_seq < start.snapshot_last:
        return start._replace(seq=gone_seq)
    return StreamStart.at(gone_seq, start.known_seq)
