"""The columns of blocks as numpy arrays.

    blocks ── join_blocks ──> ColumnArrays ── take ──> ColumnArrays ── encode_arrays ──> block
                                   └───────── join_arrays ─────────┘

In these arrays every row has a seq and a timestamp; a block may have them in its header alone. ``valid`` has a bool for
each row; a block has a bitmap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tailrace.block import FLAG_SEQS, FLAG_TIMESTAMPS, Block, Columns
from tailrace.block.encode import RawColumns, assemble, check_rows, header_of

U64: TypeAlias = npt.NDArray[np.uint64]
U32: TypeAlias = npt.NDArray[np.uint32]
U8: TypeAlias = npt.NDArray[np.uint8]
I64: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.intp]

_Buffer: TypeAlias = bytes | memoryview
# Strings that are shorter on average are copied faster byte by byte than as slices.
_SHORT_BYTES = 64


class ColumnArrays(NamedTuple):
    """Rows in seq order. The arrays have one length; the offsets have one element more, and begin at 0.

    The arrays may be views of blocks, which they keep alive. Do not change them. ``valid`` is None if no row is a
    tombstone, ``ttls`` if no row has a ttl or is an expiry.
    """

    hashes: U64
    seqs: U64
    timestamps: U64
    key_offsets: U32
    key_data: U8
    valid: Bools | None
    value_offsets: U32
    value_data: U8
    ttls: U32 | None = None

    @property
    def rows(self) -> int:
        """The number of rows, which may be 0."""
        return len(self.hashes)


def arrays_of(block: Block) -> ColumnArrays:
    """Returns the columns of ``block``, which has its seqs. BadBlock if they break the format."""
    return join_blocks((block,))


def join_blocks(blocks: Sequence[Block]) -> ColumnArrays:
    """Returns the columns of one or more blocks, one after the other. BadBlock if they break the format.

    It is fast for blocks of one row too: a block costs a few slices, and numpy is called once for all blocks.
    """
    return _join_columns([block.open_columns() for block in blocks])


def arrays_of_columns(columns: Columns) -> ColumnArrays:
    """Returns the columns of a block with seqs that is open, without another decompression and check."""
    return _join_columns([columns])


def _join_columns(opened: Sequence[Columns]) -> ColumnArrays:
    rows = np.array([columns.rows for columns in opened])
    return ColumnArrays(
        np.frombuffer(_joined([columns.hash_buffer for columns in opened]), "<u8"),
        _seqs(opened, rows),
        _timestamps(opened, rows),
        _offsets([columns.key_offsets for columns in opened], rows),
        np.frombuffer(_joined([columns.key_data for columns in opened]), "u1"),
        _valid(opened, rows),
        _offsets([columns.value_offsets for columns in opened], rows),
        np.frombuffer(_joined([columns.value_data for columns in opened]), "u1"),
        _ttls(opened, rows),
    )


def join_arrays(pieces: Sequence[ColumnArrays]) -> ColumnArrays:
    """Joins the rows of one or more pieces, none of them empty; their data is below 4 GiB."""
    if len(pieces) == 1:
        return pieces[0]
    rows = np.array([piece.rows for piece in pieces])
    return ColumnArrays(
        np.concatenate([piece.hashes for piece in pieces]),
        np.concatenate([piece.seqs for piece in pieces]),
        np.concatenate([piece.timestamps for piece in pieces]),
        _joined_offsets([piece.key_offsets for piece in pieces], rows),
        np.concatenate([piece.key_data for piece in pieces]),
        None if all(piece.valid is None for piece in pieces) else np.concatenate([_bools(piece) for piece in pieces]),
        _joined_offsets([piece.value_offsets for piece in pieces], rows),
        np.concatenate([piece.value_data for piece in pieces]),
        None if all(piece.ttls is None for piece in pieces) else np.concatenate([_numbers(piece) for piece in pieces]),
    )


def take(arrays: ColumnArrays, indices: Indices | slice) -> ColumnArrays:
    """Returns the rows at ``indices``, which rise; a slice of step 1 copies only the offsets."""
    if isinstance(indices, slice):
        rows = range(*indices.indices(arrays.rows))
        key_offsets, key_data = _slice_strings(arrays.key_offsets, arrays.key_data, rows.start, rows.stop)
        value_offsets, value_data = _slice_strings(arrays.value_offsets, arrays.value_data, rows.start, rows.stop)
    else:
        key_offsets, key_data = _take_strings(arrays.key_offsets, arrays.key_data, indices)
        value_offsets, value_data = _take_strings(arrays.value_offsets, arrays.value_data, indices)
    return ColumnArrays(
        arrays.hashes[indices],
        arrays.seqs[indices],
        arrays.timestamps[indices],
        key_offsets,
        key_data,
        None if arrays.valid is None else arrays.valid[indices],
        value_offsets,
        value_data,
        None if arrays.ttls is None else arrays.ttls[indices],
    )


def reorder(arrays: ColumnArrays, order: Indices) -> ColumnArrays:
    """Returns the rows at ``order``, which may be any permutation of some of them, with seqs from 1 on and no times.

    For rows that have no seqs yet. All of them are copied.
    """
    key_offsets, key_data = _reorder_strings(arrays.key_offsets, arrays.key_data, order)
    value_offsets, value_data = _reorder_strings(arrays.value_offsets, arrays.value_data, order)
    return ColumnArrays(
        arrays.hashes[order],
        np.arange(1, len(order) + 1, dtype="<u8"),
        np.ones(len(order), "<u8"),
        key_offsets,
        key_data,
        None if arrays.valid is None else arrays.valid[order],
        value_offsets,
        value_data,
        None if arrays.ttls is None else arrays.ttls[order],
    )


def encode_arrays(arrays: ColumnArrays, partition: int, *, compress: bool) -> Block:
    """Returns the block of all rows, without a producer.

    It has a column of seqs only if they have gaps, and a column of timestamps only if they differ. The whole block is
    checked before it is returned.

    Raises:
        ValueError: There are no rows, seqs do not rise from 1 or more, or timestamps fall.
        TooLarge: The rows are more than a block holds.
        BadBlock: The arrays break the format otherwise.
    """
    rows = check_rows(arrays.rows, arrays.rows)
    seqs, timestamps = arrays.seqs, arrays.timestamps
    first_seq, last_seq, timestamp = int(seqs[0]), int(seqs[-1]), int(timestamps[-1])
    if first_seq < 1 or bool((seqs[1:] <= seqs[:-1]).any()) or bool((timestamps[1:] < timestamps[:-1]).any()):
        raise ValueError("seqs must be above 0 and rise from each row to the next, and timestamps never fall")
    flags, numbers = 0, [arrays.hashes.tobytes()]
    if last_seq - first_seq + 1 != rows:
        flags |= FLAG_SEQS
        numbers.append(seqs.tobytes())
    if timestamp != timestamps[0]:
        flags |= FLAG_TIMESTAMPS
        numbers.append(timestamps.tobytes())
    least, greatest = int(arrays.hashes.min()), int(arrays.hashes.max())
    header = header_of(rows, partition, 0, 0, least, greatest)._replace(
        flags=flags, first_seq=first_seq, last_seq=last_seq, timestamp=timestamp
    )
    columns = RawColumns(
        b"".join(numbers),  # the three follow each other without padding: a row has 8 bytes in each
        arrays.key_offsets.tobytes(),
        arrays.key_data.data,
        _bitmap(arrays.valid),
        arrays.value_offsets.tobytes(),
        arrays.value_data.data,
        None if arrays.ttls is None or not arrays.ttls.any() else arrays.ttls.tobytes(),
    )
    block = assemble(header, columns, compress=compress)
    block.open_columns()
    return block


def _joined(buffers: Sequence[_Buffer]) -> _Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _seqs(opened: Sequence[Columns], rows: Indices) -> U64:
    """Returns the seq of each row: counted from the block's first seq, or from its column of seqs if it has one."""
    begins = np.cumsum(rows) - rows
    firsts = np.array([columns.header.first_seq for columns in opened], "<u8")
    total = int(rows.sum())
    seqs: U64 = np.repeat(firsts - begins.astype("<u8"), rows) + np.arange(total, dtype="<u8")
    for columns, begin in zip(opened, begins.tolist(), strict=True):
        if columns.header.flags & FLAG_SEQS:
            seqs[begin : begin + columns.rows] = np.frombuffer(columns.seq_buffer() or b"", "<u8")
    return seqs


