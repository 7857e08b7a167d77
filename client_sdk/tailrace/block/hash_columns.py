"""The hashes of a column of keys by whole columns: XXH64 with seed 42, as ``tailrace.model.hashing``, in numpy.

    keys of one length, up to WIDTH_MAX bytes    all at once: 10 ns for a key of 16 bytes, 40 for one of 36
    any others                                   by one call for each key: 60 ns

The steps are those of XXH64, with an array of all keys in place of a number.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import xxhash

from tailrace.block.lazy import numpy_or_none, strings_of
from tailrace.model.hashing import HASH_SEED, hash_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

# Longer ones gain nothing: a call for each takes less than the steps over their bytes.
WIDTH_MAX = 64
# Fewer keys are not worth the calls of numpy.
ROWS_MIN = 500

_STRIPE = 32
_MASK = (1 << 64) - 1
_PRIME_1 = 0x9E3779B185EBCA87
_PRIME_2 = 0xC2B2AE3D27D4EB4F
_PRIME_3 = 0x165667B19E3779F9
_PRIME_4 = 0x85EBCA77C2B2AE63
_PRIME_5 = 0x27D4EB2F165667C5


def hash_array(keys: Any) -> Any:
    """Hashes each key of a pyarrow binary array without nulls, which may be a slice; a numpy array of u64."""
    numpy = numpy_or_none()
    rows = len(keys)
    if rows < ROWS_MIN:
        return _hash_each(numpy, keys)
    _, offsets_buffer, data = keys.buffers()
    offsets = numpy.frombuffer(offsets_buffer, "<i4", rows + 1, 4 * keys.offset)
    starts, lengths = offsets[:-1], numpy.diff(offsets)
    width = int(lengths[0])
    if 0 < width <= WIDTH_MAX and lengths.min() == lengths.max() == width:
        matrix = numpy.frombuffer(data, "u1", rows * width, int(starts[0])).reshape(rows, width)
        return _hash_matrix(numpy, matrix)
    return _hash_each(numpy, keys)


def hash_column(keys: Sequence[bytes]) -> Any:
    """Returns the hash of each of ``keys``, in their order, as a numpy array of u64."""
    return numpy_or_none().fromiter(map(xxhash.xxh64_intdigest, keys, repeat(HASH_SEED)), "<u8", len(keys))


def _hash_each(numpy: Any, keys: Any) -> Any:
    """Returns the hashes by one call for each key."""
    return numpy.fromiter(hash_keys(strings_of(keys)), "<u8", len(keys))


def _hash_matrix(numpy: Any, keys: Any) -> Any:
    """Returns the hashes of ``keys``, a matrix of bytes with a key in each row."""
    rows, width = keys.shape
    found = numpy.empty(rows, "<u8")
    other, spare = numpy.empty_like(found), numpy.empty_like(found)
    at = width - width % _STRIPE
    if at:
        _take_stripes(numpy, keys[:, :at], found, other, spare)
    else:
        found[:] = (HASH_SEED + _PRIME_5) & _MASK
    found += numpy.uint64(width)
    while width - at >= 8:
        numpy.multiply(_numbers(numpy, keys, at, 8), numpy.uint64(_PRIME_2), out=other)
        _rotate(numpy, other, 31, spare)
        other *= numpy.uint64(_PRIME_1)
        _mix(numpy, found, other, 27, _PRIME_1, _PRIME_4, spare)
        at += 8
    if width - at >= 4:
        numpy.multiply(_numbers(numpy, keys, at, 4), numpy.uint64(_PRIME_1), out=other)
        _mix(numpy, found, other, 23, _PRIME_2, _PRIME_3, spare)
        at += 4
    for column in range(at, width):
        numpy.multiply(keys[:, column], numpy.uint64(_PRIME_5), out=other)
        _mix(numpy, found, other, 11, _PRIME_1, 0, spare)
    for shift, prime in ((33, _PRIME_2), (29, _PRIME_3), (32, 1)):
        numpy.right_shift(found, numpy.uint64(shift), out=spare)
        found ^= spare
        if prime != 1:
            found *= numpy.uint64(prime)
    return found


def _take_stripes(numpy: Any, keys: Any, found: Any, other: Any, spare: Any) -> None:
    """Takes the stripes of 32 bytes that long keys begin with, of which each eighth goes to a lane of its own."""
    begins = (HASH_SEED + _PRIME_1 + _PRIME_2, HASH_SEED + _PRIME_2, HASH_SEED, HASH_SEED - _PRIME_1)
    lanes = [numpy.full(len(found), begin & _MASK, "<u8") for begin in begins]
    for stripe in range(0, keys.shape[1], _STRIPE):
        for number, lane in enumerate(lanes):
            numpy.multiply(_numbers(numpy, keys, stripe + 8 * number, 8), numpy.uint64(_PRIME_2), out=other)
            lane += other
            _rotate(numpy, lane, 31, spare)
            lane *= numpy.uint64(_PRIME_1)
    found[:] = 0
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        other[:] = lane
        _rotate(numpy, other, bits, spare)
        found += other
    for lane in lanes:
        numpy.multiply(lane, numpy.uint64(_PRIME_2), out=other)
        _rotate(numpy, other, 31, spare)
        other *= numpy.uint64(_PRIME_1)
        found ^= other
        found *= numpy.uint64(_PRIME_1)
        found += numpy.uint64(_PRIME_4)


def _mix(numpy: Any, found: Any, other: Any, bits: int, factor: int, summand: int, spare: Any) -> None:
    found ^= other
    _rotate(numpy, found, bits, spare)
    found *= numpy.uint64(factor)
    if summand:
        found += numpy.uint64(summand)


def _rotate(numpy: Any, numbers: Any, bits: int, spare: Any) -> None:
    """Turns each of the numbers to the left, in place."""
    numpy.right_shift(numbers, numpy.uint64(64 - bits), out=spare)
    numbers <<= numpy.uint64(bits)
    numbers |= spare


def _numbers(numpy: Any, keys: Any, at: int, nbytes: int) -> Any:
    """Returns the number that each key has at byte ``at``."""
    column = keys[:, at : at + nbytes]
    if keys.strides[0] % nbytes:
        column = numpy.ascontiguousarray(column)
    return column.view(f"<u{nbytes}")[:, 0]
