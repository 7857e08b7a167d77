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
    offsets_at = _value_offsets_at(header, raw)
    if not offsets_at:
        return None
    value_at = offsets_at + _OFFSETS.size
    key_bytes = _START.unpack_from(raw)[2]
    key, offsets = slice(_KEY_AT, _KEY_AT + key_bytes), slice(offsets_at, value_at)
    value = slice(value_at, len(raw))
    return tuple.__new__(Layout, (_HASHES, None, None, _KEY_OFFSETS, key, None, offsets, value, None))


def is_usual_row(header: BlockHeader, raw: bytes | memoryview) -> bool:
    """Returns whether ``raw`` has a usual row, whole. False for all that has to be looked at in the general way."""
    return _value_offsets_at(header, raw) > 0


def usual_key_begins_with(raw: bytes | memoryview, prefix: bytes) -> bool:
    """Returns whether the key of a usual row, which ``raw`` is, begins with ``prefix``."""
    key_bytes: int = _START.unpack_from(raw)[2]
    return len(prefix) <= key_bytes and raw[_KEY_AT : _KEY_AT + len(prefix)] == prefix


def _value_offsets_at(header: BlockHeader, raw: bytes | memoryview) -> int:
    """Returns the place of the value's offsets in a usual row; 0 for any other row."""
    nbytes = len(raw)
    if header.flags & ~FLAG_COMPRESSED or nbytes < _LEAST_BYTES:
        return 0
    hash_, key_first, key_bytes = _START.unpack_from(raw)
    if key_first or not 1 <= key_bytes <= KEY_BYTES_MAX or hash_ != header.least_hash or hash_ != header.greatest_hash:
        return 0
    key_end = _KEY_AT + key_bytes
    padding = -key_bytes % 8
    offsets_at: int = key_end + padding
    value_at = offsets_at + _OFFSETS.size
    if value_at > nbytes or (padding and raw[key_end:offsets_at] != _ZEROS[padding]):
        return 0
    value_first, value_bytes = _OFFSETS.unpack_from(raw, offsets_at)
    if value_first or value_bytes > VALUE_BYTES_MAX or value_at + value_bytes != nbytes:
        return 0
    return offsets_at
