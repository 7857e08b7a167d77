"""Blocks from lists of keys and values."""

from __future__ import annotations

import struct
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import lz4.block

from tailrace.block.block import Block
from tailrace.block.check import uniform_offsets
from tailrace.block.header import (
    BODY_BYTES_MAX,
    COMPRESS_BYTES_MIN,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TOMBSTONES,
    FLAG_TTLS,
    KEY_BYTES_MAX,
    PARTITION_MAX,
    ROWS_MAX,
    TTL_S_MAX,
    VALUE_BYTES_MAX,
    BlockHeader,
    sum_of,
)
from tailrace.block.layout import padding_after
from tailrace.errors import TooLarge
from tailrace.model.hashing import hash_keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_COMPRESSED_SHARE_MAX = 7 / 8  # for less than an eighth saved, no reader should have to decompress and to copy

# Of a large body the middle is tried first, because lz4 takes and touches as much memory as the whole body has. The
# middle has few hashes, which never compress, and twice the bytes that lz4 looks back.
_SAMPLE_BYTES = 128 * 1024
_SAMPLED_BYTES_MIN = 4 * _SAMPLE_BYTES
_SAMPLE_SHARE_MAX = 31 / 32

# Blocks and what is made for them have about 1 MiB. A client may keep twice this amount at the end of its heap.
KEPT_PIECE_BYTES = 8 << 20

_ZEROS = [bytes(count) for count in range(8)]


class Stamps(NamedTuple):
    """Numbers that the server gave before: for blocks that are made of others. One entry a row, rising."""

    seqs: Sequence[int]
    timestamps: Sequence[int]


class RawColumns(NamedTuple):
    """The columns of a body as buffers, in the forms of docs/formats/block.md, without padding."""

    hashes: bytes
    key_offsets: bytes
    key_data: bytes | memoryview
    validity: bytes | None
    value_offsets: bytes
    value_data: bytes | memoryview
    ttls: bytes | None = None


def encode_block(
    keys: Sequence[bytes],
    values: Sequence[bytes | None],
    *,
    partition: int,
    producer_id: int = 0,
    producer_seq: int = 0,
    hashes: Sequence[int] | None = None,
    compress: bool = True,
    stamps: Stamps | None = None,
    ttls: Sequence[int] | None = None,
) -> Block:
    """Returns a block of ``len(keys)`` mutations, in the order given; a value of None deletes its key.

    ``hashes`` are the keys' hashes (``tailrace.model.hashing.hash_keys``) if the caller has them. ``compress=False``
    leaves lz4 off; lz4 is also left off if it saves less than an eighth. With ``stamps`` the block has its seqs and
    timestamps already, with columns for them if one number is not enough. ``ttls`` are seconds, 0 for a row without;
    of a deletion EXPIRED or 0.

    TypeError for a key or value that is not bytes; ValueError for an empty key, no rows, or columns of different
    lengths; TooLarge for a key, a value, a number of rows or a body over its bound (header.py).
    """
    rows = check_rows(len(keys), len(values))
    key_offsets, key_data = _strings(keys, "key")
    value_offsets, value_data, validity = _values(values)
    numbers = hash_keys(keys) if hashes is None else hashes
    if len(numbers) != rows:
        raise ValueError(f"{rows} keys came with {len(numbers)} hashes")
    columns = RawColumns(
        _pack_u64(numbers, "hash"),
        key_offsets,
        key_data,
        validity,
        value_offsets,
        value_data,
        None if ttls is None else _ttls(ttls, rows),
    )
    header = header_of(rows, partition, producer_id, producer_seq, min(numbers), max(numbers))
    return assemble(header, columns, compress=compress, stamps=stamps)


def header_of(rows: int, partition: int, producer_id: int, producer_seq: int, least: int, greatest: int) -> BlockHeader:
    """Returns the header of a producer, without the body. ValueError for a partition out of bounds."""
    if not 0 <= partition <= PARTITION_MAX:
        raise ValueError(f"partition {partition} is not between 0 and {PARTITION_MAX}")
    return BlockHeader(
        flags=0,
        rows=rows,
        partition=partition,
        first_seq=0,
        last_seq=0,
        timestamp=0,
        producer_id=producer_id,
        producer_seq=producer_seq,
        stored_bytes=0,
        raw_bytes=0,
        least_hash=least,
        greatest_hash=greatest,
        body_sum=0,
    )