def _timestamps(opened: Sequence[Columns], rows: Indices) -> U64:
    """Returns the timestamp of each row, from the header or the column of its block."""
    timestamps: U64 = np.repeat(np.array([columns.header.timestamp for columns in opened], "<u8"), rows)
    begin = 0
    for columns in opened:
        if columns.header.flags & FLAG_TIMESTAMPS:
            timestamps[begin : begin + columns.rows] = np.frombuffer(columns.timestamp_buffer() or b"", "<u8")
        begin += columns.rows
    return timestamps


def _valid(opened: Sequence[Columns], rows: Indices) -> Bools | None:
    """Returns which rows have a value; None if no row is a tombstone."""
    valid: Bools | None = None
    begin = 0
    for columns in opened:
        bitmap = columns.validity
        if bitmap is not None:
            if valid is None:
                valid = np.ones(int(rows.sum()), np.bool_)
            bits = np.unpackbits(np.frombuffer(bitmap, "u1"), count=columns.rows, bitorder="little")
            valid[begin : begin + columns.rows] = bits
        begin += columns.rows
    return valid


def _ttls(opened: Sequence[Columns], rows: Indices) -> U32 | None:
    """Returns the ttl of each row; None if no block has a column of them."""
    ttls: U32 | None = None
    begin = 0
    for columns in opened:
        buffer = columns.ttl_buffer()
        if buffer is not None:
            if ttls is None:
                ttls = np.zeros(int(rows.sum()), "<u4")
            ttls[begin : begin + columns.rows] = np.frombuffer(buffer, "<u4")
        begin += columns.rows
    return ttls


