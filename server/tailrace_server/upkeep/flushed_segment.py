"""The segment that a flush writes: the blocks that go into it, its identity, and its file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from tailrace.block import Block
from tailrace_server.host.disk import Disk
from tailrace_server.host.open_files import Opener
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import NO_BASE, Segment, SegmentIdentity, SegmentWriter

# The bound of one segment's blocks. It also bounds the memory of a flush beside the queue, and how long a flush takes.
SEGMENT_BYTES_MAX = 64 * 1024 * 1024


def flushable_seq(partition: Partition) -> int:
    """Returns the last seq that may be flushed and merged now.

    If followers get segments instead of rows, no majority can have a row before it is flushed.
    """
    return partition.safe_seq if partition.pushes.by_segments else partition.stable_seq


def lacks_end(partition: Partition) -> bool:
    """Returns whether all segments of ``partition`` were trimmed, so that none has its flushed seq."""
    return not partition.chain.segments and partition.flushed_seq > 0 and not partition.is_dropped


def blocks_through(partition: Partition, seq: int) -> list[Block]:
    """Returns the oldest blocks of the write queue up to ``seq``, for one segment. A published run is not divided."""
    blocks: list[Block] = []
    size = whole = 0
    for block in partition.tree.blocks_after(partition.flushed_seq):
        size += block.nbytes
        if block.header.last_seq > seq or (whole and size > SEGMENT_BYTES_MAX):
            break
        blocks.append(block)
        if partition.published.around(block.header.last_seq) is None:
            whole = len(blocks)
    return blocks[:whole]


@contextlib.contextmanager
def divided_at(partition: Partition, seq: int) -> Iterator[None]:
    """Keeps merges of blocks from crossing ``seq`` while the body runs, which divides the write queue there.

    After a flush a merged block that crosses its end would stay in the queue, with rows that a segment has.
    """
    partition.divisions.append(seq)
    try:
        yield
    finally:
        partition.divisions.remove(seq)


def identity_of(partition: Partition, after_seq: int, last_seq: int, segment_id: bytes) -> SegmentIdentity:
    """Returns the identity of a segment (``after_seq``, ``last_seq``] that is based on the newest one."""
    segments = partition.chain.segments
    return SegmentIdentity(
        feed_id=partition.feed_id,
        partition=partition.id,
        branch=partition.log.branch_at(last_seq),
        segment_id=segment_id,
        base_id=segments[-1].identity.segment_id if segments else NO_BASE,
        included_ids=(),
        is_major=not segments,
        deduplicated=False,
        after_seq=after_seq,
        last_seq=last_seq,
        purge_seq=0,
    )


def write_segment(disk: Disk, files: Opener, path: str, identity: SegmentIdentity, blocks: Sequence[Block]) -> Segment:
    """Writes a segment of ``blocks`` and opens it by ``files``. It is durable; no manifest names it yet.

    NoSpace, OSError: there is no segment.
    """
    writer = SegmentWriter(disk, path, identity)
    try:
        for block in blocks:
            writer.add(block)
        writer.finish()
    finally:
        writer.abandon()
    return Segment.open(files, path)
