"""The rows that look-ups by key return, from memory and from disk: one, or those of many keys by columns."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.block.layout import column_begins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.block import BlockHeader
    from tailrace.block.arrays import U32, Indices

_EXTENT = struct.Struct("<II")
_NUMBER = struct.Struct("<Q")

# Rows of a block that take less time by columns than one by one.
COLUMNS_ROWS_MIN = 12
# Longer strings are cut one by one: a copy of all of them takes longer then.
_GATHERED_BYTES_MAX = 1_024


class FoundRow(NamedTuple):
    """The newest row of a key; ``value`` is None for a tombstone."""

    seq: int
    timestamp: int
    value: bytes | None


def row_of_key(header: BlockHeader, raw: bytes | memoryview, row: int, key: bytes) -> FoundRow | None:
    """Returns row number ``row`` of a block if its key is ``key``, else None. ``raw`` is a checked raw body."""
    return _row_at(raw, row, key, header.first_seq, header.timestamp, *column_begins(header, raw))


def _row_at(
    raw: bytes | bytearray | memoryview,
    row: int,
    key: bytes,
    first_seq: int,
    timestamp: int,
    seqs_at: int,
    timestamps_at: int,
    keys_at: int,
    key_data_at: int,
    validity_at: int,
    values_at: int,
    value_data_at: int,
) -> FoundRow | None:
    start, stop = _EXTENT.unpack_from(raw, keys_at + 4 * row)
    if raw[key_data_at + start : key_data_at + stop] != key:
        return None
    seq = first_seq + row if seqs_at < 0 else _NUMBER.unpack_from(raw, seqs_at + 8 * row)[0]
    if timestamps_at >= 0:
        timestamp = _NUMBER.unpack_from(raw, timestamps_at + 8 * row)[0]
    value = None
    if validity_at < 0 or raw[validity_at + (row >> 3)] >> (row & 7) & 1:
        start, stop = _EXTENT.unpack_from(raw, values_at + 4 * row)
        value = bytes(raw[value_data_at + start : value_data_at + stop])
    return tuple.__new__(FoundRow, (seq, timestamp, value))  # NamedTuple's own constructor takes twice as long


class OpenRows(NamedTuple):
    """A checked raw body of ``rows`` rows, and the first byte of each column that a look-up reads: `ColumnBegins`.

    ``first_seq`` and ``timestamp`` are those of rows without columns of them. ``key_width`` is the length of all keys
    if they are known to be equally long, seqs are dense, and ``raw`` is no view; else 0. ``value_width`` is that of all
    values if ``key_width`` is known, they are equally long and not empty, and no row is a tombstone; else 0.
    """

    raw: bytes | bytearray | memoryview
    rows: int
    first_seq: int
    timestamp: int
    seqs_at: int
    timestamps_at: int
    keys_at: int
    key_data_at: int
    validity_at: int
    values_at: int
    value_data_at: int
    key_width: int = 0
    value_width: int = 0
    hashes_at: int = 0

    @classmethod
    def of(cls, header: BlockHeader, raw: bytes | memoryview) -> OpenRows:
        """Returns what a look-up needs of a block with this header and this raw body, which was checked."""
        begins = column_begins(header, raw)
        return tuple.__new__(cls, (raw, header.rows, header.first_seq, header.timestamp, *begins, 0, 0, 0))

    def measured(self) -> OpenRows:
        """Returns the same with its widths, for a block that is looked at often: 10 µs for 1,000 rows."""
        raw, rows = self.raw, self.rows
        key_width = 0 if self.seqs_at >= 0 else _width(raw, self.keys_at, rows)
        value_width = 0 if self.validity_at >= 0 else _width(raw, self.values_at, rows)
        whole = raw.obj if isinstance(raw, memoryview) else raw  # slices of a view take twice the time
        if not key_width or not isinstance(whole, (bytes, bytearray)):
            return self
        shift = _address(raw) - _address(whole)
        begins = [begin if begin < 0 else begin + shift for begin in self[4:11]]
        return tuple.__new__(OpenRows, (whole, *self[1:4], *begins, key_width, value_width, shift))

    def row(self, row: int, key: bytes) -> FoundRow | None:
        """Returns row number ``row`` if its key is ``key``, else None."""
        raw, _, first_seq, timestamp, *begins, _, _, _ = self
        return _row_at(raw, row, key, first_seq, timestamp, *begins)

    def has_hashes(self, rows: list[int], hashes: list[int]) -> bool:
        """Tells whether the keys of these rows have these hashes."""
        raw, hashes_at, number = self.raw, self.hashes_at, _NUMBER.unpack_from
        if len(rows) < COLUMNS_ROWS_MIN:
            return [number(raw, hashes_at + 8 * row)[0] for row in rows] == hashes
        found: list[int] = np.frombuffer(raw, "<u8", self.rows, hashes_at)[rows].tolist()
        return found == hashes

    def rows_of_seqs(self, seqs: list[int]) -> list[int]:
        """Returns the number of the row at each of ``seqs``, all of which are in the block."""
        if self.seqs_at < 0:
            first_seq = self.first_seq
            return [seq - first_seq for seq in seqs]
        column = np.frombuffer(self.raw, "<u8", self.rows, self.seqs_at)
        found: list[int] = column.searchsorted(np.array(seqs, "<u8")).tolist()
        return found


class FoundRows:
    """Rows that a look-up of many keys has found, by columns: each has an entry for each key that was looked up.

    ``values`` has None for a tombstone, and for the keys in ``alone``: the indices of those that have to be looked up
    by themselves. Their row is another key's, or the room was used up. ``room`` is what is left of it, in bytes of
    values.
    """

    __slots__ = ("alone", "room", "seqs", "timestamps", "values")

    def __init__(self, room: int) -> None:
        self.room = room
        self.seqs: list[int] = []
        self.timestamps: list[int] = []
        self.values: list[bytes | None] = []
        self.alone: list[int] = []

    @classmethod
    def none_of(cls, count: int) -> FoundRows:
        """Returns what leaves ``count`` keys to be looked up by themselves."""
        found = cls(0)
        found.seqs, found.timestamps = [0] * count, [0] * count
        found.values, found.alone = [None] * count, list(range(count))
        return found

    def look(
        self,
        blocks: Iterable[tuple[OpenRows, int]],
        keys: list[bytes],
        numbers: list[int],
        out_of_time: Callable[[], bool] = lambda: False,
        *,
        begin: int = 0,
        by_seqs: bool = False,
    ) -> int:
        """Looks at one row for each key from index ``begin`` on, until ``out_of_time()`` after a block.

        Takes less time than `row_of_key` for each.

        Args:
            blocks: the rows of each block, and the index behind the last of its keys.
            keys: of all rows.
            numbers: of all rows, in their blocks. With ``by_seqs`` their seqs.
            out_of_time: is called after each block.
            begin: the first index.
            by_seqs: whether ``numbers`` are seqs.

        Returns:
            The index behind the last key that was looked at.
        """
        values, timestamps, number, extent = self.values, self.timestamps, _NUMBER.unpack_from, _EXTENT.unpack_from
        for opened, end in blocks:
            (
                raw, _, first_seq, timestamp, _, timestamps_at, _, keys_at, validity_at, offsets_at, values_at,
                key_width, value_width, _,
            ) = opened  # fmt: skip
            of_block, room = numbers[begin:end], self.room
            if not key_width or end - begin >= COLUMNS_ROWS_MIN:
                self._look(opened, opened.rows_of_seqs(of_block) if by_seqs else of_block, keys[begin:end])
            else:  # most often the block has a few of the rows
                first = first_seq if by_seqs else 0
                for index in range(begin, end):
                    row, value = numbers[index] - first, None
                    start = keys_at + key_width * row
                    is_its = raw[start : start + key_width] == keys[index]
                    if is_its and (validity_at < 0 or raw[validity_at + (row >> 3)] >> (row & 7) & 1):
                        if value_width:
                            start, nbytes = values_at + value_width * row, value_width
                        else:
                            start, stop = extent(raw, offsets_at + 4 * row)
                            start, nbytes = values_at + start, stop - start
                        is_its = nbytes <= room
                        if is_its:
                            room -= nbytes
                            value = raw[start : start + nbytes]
                    if not is_its:
                        self.alone.append(len(values))
                    values.append(value if value is None or type(value) is bytes else bytes(value))
                    timestamps.append(timestamp if timestamps_at < 0 else number(raw, timestamps_at + 8 * row)[0])
                self.room = room
            if by_seqs:
                self.seqs += of_block
            elif opened.seqs_at < 0:
                self.seqs += [first_seq + row for row in of_block]
            else:
                self.seqs += _numbers(opened, opened.seqs_at, of_block)
            begin = end
            if out_of_time():
                break
        return begin

    def _look(self, opened: OpenRows, rows: Sequence[int], keys: list[bytes]) -> None:
        """Takes values and timestamps of rows."""
        if len(rows) < COLUMNS_ROWS_MIN or not self._look_by_columns(opened, np.array(rows, np.intp), keys):
            self._look_by_rows(opened, rows, keys)
        if opened.timestamps_at < 0:
            self.timestamps += [opened.timestamp] * len(rows)
        else:
            self.timestamps += _numbers(opened, opened.timestamps_at, rows)

    def _look_by_columns(self, opened: OpenRows, at: Indices, keys: list[bytes]) -> bool:
        """Takes the values of all rows at once. False: one of them is another key's, or the room is too small."""
        raw, count, _, _, _, _, keys_at, key_data_at, validity_at, values_at, value_data_at, key_width, width, _ = (
            opened
        )
        if 0 < key_width <= _GATHERED_BYTES_MAX and 0 < width <= _GATHERED_BYTES_MAX:
            return self._look_by_matrix(opened, at, keys)
        ends_at = at + 1
        offsets: U32 = np.frombuffer(raw, "<u4", count + 1, keys_at)
        if _strings(raw, key_data_at, offsets[at], offsets[ends_at]) != keys:
            return False
        offsets = np.frombuffer(raw, "<u4", count + 1, values_at)
        starts, stops = offsets[at], offsets[ends_at]
        nbytes = int((stops - starts).sum(dtype=np.int64))
        if nbytes > self.room:
            return False
        values: list[bytes | None] = [*_strings(raw, value_data_at, starts, stops)]
        if validity_at >= 0:
            for index in _deleted(raw, validity_at, at).tolist():
                values[index] = None
        self.room -= nbytes
        self.values += values
        return True

    def _look_by_matrix(self, opened: OpenRows, at: Indices, keys: list[bytes]) -> bool:
        """Does ``_look_by_columns`` for a block whose strings are equally long."""
        raw, rows, key_width, value_width = opened.raw, opened.rows, opened.key_width, opened.value_width
        nbytes = value_width * len(at)
        if nbytes > self.room:
            return False
        if np.ndarray((rows,), np.dtype((np.void, key_width)), raw, opened.key_data_at)[at].tolist() != keys:
            return False
        matrix = np.ndarray((rows,), np.dtype((np.void, value_width)), raw, opened.value_data_at)
        self.room -= nbytes
        self.values += matrix[at].tolist()
        return True

    def _look_by_rows(self, opened: OpenRows, rows: Sequence[int], keys: Sequence[bytes]) -> None:
        raw, _, _, _, _, _, keys_at, key_data_at, validity_at, values_at, value_data_at, _, _, _ = opened
        extent, values, room, first = _EXTENT.unpack_from, self.values, self.room, len(self.values)
        add = values.append
        for row, key in zip(rows, keys):  # noqa: B905 - ``strict`` takes time
            start, stop = extent(raw, keys_at + 4 * row)
            if raw[key_data_at + start : key_data_at + stop] != key:
                self.alone.append(len(values))
                add(None)
                continue
            if validity_at >= 0 and not raw[validity_at + (row >> 3)] >> (row & 7) & 1:
                add(None)
                continue
            start, stop = extent(raw, values_at + 4 * row)
            room -= stop - start
            if room < 0:
                count = first + len(rows) - len(values)
                self.alone += range(len(values), len(values) + count)
                values += [None] * count
                room += stop - start
                break
            value = raw[value_data_at + start : value_data_at + stop]
            add(value if type(value) is bytes else bytes(value))
        self.room = room


