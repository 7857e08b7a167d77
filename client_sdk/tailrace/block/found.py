"""The row that a look-up by key returns, from memory and from disk."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.layout import column_begins

if TYPE_CHECKING:
    from tailrace.block import BlockHeader, Columns

_EXTENT = struct.Struct("<II")
_NUMBER = struct.Struct("<Q")


class FoundRow(NamedTuple):
    """The newest row of a key; ``value`` is None for a tombstone."""

    seq: int
    timestamp: int
    value: bytes | None


def row_of_key(columns: Columns, row: int, key: bytes) -> FoundRow | None:
    """Returns row number ``row`` of a block if its key is ``key``, else None."""
    start, stop = _EXTENT.unpack_from(columns.key_offsets, 4 * row)
    if columns.key_data[start:stop] != key:
        return None
    header, seqs, timestamps = columns.header, columns.seq_buffer(), columns.timestamp_buffer()
    seq = header.first_seq + row if seqs is None else _NUMBER.unpack_from(seqs, 8 * row)[0]
    timestamp = header.timestamp if timestamps is None else _NUMBER.unpack_from(timestamps, 8 * row)[0]
    value, validity = None, columns.validity
    if validity is None or validity[row >> 3] >> (row & 7) & 1:
        start, stop = _EXTENT.unpack_from(columns.value_offsets, 4 * row)
        value = bytes(columns.value_data[start:stop])
    return FoundRow(seq, timestamp, value)


def rows_of_keys(
    header: BlockHeader, raw: bytes | memoryview, rows: Iterable[int], keys: Iterable[bytes], bytes_max: int
) -> list[FoundRow | None]:
    """Returns what `row_of_key` returns for each row and its key, in a third of the time for a row if they are several.

    ``raw`` is a raw body that was checked. The list ends before the row whose value would make all values together
    longer than ``bytes_max``.
    """
    seqs_at, timestamps_at, keys_at, key_data_at, validity_at, values_at, value_data_at = column_begins(header, raw)
    extent, number, first_seq, timestamp = _EXTENT.unpack_from, _NUMBER.unpack_from, header.first_seq, header.timestamp
    found: list[FoundRow | None] = []
    for row, key in zip(rows, keys, strict=True):
        start, stop = extent(raw, keys_at + 4 * row)
        if raw[key_data_at + start : key_data_at + stop] != key:
            found.append(None)
            continue
        value = None
        if validity_at < 0 or raw[validity_at + (row >> 3)] >> (row & 7) & 1:
            start, stop = extent(raw, values_at + 4 * row)
            bytes_max -= stop - start
            if bytes_max < 0:
                break
            value = bytes(raw[value_data_at + start : value_data_at + stop])
        seq = first_seq + row if seqs_at < 0 else number(raw, seqs_at + 8 * row)[0]
        if timestamps_at >= 0:
            timestamp = number(raw, timestamps_at + 8 * row)[0]
        found.append(tuple.__new__(FoundRow, (seq, timestamp, value)))
    return found
