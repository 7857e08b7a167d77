"""The beginning of a segment as a segment of its own: for a rollback to a point inside of it.

Only where all rows are there, and not where it is deduplicated: of a row that was superseded above the point nobody
knows any more what it was.
"""

from __future__ import annotations

from tailrace_server.blocks import cut_through
from tailrace_server.host.disk import Disk
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.segment import Segment, SegmentWriter

# What is read of a segment at once.
READ_BYTES = 1024 * 1024


def straddling(chain: Chain, seq: int) -> Segment | None:
    """The segment of ``chain`` that has rows on both sides of ``seq``, where it can be cut there; else None."""
    for segment in chain.after(seq)[:1]:
        identity = segment.identity
        if identity.after_seq < seq and not identity.deduplicated and not isinstance(segment, LostSegment):
            return segment
    return None


def cut_segment(
    disk: Disk, store: ManifestStore, segment: Segment, seq: int, branch: bytes, segment_id: bytes
) -> Segment:
    """Makes a segment ``segment_id`` of the rows of ``segment`` up to ``seq``, which is of ``branch``; durable, open.

    Nobody names it yet. Raises SegmentDamaged, BadBlock, NoSpace, OSError: there is none then.
    """
    whole = segment.identity
    identity = whole._replace(
        branch=branch,
        segment_id=segment_id,
        included_ids=(),
        last_seq=seq,
        purge_seq=min(whole.purge_seq, seq),
        rows=0,
        tombstones=0,
        oldest_timestamp=0,
        newest_timestamp=0,
        key_value_bytes=0,
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
