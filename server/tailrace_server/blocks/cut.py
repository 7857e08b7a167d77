"""A part of a block as a block of its own."""

from __future__ import annotations

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace_server.blocks.arrays import arrays_of, encode_arrays, take


def cut_above(block: Block, seq: int) -> Block:
    """The rows of ``block``, which has its seqs, above ``seq``; itself where all are.

    Nobody's number stands in the part. ValueError where no row is above, BadBlock where its columns break the format.
    """
    if block.header.first_seq > seq:
        return block
    return _part(block, seq, is_above=True)


def cut_through(block: Block, seq: int) -> Block:
    """The rows of ``block``, which has its seqs, up to ``seq``; itself where all are. Else as ``cut_above``."""
    if block.header.last_seq <= seq:
        return block
    return _part(block, seq, is_above=False)


def _part(block: Block, seq: int, *, is_above: bool) -> Block:
    header, arrays = block.header, arrays_of(block)
    row = int(arrays.seqs.searchsorted(np.uint64(seq), side="right"))
    part = take(arrays, slice(row, None) if is_above else slice(row))
    return encode_arrays(part, header.partition, compress=bool(header.flags & FLAG_COMPRESSED))