def check_rows(keys: int, values: int) -> int:
    """Returns the number of rows. ValueError if the columns differ or are empty, TooLarge above ROWS_MAX."""
    if keys != values:
        raise ValueError(f"{keys} keys came with {values} values")
    if keys == 0:
        raise ValueError("a block has at least one row")
    if keys > ROWS_MAX:
        raise TooLarge(f"a block has at most {ROWS_MAX} rows, these are {keys}: make several")
    return keys


def check_lengths(what: str, shortest: int, longest: int) -> None:
    """Bounds of the lengths in a column, ``what`` being "key" or "value". ValueError, TooLarge."""
    if what == "key" and shortest == 0:
        raise ValueError("a key is empty; it needs at least one byte")
    bound = KEY_BYTES_MAX if what == "key" else VALUE_BYTES_MAX
    if longest > bound:
        raise TooLarge(f"a {what} has {longest} bytes, at most {bound} are permitted")


def assemble(header: BlockHeader, columns: RawColumns, *, compress: bool, stamps: Stamps | None = None) -> Block:
    """Makes the block of ``columns``. ``header`` says rows, partition, producer and hashes; the rest is filled in.

    TooLarge if the body passes BODY_BYTES_MAX; ValueError for stamps that do not fit.
    """
    seqs = timestamps = None
    if stamps is not None:
        header, seqs, timestamps = _stamp(header, stamps)
    parts: list[bytes | memoryview] = []
    extents = (columns.hashes, seqs, timestamps, columns.ttls, *columns[1:6])
    for column in extents:
        if column is not None:
            parts += (column, _ZEROS[padding_after(len(column))])
    parts.pop()  # nothing follows the values
    body = b"".join(parts)
    if len(body) > BODY_BYTES_MAX:
        raise TooLarge(f"the body has {len(body)} bytes, at most {BODY_BYTES_MAX} are permitted: make several blocks")
    flags = header.flags if columns.validity is None else header.flags | FLAG_TOMBSTONES
    if columns.ttls is not None:
        flags |= FLAG_TTLS
    stored, flag = stored_form(body) if compress else (body, 0)
    flags |= flag
    header = header._replace(flags=flags, stored_bytes=len(stored), raw_bytes=len(body), body_sum=sum_of(stored))
    return Block(header, header.pack(), stored)


def stored_form(raw: bytes) -> tuple[bytes, int]:
    """Returns the stored body, and FLAG_COMPRESSED or 0: lz4 if that saves enough."""
    if len(raw) >= COMPRESS_BYTES_MIN and not (len(raw) >= _SAMPLED_BYTES_MIN and _is_random(raw)):
        packed = lz4.block.compress(raw, store_size=False)
        if len(packed) <= len(raw) * _COMPRESSED_SHARE_MAX:
            return packed, FLAG_COMPRESSED
    return raw, 0


def _is_random(raw: bytes) -> bool:
    """Tells whether lz4 saves next to nothing in the middle of a body."""
    begin = (len(raw) - _SAMPLE_BYTES) // 2
    sample = memoryview(raw)[begin : begin + _SAMPLE_BYTES]
    return len(lz4.block.compress(sample, store_size=False)) > _SAMPLE_BYTES * _SAMPLE_SHARE_MAX


def _stamp(header: BlockHeader, stamps: Stamps) -> tuple[BlockHeader, bytes | None, bytes | None]:
    """Returns the header with its seqs and timestamp, and columns of both if the header cannot hold all."""
    seqs, timestamps = stamps
    if not len(seqs) == len(timestamps) == header.rows:
        raise ValueError(f"{header.rows} rows came with {len(seqs)} seqs and {len(timestamps)} timestamps")
    if seqs[0] < 1 or any(map(int.__ge__, seqs, seqs[1:])) or any(map(int.__gt__, timestamps, timestamps[1:])):
        raise ValueError("seqs must be above 0 and rise from each row to the next, and timestamps never fall")
    dense = seqs[-1] - seqs[0] + 1 == header.rows
    uniform = timestamps[0] == timestamps[-1]
    flags = (0 if dense else FLAG_SEQS) | (0 if uniform else FLAG_TIMESTAMPS)
    header = header._replace(flags=header.flags | flags, first_seq=seqs[0], last_seq=seqs[-1], timestamp=timestamps[-1])
    return (
        header,
        None if dense else _pack_u64(seqs, "seq"),
        None if uniform else _pack_u64(timestamps, "timestamp"),
    )