def _width(raw: bytes | bytearray | memoryview, offsets_at: int, rows: int) -> int:
    """Returns the length that all strings have; 0 if they differ."""
    offsets: U32 = np.frombuffer(raw, "<u4", rows + 1, offsets_at)
    width = int(offsets[1])
    if int(offsets[-1]) != width * rows:
        return 0
    return width if bool((offsets[1:] - offsets[:-1] == width).all()) else 0


def _address(data: bytes | bytearray | memoryview) -> int:
    found: int = np.frombuffer(data, "u1").__array_interface__["data"][0]
    return found


def _numbers(opened: OpenRows, column_at: int, rows: Sequence[int]) -> list[int]:
    """Returns the numbers of ``rows`` in a column of u64."""
    raw = opened.raw
    if len(rows) < COLUMNS_ROWS_MIN:
        number = _NUMBER.unpack_from
        return [number(raw, column_at + 8 * row)[0] for row in rows]
    found: list[int] = np.frombuffer(raw, "<u8", opened.rows, column_at)[np.array(rows, np.intp)].tolist()
    return found


def _strings(raw: bytes | bytearray | memoryview, data_at: int, starts: U32, stops: U32) -> list[bytes]:
    """Returns the strings at these offsets of the data that begins at ``data_at``: by one copy if all are equally long.

    ``raw`` is a checked body: all of them are in it.
    """
    widths = stops - starts
    width = int(widths[0])
    if 0 < width <= _GATHERED_BYTES_MAX and bool((widths == width).all()):
        # A string of this width begins at each byte. The wanted ones are copied.
        windows = np.ndarray((len(raw) - data_at - width + 1,), np.dtype((np.void, width)), raw, data_at, (1,))
        found: list[bytes] = windows[starts].tolist()
        return found
    extents = zip((starts + np.uint32(data_at)).tolist(), (stops + np.uint32(data_at)).tolist(), strict=True)
    if type(raw) is bytes:
        return [raw[start:stop] for start, stop in extents]
    return [bytes(raw[start:stop]) for start, stop in extents]


def _deleted(raw: bytes | bytearray | memoryview, validity_at: int, rows: Indices) -> Indices:
    """Returns which of ``rows`` are tombstones, by their place in it."""
    bits = np.frombuffer(raw, "u1", -1, validity_at)[rows >> 3] >> (rows & 7) & 1
    return np.flatnonzero(bits == 0)
