"""Checks the columns of a body, whole columns at a time and never a single row.

    key_hash    the least and the greatest are those of the header
    seq         rises strictly, from the header's first to its last
    timestamp   never falls, and ends at the header's
    key         offsets from 0 up to the data's length; every key has 1 to KEY_BYTES_MAX bytes
    value       offsets from 0 up to the data's length; no value over VALUE_BYTES_MAX; a tombstone has no bytes
    validity    a bit a row, then zeros; at least one tombstone
    ttl         at most TTL_S_MAX, at least one above 0; that of a tombstone 0 or EXPIRED

The hashes are not compared with the keys; the producer vouches for them. Both ways give the same answer: numpy, and
plain Python if numpy is not installed or the block is too small for numpy's calls.
"""

from __future__ import annotations

import functools
import struct
from operator import lt, sub
from typing import TYPE_CHECKING, Any

from tailrace.block.header import EXPIRED, KEY_BYTES_MAX, TTL_S_MAX, VALUE_BYTES_MAX
from tailrace.block.lazy import numpy_or_none
from tailrace.errors import BadBlock

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader
    from tailrace.block.layout import Layout

PLAIN_ROWS_MAX = 40  # up to here plain Python is faster than the calls of numpy
_UNIFORM_ROWS_MAX = 16_384  # 64 KiB of offsets: with 32 kept, at most 2 MiB
_COMPARED_ROWS_MAX = 1_024  # above, making offsets to compare with takes 30 times as long as numpy does without


def check_columns(header: BlockHeader, layout: Layout, raw: memoryview) -> None:
    """Raises BadBlock if a column of the raw body breaks the rules above."""
    numpy = numpy_or_none() if header.rows > PLAIN_ROWS_MAX else None
    if numpy is None:
        check_plainly(header, layout, raw)
    else:
        check_with_numpy(numpy, header, layout, raw)


def check_with_numpy(numpy: Any, header: BlockHeader, layout: Layout, raw: memoryview) -> None:
    """Does check_columns by numpy, a few µs for 1,000 rows."""

    def column(extent: slice, dtype: str) -> Any:
        return numpy.frombuffer(raw[extent], dtype)

    hashes = column(layout.hashes, "<u8")
    _check_hashes(header, int(numpy.minimum.reduce(hashes)), int(numpy.maximum.reduce(hashes)))
    if layout.seqs is not None:
        seqs = column(layout.seqs, "<u8")
        _check_seqs(header, int(seqs[0]), int(seqs[-1]), rises=bool((seqs[1:] > seqs[:-1]).all()))
    if layout.timestamps is not None:
        stamps = column(layout.timestamps, "<u8")
        _check_timestamps(header, int(stamps[-1]), rises=bool((stamps[1:] >= stamps[:-1]).all()))
    _check_keys(*_extremes_with_numpy(numpy, raw[layout.key_offsets], header.rows))
    _check_values(*_extremes_with_numpy(numpy, raw[layout.value_offsets], header.rows))
    if layout.validity is not None:
        bits = numpy.unpackbits(column(layout.validity, "u1"), bitorder="little")
        absent = bits[: header.rows] == 0
        _check_validity(int(absent.sum()), spare_bits=bool(bits[header.rows :].any()))
        offsets = column(layout.value_offsets, "<u4")
        _check_tombstones(bool((offsets[1:] != offsets[:-1])[absent].any()))
    if layout.ttls is not None:
        ttls = column(layout.ttls, "<u4")
        of_tombstones = ttls[absent] if layout.validity is not None else ttls[:0]
        _check_ttls(int(ttls.max()), int(of_tombstones.max(initial=0)))


def check_plainly(header: BlockHeader, layout: Layout, raw: memoryview) -> None:
    """Does check_columns without numpy, about 0.1 µs a row."""
    rows = header.rows
    hashes = unpack_u64(raw[layout.hashes], rows)
    _check_hashes(header, min(hashes), max(hashes))
    if layout.seqs is not None:
        seqs = unpack_u64(raw[layout.seqs], rows)
        _check_seqs(header, seqs[0], seqs[-1], rises=all(map(lt, seqs, seqs[1:])))
    if layout.timestamps is not None:
        stamps = unpack_u64(raw[layout.timestamps], rows)
        _check_timestamps(header, stamps[-1], rises=sorted(stamps) == list(stamps))
    _check_keys(*_extremes(raw[layout.key_offsets], rows))
    _check_values(*_extremes(raw[layout.value_offsets], rows))
    if layout.validity is not None:
        bitmap = raw[layout.validity]
        absent = absent_rows(bitmap, rows)
        _check_validity(len(absent), spare_bits=bool(int.from_bytes(bitmap, "little") >> rows))
        offsets = unpack_u32(raw[layout.value_offsets], rows + 1)
        _check_tombstones(any(offsets[row] != offsets[row + 1] for row in absent))
    if layout.ttls is not None:
        ttls = unpack_u32(raw[layout.ttls], rows)
        of_tombstones = [ttls[row] for row in absent] if layout.validity is not None else []
        _check_ttls(max(ttls), max(of_tombstones, default=0))


def unpack_u64(column: memoryview, count: int) -> tuple[int, ...]:
    """Returns ``count`` 64-bit numbers."""
    return struct.unpack(f"<{count}Q", column)