def _values(values: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes | None]:
    """Returns offsets, data and, if there are tombstones, the bitmap of a column of values."""
    try:
        offsets, data = _strings(values, "value")
        return offsets, data, None
    except TypeError:  # raised by a None among them, cheaper than to look for one
        if None not in values:
            raise
    offsets, data = _strings([b"" if value is None else value for value in values], "value")
    return offsets, data, _validity(values)


def _strings(strings: Sequence[Any], what: str) -> tuple[bytes, bytes]:
    """Offsets and data of a column. TypeError that names the first string that is not bytes; ValueError, TooLarge."""
    try:
        data = b"".join(strings)
    except TypeError:
        raise _not_bytes(strings, what) from None
    if len(data) > BODY_BYTES_MAX:
        raise TooLarge(f"the {what}s have {len(data)} bytes together, a body at most {BODY_BYTES_MAX}")
    return _offsets(strings, data, what), data


def _not_bytes(strings: Sequence[Any], what: str) -> TypeError:
    for row, string in enumerate(strings):
        if not isinstance(string, bytes):
            hint = ": encode it, for example by .encode()" if isinstance(string, str) else ""
            return TypeError(f"{what} {row} is of type {type(string).__name__}, it must be bytes{hint}")
    return TypeError(f"the {what}s must be bytes")


def _offsets(strings: Sequence[Any], data: bytes, what: str) -> bytes:
    """Returns the offsets of strings that ``data`` joins. ValueError, TooLarge for a string out of bounds."""
    lengths = list(map(len, strings))
    different = set(lengths)
    check_lengths(what, min(different), max(different))
    rows, width = len(lengths), lengths[0]
    if len(different) == 1:
        total, offsets = rows * width, uniform_offsets(rows, width)
    else:
        numbers = list(accumulate(lengths, initial=0))
        total, offsets = numbers[-1], struct.pack(f"<{rows + 1}I", *numbers)
    if total != len(data):  # a buffer whose items are wider than a byte
        raise _not_bytes(strings, what)
    return offsets


def _validity(values: Sequence[bytes | None]) -> bytes:
    """Returns Arrow's bitmap of the values that are not None."""
    bitmap = bytearray(-(-len(values) // 8))
    for row, value in enumerate(values):
        if value is not None:
            bitmap[row >> 3] |= 1 << (row & 7)
    return bytes(bitmap)


def _ttls(ttls: Sequence[int], rows: int) -> bytes | None:
    """Returns the column of ttls; None if no row has one. ValueError for one out of bounds."""
    if len(ttls) != rows:
        raise ValueError(f"{rows} keys came with {len(ttls)} ttls")
    if not any(ttls):
        return None
    if min(ttls) < 0 or max(ttls) > TTL_S_MAX:
        raise ValueError(f"a ttl is not between 0 and {TTL_S_MAX} s")
    return struct.pack(f"<{rows}I", *ttls)


def _pack_u64(numbers: Sequence[int], what: str) -> bytes:
    try:
        return struct.pack(f"<{len(numbers)}Q", *numbers)
    except struct.error as error:
        raise ValueError(f"a {what} is no number of 64 bits: {error}") from None


def keep_freed_memory() -> None:
    """Has the C library keep the memory of freed blocks for the next ones.

    glibc gives a large piece back to the system as soon as it is freed, and zeroed pages for the next one take longer
    than all else that a block needs. It keeps pieces as large as the largest one of its own that was freed. So this
    frees one. Its pages are never touched, so the system gives none for it. Other C libraries take no notice.
    """
    bytes(KEPT_PIECE_BYTES)
