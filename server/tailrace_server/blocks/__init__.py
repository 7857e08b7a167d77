"""Work on whole blocks by their columns, with numpy: blocks made of other blocks, row by row never.

    arrays.py    the columns of blocks as numpy arrays, rows taken out of them, a block made of them
    merge.py     neighbouring blocks into one
    builder.py   rows out of many blocks into blocks of a size
    found.py     a row that was looked for by its key

Everything here is pure, and may run in any thread.
"""

from __future__ import annotations

from tailrace_server.blocks.arrays import ColumnArrays, arrays_of, encode_arrays, take
from tailrace_server.blocks.builder import BlockBuilder
from tailrace_server.blocks.found import Found, row_of_key
from tailrace_server.blocks.merge import fits, merge_blocks

__all__ = [
    "BlockBuilder",
    "ColumnArrays",
    "Found",
    "arrays_of",
    "encode_arrays",
    "fits",
    "merge_blocks",
    "row_of_key",
    "take",
]
