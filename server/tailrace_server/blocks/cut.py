"""Cuts a block at a seq: a part of it becomes a block of its own."""

from __future__ import annotations

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace.block.arrays import arrays_of, encode_arrays, take


def cut_above(block: Block, seq: int) -> Block:
    """Returns the rows of ``block``, which has its seqs, above ``seq``; the block itself if all are.

    The part names no producer. ValueError if no row is above, BadBlock if the block's columns break the format.
    """
    if block.header.first_seq > seq:
        return block
    return _part(block, seq, is_above=True)


def cut_through(block: Block, seq: int) -> Block:
    """Returns the rows of ``block``, which has its seqs, up to ``seq``; itself if all are. Else as ``cut_above``."""
    if block.header.last_seq <= seq:
        return block
    return _part(block, seq, is_above=False)


def _part(block: Block, seq: int, *, is_above: bool) -> Block:
    header, arrays = block.header, arrays_of(block)
    row = int(arrays.seqs.searchsorted(np.uint64(seq), side="right"))
    part = take(arrays, slice(row, None) if is_above else slice(row))
    return encode_arrays(part, header.partition, compress=bool(header.flags & FLAG_COMPRESSED))
