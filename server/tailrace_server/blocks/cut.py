"""A part of a block as a block of its own."""

from __future__ import annotations

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace_server.blocks.arrays import arrays_of, encode_arrays, take


def cut_above(block: Block, seq: int) -> Block:
    """The rows of ``block``, which has its seqs, above ``seq``; itself where all are.

    Nobody's number stands in the part. ValueError where no row is above, BadBlock where its columns break the format.
    """
    header = block.header
    if header.first_seq > seq:
        return block
    arrays = arrays_of(block)
    row = int(arrays.seqs.searchsorted(np.uint64(seq), side="right"))
    rest = take(arrays, slice(row, None))
    return encode_arrays(rest, header.partition, compress=bool(header.flags & FLAG_COMPRESSED))
