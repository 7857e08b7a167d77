"""Cuts a segment for a rollback to a seq inside it: its beginning becomes a segment of its own.

A deduplicated segment cannot be cut: it lacks the rows below the seq that later rows replaced.
"""

from __future__ import annotations

from tailrace_server.blocks import cut_through
from tailrace_server.host.disk import Disk
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.segment import Segment, SegmentWriter
from tailrace_server.segment.totals import RowTotals

# Bytes of one read of a segment.
READ_BYTES = 1024 * 1024


def straddling(chain: Chain, seq: int) -> Segment | None:
    """Returns the segment of ``chain`` with rows on both sides of ``seq`` if it can be cut there, else None."""
    for segment in chain.after(seq)[:1]:
        identity = segment.identity
        if identity.after_seq < seq and not identity.deduplicated and not isinstance(segment, LostSegment):
            return segment
    return None


def cut_segment(
    disk: Disk, store: ManifestStore, segment: Segment, seq: int, branch: bytes, segment_id: bytes
) -> Segment:
    """Writes the rows of ``segment`` up to ``seq``, which is of ``branch``, to a new segment ``segment_id``.

    Returns it durable and open; no manifest names it yet. Raises SegmentDamaged, BadBlock, NoSpace, OSError, and leaves
    no file then.
    """
    whole = segment.identity
    uncounted = RowTotals().fill(whole)
    identity = uncounted._replace(
        branch=branch,
        segment_id=segment_id,
        included_ids=(),
        last_seq=seq,
        purge_seq=min(whole.purge_seq, seq),
    )
    path = store.segment_path(identity.feed_id, identity.partition, segment_id)
    writer = SegmentWriter(disk, path, identity)
    try:
        index = 0
        while index < segment.blocks:
            blocks, index = segment.read_blocks(index, READ_BYTES)
            for block in blocks:
                if block.header.first_seq > seq:
                    index = segment.blocks
                    break
                writer.add(cut_through(block, seq))
        writer.finish()
    finally:
        writer.abandon()
    return Segment.open(store.segment_files, path)
