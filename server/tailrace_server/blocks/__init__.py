"""Makes blocks of other blocks, by whole columns with numpy and never row by row.

    heads.py     the headers of many blocks as columns
    merge.py     neighbouring blocks into one
    builder.py   rows out of many blocks into blocks of a size
    cut.py       the rows of a block above a seq
    detached.py  a block without the buffer that it was received in

Everything here is pure, and may run in any thread. The columns of blocks as numpy arrays are in tailrace.block.arrays,
whose names are here as well.
"""

from __future__ import annotations

from tailrace.block.arrays import (
    ColumnArrays,
    arrays_of,
    encode_arrays,
    join_arrays,
    join_blocks,
    reorder,
    take,
)
from tailrace.block.found import FoundRow, row_of_key
from tailrace_server.blocks.builder import BlockBuilder
from tailrace_server.blocks.cut import cut_above, cut_through
from tailrace_server.blocks.detached import detached
from tailrace_server.blocks.heads import Heads, heads_of
from tailrace_server.blocks.merge import fits, merge_blocks, merge_steps

__all__ = [
    "BlockBuilder",
    "ColumnArrays",
    "FoundRow",
    "Heads",
    "arrays_of",
    "cut_above",
    "cut_through",
    "detached",
    "encode_arrays",
    "fits",
    "heads_of",
    "join_arrays",
    "join_blocks",
    "merge_blocks",
    "merge_steps",
    "reorder",
    "row_of_key",
    "take",
]
