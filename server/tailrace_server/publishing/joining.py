"""Joins the small blocks of a publish: a job of many tasks stages a block for each task and partition. Pure.

A publish of one block cannot be cut inside, so that streams may stop at its end as at any other block's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.block import FLAG_COMPRESSED, ROWS_MAX, Block
from tailrace_server.blocks import merge_blocks

# Raw bytes of a joined block, the same as of the blocks that a writer makes.
JOINED_BYTES_MAX = 1024 * 1024
_ANY_TIME = 1


def joined(blocks: Iterable[Block]) -> list[Block]:
    """Returns the rows of a producer's ``blocks``, which have no seqs yet, in few blocks.

    The result has no more bytes than ``blocks``, so that it keeps their bounds. BadBlock if a block is damaged.
    """
    return [block for group in _groups(blocks) for block in _joined_group(group)]


def joining_bytes(blocks: Iterable[Block]) -> int:
    """Returns the bytes that ``joined`` has to copy: the raw bytes of the blocks that do not stay as they are."""
    return sum(block.header.raw_bytes for group in _groups(blocks) if len(group) > 1 for block in group)


def _groups(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yields the blocks in order, in groups that each make one block."""
    group: list[Block] = []
    rows = raw_bytes = 0
    for block in blocks:
        header = block.header
        if group and (rows + header.rows > ROWS_MAX or raw_bytes + header.raw_bytes > JOINED_BYTES_MAX):
            yield group
            group, rows, raw_bytes = [], 0, 0
        group.append(block)
        rows += header.rows
        raw_bytes += header.raw_bytes
    if group:
        yield group


def _joined_group(group: list[Block]) -> list[Block]:
    """Returns one block, or the group itself if one block is larger, since lz4 may compress only some of its blocks."""
    if len(group) == 1:
        return group
    seq, numbered = 1, []
    for block in group:
        numbered.append(block.stamped(seq, _ANY_TIME))
        seq += block.rows
    one = merge_blocks(numbered, compress=any(block.header.flags & FLAG_COMPRESSED for block in group))
    return [one] if one.nbytes <= sum(block.nbytes for block in group) else group
