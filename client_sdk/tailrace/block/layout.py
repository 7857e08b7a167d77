"""Where each column lies in a raw body.

    key_hash   8 * rows bytes
    seq        8 * rows                 only with FLAG_SEQS
    timestamp  8 * rows                 only with FLAG_TIMESTAMPS
    ttl        4 * rows                 only with FLAG_TTLS
    key        4 * (rows + 1) bytes of offsets, then the keys
    validity   (rows + 7) // 8          only with FLAG_TOMBSTONES
    value      4 * (rows + 1) bytes of offsets, then the values, up to the body's end

Each begins at a multiple of 8, after zeros. The lengths of keys and values are their last offsets.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.header import FLAG_SEQS, FLAG_TIMESTAMPS, FLAG_TOMBSTONES, FLAG_TTLS
from tailrace.errors import BadBlock

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader

ALIGNMENT = 8
_OFFSET = struct.Struct("<I")


class Layout(NamedTuple):
    """The extent of each column in the raw body; None for a column that is not there."""

    hashes: slice
    seqs: slice | None
    timestamps: slice | None
    key_offsets: slice
    key_data: slice
    validity: slice | None
    value_offsets: slice
    value_data: slice
    ttls: slice | None = None


def padding_after(nbytes: int) -> int:
    """Returns how many zeros follow ``nbytes`` bytes so that the next column begins at a multiple of 8."""
    return -nbytes % ALIGNMENT


def read_layout(header: BlockHeader, raw: memoryview) -> Layout:
    """Finds the columns of a raw body. BadBlock if a column passes its end, bytes are left, or padding is not zero.

    Only the last offset of keys and values is read; check.py looks at the others.
    """
    rows, flags = header.rows, header.flags
    walk = _Walk(raw)
    hashes = walk.take(8 * rows, "the key hashes")
    seqs = walk.take(8 * rows, "the seqs") if flags & FLAG_SEQS else None
    timestamps = walk.take(8 * rows, "the timestamps") if flags & FLAG_TIMESTAMPS else None
    ttls = walk.take(4 * rows, "the ttls") if flags & FLAG_TTLS else None
    key_offsets = walk.take(4 * (rows + 1), "the key offsets")
    key_data = walk.take(walk.last_offset(key_offsets), "the keys")
    validity = walk.take((rows + 7) // 8, "the validity bitmap") if flags & FLAG_TOMBSTONES else None
    value_offsets = walk.take(4 * (rows + 1), "the value offsets")
    value_data = walk.take(walk.last_offset(value_offsets), "the values")
    if walk.position != raw.nbytes:
        raise BadBlock(f"the values end at byte {walk.position} of the body, which has {raw.nbytes}")
    return Layout(hashes, seqs, timestamps, key_offsets, key_data, validity, value_offsets, value_data, ttls)


class ColumnBegins(NamedTuple):
    """The first byte of each column that a look-up reads; -1 for a column that is not there."""

    seqs: int
    timestamps: int
    key_offsets: int
    key_data: int
    validity: int
    value_offsets: int
    value_data: int


def column_begins(header: BlockHeader, raw: bytes | memoryview) -> ColumnBegins:
    """Returns the first byte of each column of a checked raw body, in a fifth of the time of ``read_layout``."""
    rows, flags = header.rows, header.flags
    end = 8 * rows
    seqs = timestamps = validity = -1
    if flags & FLAG_SEQS:
        seqs, end = end, end + 8 * rows
    if flags & FLAG_TIMESTAMPS:
        timestamps, end = end, end + 8 * rows
    if flags & FLAG_TTLS:
        end += 4 * rows + 7 & ~7
    offsets_bytes = 4 * rows + 11 & ~7  # of rows + 1 offsets, with what follows them
    key_offsets, key_data = end, end + offsets_bytes
    end = key_data + _OFFSET.unpack_from(raw, key_offsets + 4 * rows)[0] + 7 & ~7
    if flags & FLAG_TOMBSTONES:
        validity, end = end, end + (rows + 7 >> 3) + 7 & ~7
    return tuple.__new__(ColumnBegins, (seqs, timestamps, key_offsets, key_data, validity, end, end + offsets_bytes))


class _Walk:
    """A cursor over the raw body that hands out columns, each after its padding."""

    __slots__ = ("position", "raw")

    def __init__(self, raw: memoryview) -> None:
        self.raw = raw
        self.position = 0

    def take(self, nbytes: int, what: str) -> slice:
        """Returns the next column, of ``nbytes`` bytes; ``what`` names it in errors."""
        start = self.position + padding_after(self.position)
        stop = start + nbytes
        if stop > self.raw.nbytes:
            raise BadBlock(f"{what} would end at byte {stop} of a body of {self.raw.nbytes}")
        if start > self.position and any(self.raw[self.position : start]):
            raise BadBlock(f"the padding before {what} is not zero")
        self.position = stop
        return slice(start, stop)

    def last_offset(self, offsets: slice) -> int:
        """Returns the last of a column's offsets: the length of its data."""
        (nbytes,) = _OFFSET.unpack_from(self.raw, offsets.stop - 4)
        assert isinstance(nbytes, int)
        return nbytes
