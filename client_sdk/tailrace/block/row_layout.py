"""The layout of a block of one row, read and checked at once. See row.py for the drawing.

It is the general way (layout.py and check.py) for the usual row, and says nothing of others: the general way finds
out whether they break the format, and what to call it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from tailrace.block.header import FLAG_COMPRESSED, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.block.layout import Layout

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader

_START = struct.Struct("<QII")
_OFFSETS = struct.Struct("<II")
_KEY_AT = _START.size
_LEAST_BYTES = _KEY_AT + 8 + _OFFSETS.size  # with a key of one byte and its padding, and no value
_ZEROS = tuple(bytes(count) for count in range(8))
_HASHES, _KEY_OFFSETS = slice(0, 8), slice(8, 16)


def usual_row_layout(header: BlockHeader, raw: memoryview) -> Layout | None:
    """Returns the places of the row's columns. None for a deletion, a row with columns of its own, and a broken one."""
    nbytes = raw.nbytes
    if header.flags & ~FLAG_COMPRESSED or nbytes < _LEAST_BYTES:
        return None
    hash_, key_first, key_bytes = _START.unpack_from(raw)
    if key_first or not 1 <= key_bytes <= KEY_BYTES_MAX or hash_ != header.least_hash or hash_ != header.greatest_hash:
        return None
    key_end = _KEY_AT + key_bytes
    offsets_at = key_end + -key_bytes % 8
    value_at = offsets_at + _OFFSETS.size
    if value_at > nbytes or raw[key_end:offsets_at] != _ZEROS[-key_bytes % 8]:
        return None
    value_first, value_bytes = _OFFSETS.unpack_from(raw, offsets_at)
    if value_first or value_bytes > VALUE_BYTES_MAX or value_at + value_bytes != nbytes:
        return None
    key, offsets, value = slice(_KEY_AT, key_end), slice(offsets_at, value_at), slice(value_at, nbytes)
    return tuple.__new__(Layout, (_HASHES, None, None, _KEY_OFFSETS, key, None, offsets, value))
