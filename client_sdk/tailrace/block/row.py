"""A block of one row, as a single put or delete makes it: the same bytes and checks as in general, in fewer steps.

     0  hash of the key u64
     8  offsets of the key: 0 and its length, u32 each
    16  the key, then zeros up to a multiple of 8
        a deletion: 8 zeros, a validity bitmap that says no, and its padding
        offsets of the value: 0 and its length, u32 each
        the value

A process that sleeps between writes finds its caches cold, and then every call counts. Unusual blocks take the general
way: layout.py, check.py, encode.py.
"""

from __future__ import annotations

import struct

from tailrace.block.block import Block
from tailrace.block.encode import stored_form
from tailrace.block.header import (
    COMPRESS_BYTES_MIN,
    FLAG_TOMBSTONES,
    BlockHeader,
    packed_row_header,
    stamped_head,
    sum_of,
)

_START = struct.Struct("<QII")
_OFFSETS = struct.Struct("<II")
_ZEROS = tuple(bytes(count) for count in range(8))
_DELETED = bytes(16)  # bitmap, padding, and the offsets of no bytes


def encode_row(
    key: bytes, value: bytes | None, *, hash_: int, partition: int, producer_id: int, producer_seq: int
) -> Block:
    """Does ``encode_block([key], [value], ...)`` for a row. ``key`` and ``value`` (None deletes) are checked."""
    raw = _raw_row(key, value, hash_)
    flags = FLAG_TOMBSTONES if value is None else 0
    stored, flag = stored_form(raw)
    numbers = (flags | flag, 1, partition, 0, 0, 0, producer_id, producer_seq, len(stored), len(raw), hash_, hash_)
    header = tuple.__new__(BlockHeader, (*numbers, sum_of(stored)))
    return Block(header, header.pack(), stored)


def row_bytes(
    key: bytes, value: bytes | None, *, hash_: int, partition: int, producer_id: int, producer_seq: int
) -> bytes:
    """Returns the bytes of ``encode_row``, without the objects of a block."""
    raw = stored = _raw_row(key, value, hash_)
    flags = FLAG_TOMBSTONES if value is None else 0
    if len(raw) >= COMPRESS_BYTES_MIN:
        stored, flag = stored_form(raw)
        flags |= flag
    return packed_row_header(flags, partition, producer_id, producer_seq, hash_, stored, len(raw)) + stored


def _raw_row(key: bytes, value: bytes | None, hash_: int) -> bytes:
    """Returns the body, not compressed."""
    key_bytes = len(key)
    start = _START.pack(hash_, 0, key_bytes) + key + _ZEROS[-key_bytes % 8]
    return start + _DELETED if value is None else start + _OFFSETS.pack(0, len(value)) + value


def stamped_row(header: BlockHeader, head: bytes, body: bytes, seq: int, timestamp: int) -> Block:
    """Returns the block of a usual row that was checked and has no seq, with these.

    ValueError if one of them does not fit into its field.
    """
    # Names for all fields take less time than slices.
    flags, rows, partition, _, _, _, producer_id, producer_seq, stored, raw, least, greatest, body_sum = header
    fields = (
        flags, rows, partition, seq, seq, timestamp, producer_id, producer_seq, stored, raw, least, greatest, body_sum,
    )  # fmt: skip
    return Block(tuple.__new__(BlockHeader, fields), stamped_head(head, seq, seq, timestamp), body, is_checked=True)
