"""The block: an immutable columnar run of mutations of one partition, in seq order (docs/formats/block.md).

    header.py    the 96 bytes in front, which alone say how to order, route, check and forward a block
    layout.py    the place of each column in a body
    check.py     checks the columns of a body, whole columns at a time
    columns.py   a body opened: columns as buffers, lists, Arrow arrays
    block.py     header and body together
    encode.py    a block from lists of keys and values
    row.py, row_layout.py        a block of one row, encoded and opened in fewer steps
    to_arrow.py, from_arrow.py   columns as Arrow arrays, a block from Arrow arrays
    arrow_strings.py             strings in each form of Arrow: their lengths, their nulls, the same as binary
    hash_columns.py              the hashes of an Arrow array of keys
    routing.py, spans.py         the rows of Arrow arrays, routed to blocks of each partition
    arrays.py                    the columns of blocks as numpy arrays, rows taken out of them, a block made of them
    filtering.py                 the rows of a block that a filter asks for
    found.py                     the row of a key, as look-ups return it
    row_digest.py                compares two sets of rows, in any order and any blocks

Everything here is pure: bytes in, objects out. Numpy and pyarrow are used if they are installed, and imported at
the first need (lazy.py). arrays.py, filtering.py, routing.py and spans.py need them: import these only in a module that
needs them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.block import Block
from tailrace.block.columns import Columns
from tailrace.block.encode import Stamps, encode_block
from tailrace.block.hash_columns import hash_array
from tailrace.block.header import (
    BODY_BYTES_MAX,
    COMPRESS_BYTES_MIN,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TOMBSTONES,
    FLAG_TTLS,
    HEADER_BYTES,
    KEY_BYTES_MAX,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    BlockHeader,
)
from tailrace.block.row import encode_row
from tailrace.block.row_digest import DIGEST_MAX, digest_of_arrays, digest_of_block, digest_of_rows, sum_digests

if TYPE_CHECKING:
    from tailrace.block.from_arrow import block_from_arrow

__all__ = [
    "BODY_BYTES_MAX",
    "COMPRESS_BYTES_MIN",
    "DIGEST_MAX",
    "FLAG_COMPRESSED",
    "FLAG_SEQS",
    "FLAG_TIMESTAMPS",
    "FLAG_TOMBSTONES",
    "FLAG_TTLS",
    "HEADER_BYTES",
    "KEY_BYTES_MAX",
    "ROWS_MAX",
    "VALUE_BYTES_MAX",
    "Block",
    "BlockHeader",
    "Columns",
    "Stamps",
    "block_from_arrow",
    "digest_of_arrays",
    "digest_of_block",
    "digest_of_rows",
    "encode_block",
    "encode_row",
    "hash_array",
    "sum_digests",
]


def __getattr__(name: str) -> Any:
    if name == "block_from_arrow":  # few programs have rows in Arrow
        from tailrace.block.from_arrow import block_from_arrow

        return block_from_arrow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