def unpack_u32(column: memoryview, count: int) -> tuple[int, ...]:
    """Returns ``count`` 32-bit numbers."""
    return struct.unpack(f"<{count}I", column)


def absent_rows(bitmap: memoryview, rows: int) -> list[int]:
    """Returns the rows whose bit is 0, ascending. The least bit of the first byte is row 0."""
    absent = ~int.from_bytes(bitmap, "little") & ((1 << rows) - 1)
    return [row for row, bit in enumerate(reversed(bin(absent)[2:])) if bit == "1"]


def uniform_width(offsets: memoryview, rows: int) -> int | None:
    """Returns the length of every row if all have one length and the offsets begin at 0; None otherwise."""
    width = int.from_bytes(offsets[4:8], "little")
    if int.from_bytes(offsets[-4:], "little") != width * rows:
        return None  # most columns of differing lengths leave here
    return width if offsets.tobytes() == uniform_offsets(rows, width) else None


def uniform_offsets(rows: int, width: int) -> bytes:
    """Returns the offsets of ``rows`` rows of ``width`` bytes each; remembered for a few of the latest."""
    return _recent_uniform_offsets(rows, width) if rows <= _UNIFORM_ROWS_MAX else _uniform_offsets(rows, width)


def _uniform_offsets(rows: int, width: int) -> bytes:
    offsets = range(0, rows * width + 1, width) if width else [0] * (rows + 1)
    return struct.pack(f"<{rows + 1}I", *offsets)


_recent_uniform_offsets = functools.lru_cache(maxsize=32)(_uniform_offsets)


def _extremes_with_numpy(numpy: Any, offsets: memoryview, rows: int) -> tuple[int, int, int]:
    """Returns the first offset, and the least and the greatest step between two; a negative step if one falls.

    The last offset is the data's length by the layout, so where no other is above it all are inside, and the steps fit
    into 32 bits with their signs.
    """
    width = uniform_width(offsets, rows) if rows <= _COMPARED_ROWS_MAX else None
    if width is not None:
        return 0, width, width
    numbers = numpy.frombuffer(offsets, "<u4")
    if numpy.maximum.reduce(numbers) > numbers[-1]:
        return int(numbers[0]), -1, -1
    steps = (numbers[1:] - numbers[:-1]).view("<i4")
    return int(numbers[0]), int(numpy.minimum.reduce(steps)), int(numpy.maximum.reduce(steps))


def _extremes(offsets: memoryview, rows: int) -> tuple[int, int, int]:
    """Returns what _extremes_with_numpy gives, without numpy."""
    width = uniform_width(offsets, rows)
    if width is not None:
        return 0, width, width
    numbers = unpack_u32(offsets, rows + 1)
    steps = set(map(sub, numbers[1:], numbers))
    return numbers[0], min(steps), max(steps)


def _check_hashes(header: BlockHeader, least: int, greatest: int) -> None:
    if (least, greatest) != (header.least_hash, header.greatest_hash):
        raise BadBlock(
            f"the key hashes lie between {least} and {greatest}, "
            f"the header says {header.least_hash} and {header.greatest_hash}"
        )


def _check_seqs(header: BlockHeader, first: int, last: int, *, rises: bool) -> None:
    if (first, last) != (header.first_seq, header.last_seq):
        raise BadBlock(f"the seqs are {first} to {last}, the header says {header.first_seq} to {header.last_seq}")
    if not rises:
        raise BadBlock("the seqs do not rise from each row to the next")


def _check_timestamps(header: BlockHeader, last: int, *, rises: bool) -> None:
    if last != header.timestamp:
        raise BadBlock(f"the last timestamp is {last}, the header says {header.timestamp}")
    if not rises:
        raise BadBlock("the timestamps go backwards")


def _check_keys(first: int, shortest: int, longest: int) -> None:
    if first != 0:
        raise BadBlock(f"the key offsets begin at {first}, they must at 0")
    if shortest < 1 or longest > KEY_BYTES_MAX:
        raise BadBlock(f"the key offsets make keys that are not of 1 to {KEY_BYTES_MAX} bytes, or go backwards")


def _check_values(first: int, shortest: int, longest: int) -> None:
    if first != 0:
        raise BadBlock(f"the value offsets begin at {first}, they must at 0")
    if shortest < 0 or longest > VALUE_BYTES_MAX:
        raise BadBlock(f"the value offsets make a value of more than {VALUE_BYTES_MAX} bytes, or go backwards")


def _check_validity(tombstones: int, *, spare_bits: bool) -> None:
    if spare_bits:
        raise BadBlock("the validity bitmap has bits set beyond the last row")
    if tombstones == 0:
        raise BadBlock("the flags promise tombstones, the validity bitmap has none")


def _check_ttls(longest: int, longest_of_tombstones: int) -> None:
    if longest == 0:
        raise BadBlock("the flags promise ttls, all of them are 0")
    if longest > TTL_S_MAX:
        raise BadBlock(f"a ttl is {longest} s, at most {TTL_S_MAX} are permitted")
    if longest_of_tombstones > EXPIRED:
        raise BadBlock(f"a tombstone has the ttl {longest_of_tombstones}, only 0 and {EXPIRED} are permitted")


def _check_tombstones(have_bytes: bool) -> None:
    if have_bytes:
        raise BadBlock("a tombstone's value has bytes")
