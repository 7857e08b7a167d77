"""The rows that look-ups by key return, from memory and from disk: one, or those of many keys by columns."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.layout import column_begins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.block import BlockHeader

_EXTENT = struct.Struct("<II")
_NUMBER = struct.Struct("<Q")


class FoundRow(NamedTuple):
    """The newest row of a key; ``value`` is None for a tombstone."""

    seq: int
    timestamp: int
    value: bytes | None


def row_of_key(header: BlockHeader, raw: bytes | memoryview, row: int, key: bytes) -> FoundRow | None:
    """Returns row number ``row`` of a block if its key is ``key``, else None. ``raw`` is a checked raw body."""
    seqs_at, timestamps_at, keys_at, key_data_at, validity_at, values_at, value_data_at = column_begins(header, raw)
    start, stop = _EXTENT.unpack_from(raw, keys_at + 4 * row)
    if raw[key_data_at + start : key_data_at + stop] != key:
        return None
    seq = header.first_seq + row if seqs_at < 0 else _NUMBER.unpack_from(raw, seqs_at + 8 * row)[0]
    timestamp = header.timestamp if timestamps_at < 0 else _NUMBER.unpack_from(raw, timestamps_at + 8 * row)[0]
    value = None
    if validity_at < 0 or raw[validity_at + (row >> 3)] >> (row & 7) & 1:
        start, stop = _EXTENT.unpack_from(raw, values_at + 4 * row)
        value = bytes(raw[value_data_at + start : value_data_at + stop])
    return tuple.__new__(FoundRow, (seq, timestamp, value))  # NamedTuple's own constructor takes twice as long


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
        header: BlockHeader,
        raw: bytes | memoryview,
        rows: Sequence[int],
        keys: Sequence[bytes],
        seqs: Sequence[int] | None = None,
    ) -> None:
        """Looks at one row of a block for each key, in less time than `row_of_key` if they are several.

        ``raw`` is a raw body that was checked. ``seqs`` are those of the rows, if they are known.
        """
        seqs_at, timestamps_at, keys_at, key_data_at, validity_at, values_at, value_data_at = column_begins(header, raw)
        extent, values, room = _EXTENT.unpack_from, self.values, self.room
        add = values.append
        for row, key in zip(rows, keys):  # noqa: B905 - ``strict`` takes time, and the next line asserts it
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
                count = len(rows) - (len(values) - len(self.seqs))
                self.alone += range(len(values), len(values) + count)
                values += [None] * count
                room += stop - start
                break
            value = raw[value_data_at + start : value_data_at + stop]
            add(value if type(value) is bytes else bytes(value))
        self.room = room
        number = _NUMBER.unpack_from
        if seqs is not None:
            self.seqs += seqs
        elif seqs_at < 0:
            first_seq = header.first_seq
            self.seqs += [first_seq + row for row in rows]
        else:
            self.seqs += [number(raw, seqs_at + 8 * row)[0] for row in rows]
        if timestamps_at < 0:
            self.timestamps += [header.timestamp] * len(rows)
        else:
            self.timestamps += [number(raw, timestamps_at + 8 * row)[0] for row in rows]
        assert len(self.values) == len(self.seqs) == len(self.timestamps), "a row for each key"
