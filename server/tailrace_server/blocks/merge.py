"""Merges neighbouring blocks of one partition into one block, by columns; the rows stay the same.

    seqs 5..9, 10..10, 11..14  ──>  seqs 5..14

The result names no producer: the partition's table has the producers' numbers, and a merged block is never resent.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import numpy as np

from tailrace.block import BODY_BYTES_MAX, ROWS_MAX, Block
from tailrace.block.arrays import ColumnArrays, encode_arrays, join_arrays, join_blocks
from tailrace.block.header import sum_of
from tailrace.errors import BadBlock
from tailrace_server.blocks.heads import Heads, heads_of
from tailrace_server.blocks.small import join_small

# Bytes that merging may add: to a row a seq, a timestamp, a ttl and a bit, which a block may leave out; and to the
# whole block the padding of each column.
_ADDED_BYTES_A_ROW = 8 + 8 + 4 + 1
_ADDED_BYTES = 8 * 8
# Blocks that are joined in one step: about 0.2 ms. Of small ones all together, which pays from about TOGETHER_MIN on,
# column after column: a step takes 0.1 to 0.2 ms.
STEP_BLOCKS = 16
SMALL_STEP_BLOCKS = 1_024
# Bodies whose sums are compared in one step.
CHECKED_BLOCKS = 512
TOGETHER_MIN = 24
# Blocks of at most this many raw bytes are small.
SMALL_BYTES_MAX = 4 * 1024


def fits(blocks: Sequence[Block]) -> bool:
    """Returns whether one block can hold the rows of ``blocks``, for any seqs and timestamps; it reads headers only."""
    return _fits(heads_of(blocks))


def merge_blocks(blocks: Sequence[Block], *, compress: bool) -> Block:
    """Returns one block with the rows of ``blocks``, which are of one partition, have their seqs and lie in order.

    It has columns of seqs and timestamps only if the header cannot hold them. The bodies' sums and the columns are
    checked before the merge, and the result after it. BadBlock if a block is damaged; ValueError if the rows do not fit
    into one block, which ``fits`` tells.
    """
    (block,) = filter(None, merge_steps(blocks, compress=compress))
    return block


def merge_steps(blocks: Sequence[Block], *, compress: bool) -> Iterator[Block | None]:
    """Does the same as ``merge_blocks`` in steps: each yields None, and the last one yields the block."""
    heads = heads_of(blocks)
    _check_neighbours(blocks, heads)
    if not _fits(heads):
        rows, raw_bytes = heads["rows"].sum(), heads["raw_bytes"].sum()
        raise ValueError(f"{len(blocks)} blocks of {rows} rows and {raw_bytes} raw bytes do not fit into one: ask fits")
    yield None
    pieces: list[ColumnArrays] = []
    for begin in range(0, len(blocks), SMALL_STEP_BLOCKS):
        step = slice(begin, begin + SMALL_STEP_BLOCKS)
        joined = yield from _joined_small(blocks[step], heads[step])
        if joined is None:
            yield from _joined_singly(blocks[step], heads[step], pieces)
        else:
            pieces.append(joined)
            yield None
    yield encode_arrays(join_arrays(pieces), int(heads["partition"][0]), compress=compress)


def _joined_small(blocks: Sequence[Block], heads: Heads) -> Generator[None, None, ColumnArrays | None]:
    """Returns the columns of small blocks, opened together; None if they have to be opened one by one. In steps."""
    if len(blocks) < TOGETHER_MIN or heads["raw_bytes"].max() > SMALL_BYTES_MAX:
        return None
    for begin in range(0, len(blocks), CHECKED_BLOCKS):
        step = slice(begin, begin + CHECKED_BLOCKS)
        _check_bodies(blocks[step], heads[step])
        yield
    return (yield from join_small(blocks, heads))


def _joined_singly(blocks: Sequence[Block], heads: Heads, pieces: list[ColumnArrays]) -> Iterator[None]:
    """Adds the columns of blocks to ``pieces``, in steps."""
    for begin in range(0, len(blocks), STEP_BLOCKS):
        step = slice(begin, begin + STEP_BLOCKS)
        _check_bodies(blocks[step], heads[step])
        pieces.append(join_blocks(blocks[step]))
        yield None


def _fits(heads: Heads) -> bool:
    rows, raw_bytes = int(heads["rows"].sum()), int(heads["raw_bytes"].sum())
    return rows <= ROWS_MAX and raw_bytes + rows * _ADDED_BYTES_A_ROW + _ADDED_BYTES <= BODY_BYTES_MAX


def _check_bodies(blocks: Sequence[Block], heads: Heads) -> None:
    """Raises BadBlock if a body does not have the checksum of its header."""
    for block, claimed in zip(blocks, heads["body_sum"].tolist(), strict=True):
        found = sum_of(block.body)
        if found != claimed:
            raise BadBlock(f"the body of {block} has the checksum {found:016x}, its header says another: it is damaged")


def _check_neighbours(blocks: Sequence[Block], heads: Heads) -> None:
    """Raises ValueError if no block can have these rows in this order."""
    if not blocks:
        raise ValueError("there are no blocks to merge")
    if blocks[0].seqs[0] == 0:
        raise ValueError(f"{blocks[0]} has no seqs yet")
    before, after = heads[:-1], heads[1:]
    broken = before["partition"] != after["partition"]
    broken |= before["last_seq"] >= after["first_seq"]
    broken |= before["timestamp"] > after["timestamp"]
    if not broken.any():
        return
    index = int(np.flatnonzero(broken)[0])
    earlier, later = before[index], after[index]
    first, second = blocks[index : index + 2]
    if earlier["partition"] != later["partition"]:
        raise ValueError(f"{first} and {second} are of different partitions")
    if earlier["last_seq"] >= later["first_seq"]:
        raise ValueError(f"{second} does not come after {first}")
    raise ValueError(f"{second} has timestamp {later['timestamp']}, {first} has {earlier['timestamp']}")