def _numbers(piece: ColumnArrays) -> U32:
    return np.zeros(piece.rows, "<u4") if piece.ttls is None else piece.ttls


def _bools(piece: ColumnArrays) -> Bools:
    return np.ones(piece.rows, np.bool_) if piece.valid is None else piece.valid


def _bitmap(valid: Bools | None) -> bytes | None:
    """Returns Arrow's bitmap; None if every row has a value."""
    return None if valid is None or valid.all() else np.packbits(valid, bitorder="little").tobytes()


def _offsets(columns: Sequence[memoryview], rows: Indices) -> U32:
    """Returns the offsets of blocks' strings in their joined data."""
    if len(columns) == 1:
        return np.frombuffer(columns[0], "<u4")
    return _moved(np.frombuffer(b"".join([column[4:] for column in columns]), "<u4"), rows)


def _joined_offsets(columns: Sequence[U32], rows: Indices) -> U32:
    """Returns the offsets of arrays' strings in their joined data."""
    return _moved(np.concatenate([column[1:] for column in columns]), rows)


def _moved(ends: U32, rows: Indices) -> U32:
    """Returns offsets in joined data, made of the ends of strings in each part; parts have ``rows`` strings.

    Each part's ends are moved by the data of the parts before it. The last end of a part is the length of its data.
    """
    lengths = ends[np.cumsum(rows) - 1]
    offsets = np.zeros(len(ends) + 1, "<u4")
    np.add(ends, np.repeat(np.cumsum(lengths, dtype="<u4") - lengths, rows), out=offsets[1:])
    return offsets


def _slice_strings(offsets: U32, data: U8, start: int, stop: int) -> tuple[U32, U8]:
    """Returns offsets from 0, and data, of the rows ``start`` to ``stop``, the latter excluded."""
    part = offsets[start : max(start, stop) + 1]
    return (part if part[0] == 0 else part - part[0]), data[part[0] : part[-1]]


def _take_strings(offsets: U32, data: U8, indices: Indices) -> tuple[U32, U8]:
    """Returns offsets and data of the rows at ``indices``, joined.

    Strings of equal length are taken as a matrix, short strings byte by byte, others in stretches of neighbours.
    """
    if len(indices) == 0:
        return np.zeros(1, "<u4"), data[:0]
    begins, ends = offsets[indices], offsets[indices + 1]
    lengths = ends - begins
    taken = np.zeros(len(indices) + 1, "<u4")
    np.cumsum(lengths, out=taken[1:])
    width = int(offsets[1])
    if width and len(data) == width * (len(offsets) - 1) and bool((offsets[1:] - offsets[:-1] == width).all()):
        return taken, data.reshape(-1, width)[indices].reshape(-1)
    if len(data) <= _SHORT_BYTES * (len(offsets) - 1):
        chosen = np.zeros(len(offsets) - 1, np.bool_)
        chosen[indices] = True
        return taken, data[np.repeat(chosen, np.diff(offsets))]
    starts = np.flatnonzero(begins[1:] != ends[:-1]) + 1
    firsts = begins[np.concatenate(([0], starts))].tolist()
    lasts = ends[np.concatenate((starts - 1, [-1]))].tolist()
    whole = data.data
    return taken, np.frombuffer(b"".join([whole[a:b] for a, b in zip(firsts, lasts, strict=True)]), "u1")


def _reorder_strings(offsets: U32, data: U8, order: Indices) -> tuple[U32, U8]:
    """Returns offsets and data of the rows at ``order``: by a matrix if all rows are equally long, else row by row."""
    begins, ends = offsets[order], offsets[order + 1]
    taken = np.zeros(len(order) + 1, "<u4")
    np.cumsum(ends - begins, out=taken[1:])
    width = int(offsets[1]) if len(offsets) > 1 else 0
    if width and len(data) == width * (len(offsets) - 1) and bool((offsets[1:] - offsets[:-1] == width).all()):
        return taken, data.reshape(-1, width)[order].reshape(-1)
    whole = data.data
    return taken, np.frombuffer(
        b"".join([whole[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]), "u1"
    )
