"""Neighbouring blocks of one partition made one: by columns, and the rows stay what they are.

    seqs 5..9, 10..10, 11..14  ──>  seqs 5..14

Nobody's number stands in the result: the producers' are in the partition's table, and a merged block is never resent.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailrace.block import BODY_BYTES_MAX, ROWS_MAX, Block
from tailrace.block.header import sum_of
from tailrace.errors import BadBlock
from tailrace_server.blocks.arrays import encode_arrays, join_blocks

# What merging may add: to a row a seq, a timestamp and a bit, all that a block may have left out; and to the whole the
# padding of each column.
_ADDED_BYTES_A_ROW = 8 + 8 + 1
_ADDED_BYTES = 8 * 8


def fits(blocks: Sequence[Block]) -> bool:
    """Whether one block can hold the rows of ``blocks``, whatever seqs and timestamps they have: by headers alone."""
    rows = sum(block.header.rows for block in blocks)
    raw_bytes = sum(block.header.raw_bytes for block in blocks)
    return rows <= ROWS_MAX and raw_bytes + rows * _ADDED_BYTES_A_ROW + _ADDED_BYTES <= BODY_BYTES_MAX


def merge_blocks(blocks: Sequence[Block], *, compress: bool) -> Block:
    """One block with the rows of ``blocks``, which are of one partition, have their seqs and lie in their order.

    It has columns of seqs and timestamps where these cannot be told otherwise. Bodies are summed and columns checked
    before, and the result after. BadBlock for damaged ones, ValueError for blocks that make no block together: ask
    ``fits``.
    """
    _check_neighbours(blocks)
    if not fits(blocks):
        rows, raw_bytes = sum(block.rows for block in blocks), sum(block.header.raw_bytes for block in blocks)
        raise ValueError(f"{len(blocks)} blocks of {rows} rows and {raw_bytes} raw bytes do not fit into one: ask fits")
    for block in blocks:
        found = sum_of(block.body)
        if found != block.header.body_sum:
            raise BadBlock(f"the body of {block} has the checksum {found:016x}, its header says another: it is damaged")
    return encode_arrays(join_blocks(blocks), blocks[0].header.partition, compress=compress)


def _check_neighbours(blocks: Sequence[Block]) -> None:
    """ValueError where no block can have these rows in this order."""
    if not blocks:
        raise ValueError("there are no blocks to merge")
    if blocks[0].header.first_seq == 0:
        raise ValueError(f"{blocks[0]} has no seqs yet")
    for before, after in pairwise(blocks):
        earlier, later = before.header, after.header
        if earlier.partition != later.partition:
            raise ValueError(f"{before} and {after} are of different partitions")
        if earlier.last_seq >= later.first_seq:
            raise ValueError(f"{after} does not come after {before}")
        if earlier.timestamp > later.timestamp:
            raise ValueError(f"{after} has timestamp {later.timestamp}, {before} has {earlier.timestamp}")
