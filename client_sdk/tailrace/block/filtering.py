"""Selects the rows of a block that a filter asks for. Pure, by whole columns; needs numpy.

    keys      order/7  user/1  order/8  user/2         key_prefix = order/
    matches      x                x
    sent      order/7          order/8                 seqs 41 and 43: they stand in the block

A row keeps its key, hash, seq and timestamp, and a deletion stays one. If every row matches, the block goes out as it
is, and costs only the search. A block that is made anew is not compressed: that would hold up the loop longer than all
the rest.
"""

from __future__ import annotations

import struct
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np

from tailrace.block import FLAG_TTLS, Stamps, encode_block, encode_row
from tailrace.block.arrays import arrays_of_columns, encode_arrays, take

if TYPE_CHECKING:
    from tailrace.block import Block, Columns
    from tailrace.block.arrays import U8, U32, ColumnArrays, Indices
    from tailrace.wire.filters import StreamFilter

# A block of at most this many rows is searched row by row.
FEW_ROWS = 32
# The offsets of the keys of some rows.
_OFFSETS = [struct.Struct(f"<{rows + 1}I") for rows in range(FEW_ROWS + 1)]
# A prefix is compared by words of these sizes, in bytes.
_WORDS = (8, 4, 2, 1)


def filter_block(block: Block, wanted: StreamFilter) -> Block | None:
    """Returns the rows of ``block``, a block with seqs, that ``wanted`` asks for; None if no row matches.

    Raises BadBlock if the block breaks its format.
    """
    rows = block.header.rows
    columns = block.open_columns()
    if rows <= FEW_ROWS:
        return _filter_few(block, columns, wanted)
    offsets, data = np.frombuffer(columns.key_offsets, "<u4"), np.frombuffer(columns.key_data, "u1")
    indices = _matching(offsets, data, wanted.key_prefix)
    if not len(indices):
        return None
    drops_values = wanted.keys_only and len(columns.value_data) > 0
    if len(indices) == rows and not drops_values:
        return block
    arrays = arrays_of_columns(columns)
    if drops_values:
        arrays = _without_values(arrays)
    if len(indices) < rows:
        arrays = take(arrays, indices)
    return encode_arrays(arrays, block.header.partition, compress=False)


def begin_with(block: Block, prefix: bytes) -> bool:
    """Returns whether all keys of ``block`` begin with ``prefix``. Raises BadBlock if the block breaks its format."""
    found = block.only_key_begins_with(prefix)
    if found is not None:
        return found
    columns, rows = block.open_columns(), block.header.rows
    if rows <= FEW_ROWS:
        places, keys = _OFFSETS[rows].unpack_from(columns.key_offsets), bytes(columns.key_data)
        return all(map(keys.startswith, repeat(prefix), places, places[1:]))
    offsets, data = np.frombuffer(columns.key_offsets, "<u4"), np.frombuffer(columns.key_data, "u1")
    return len(_matching(offsets, data, prefix)) == block.header.rows


def _filter_few(block: Block, columns: Columns, wanted: StreamFilter) -> Block | None:
    """Does the work of ``filter_block`` row by row. For a few rows that is faster than calls of numpy."""
    keys = columns.keys()
    matching = [row for row, key in enumerate(keys) if key.startswith(wanted.key_prefix)]
    if not matching:
        return None
    drops_values = wanted.keys_only and len(columns.value_data) > 0
    if len(matching) == len(keys) and not drops_values:
        return block
    header = block.header
    if len(keys) == 1 and not header.flags & FLAG_TTLS:
        row = encode_row(
            keys[0], b"", hash_=header.least_hash, partition=header.partition, producer_id=0, producer_seq=0
        )
        return row.stamped(header.first_seq, header.timestamp)
    hashes, seqs, timestamps, values = columns.hashes(), columns.seqs(), columns.timestamps(), columns.values()
    ttls = columns.ttls()
    if drops_values:
        values = [None if value is None else b"" for value in values]
    return encode_block(
        [keys[row] for row in matching],
        [values[row] for row in matching],
        partition=header.partition,
        compress=False,
        hashes=[hashes[row] for row in matching],
        stamps=Stamps([seqs[row] for row in matching], [timestamps[row] for row in matching]),
        ttls=[ttls[row] for row in matching],
    )


def _matching(offsets: U32, data: U8, prefix: bytes) -> Indices:
    """Returns the rows whose keys begin with ``prefix``, compared 8 bytes at a time over the rows that still match."""
    begins = offsets[:-1]
    rows = np.flatnonzero(offsets[1:] - begins >= len(prefix))
    place = 0
    while place < len(prefix) and len(rows):
        size = next(size for size in _WORDS if size <= len(prefix) - place)
        kind = np.dtype(f"<u{size}")
        # A word at each byte of the data. The words of keys that are long enough lie inside.
        words = np.ndarray((len(data) - size + 1,), kind, data, strides=(1,))
        word = int.from_bytes(prefix[place : place + size], "little")
        rows = rows[words[begins[rows] + np.uint32(place)] == kind.type(word)]
        place += size
    return rows


def _without_values(arrays: ColumnArrays) -> ColumnArrays:
    """Returns the same rows with empty values; a deletion stays one."""
    return arrays._replace(value_offsets=np.zeros(arrays.rows + 1, "<u4"), value_data=arrays.value_data[:0])
