"""Finds the rows of neighbouring segments that have a newer row of their key. Pure, by whole columns.

    row          0    1    2    3    4    5    6          numbers over all segments, in the order of their seqs
    hash         7    9    7    4    9    7    9
    repeated     0 2 5 (7)   1 4 6 (9)                    rows whose hash occurs more than once, by hash, then by row
    key          a a a       b c b                        compared with the last of its hash: 0, 2, 1 are superseded;
                                                          4 has another key: the rest of such a hash is done in Python

Hashes only find candidates, and the bytes of keys decide. Two keys with one hash both survive. Each row takes 10 bytes
of memory, for its hash and the length of its key, and 4 bytes for its number if the hash is repeated. Key bytes are
read in slices: neither many rows of one key nor many keys of one hash make a slice larger. Each slice reads the
segments again, so a slice of a large input is an eighth.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tailrace.block.arrays import I64, U8, U32, U64, Bools, Indices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Lengths: TypeAlias = npt.NDArray[np.uint16]
RowNumbers: TypeAlias = U32

# The size of a slice: rows, which take some 80 bytes of memory each, and bytes of keys.
SLICE_ROWS = 1 << 20
SLICE_KEY_BYTES = 64 * 1024 * 1024
# The most slices.
_SLICES_MAX = 8
# Bytes of keys compared by one call of numpy, which fit the caches.
_COMPARE_BYTES = 1 << 20


class Keys(NamedTuple):
    """Keys as a column: key i is ``data[offsets[i]:offsets[i + 1]]``."""

    offsets: I64
    data: U8

    def key(self, index: int) -> bytes:
        """Returns a key."""
        return self.data[self.offsets[index] : self.offsets[index + 1]].tobytes()


class Slice(NamedTuple):
    """The size of a slice for any input: rows, and bytes of keys."""

    rows: int = SLICE_ROWS
    key_bytes: int = SLICE_KEY_BYTES


def superseded(
    hashes: U64, key_lengths: Lengths, keys_of: Callable[[RowNumbers], Keys], least: Slice | None = None
) -> Bools:
    """Returns a mask of the rows with a newer row of the same key.

    ``hashes`` and ``key_lengths`` (bytes) are of each row's key, in the order of seqs. ``keys_of`` returns the keys of
    rising row numbers. It is called about eight times at most, and less often if slices of the size ``least`` suffice.
    """
    least = least or Slice()
    gone = np.zeros(len(hashes), np.bool_)
    repeated = _repeated(hashes, least.rows)
    compare = _Comparison(hashes, keys_of, gone)
    stop = len(repeated)
    # From the back, so that the newest row of a hash comes first.
    for start in _slice_starts(repeated, key_lengths, least):
        compare.slice(repeated[start:stop], _newest_of_hash(repeated, stop - 1, hashes))
        stop = start
    return gone


def _repeated(hashes: U64, slice_rows: int) -> RowNumbers:
    """Returns the rows with a hash that occurs more than once, by hash and then by row.

    It sorts slices of the hashes' range, so that it holds only a few bytes for each row at once.
    """
    if len(hashes) < 2:
        return np.zeros(0, np.uint32)
    assert len(hashes) < 2**32, "a segment has fewer rows"
    least, greatest = int(hashes.min()), int(hashes.max())
    slices = -(-len(hashes) // slice_rows)
    borders = [least + (greatest - least + 1) * index // slices for index in range(slices + 1)]
    parts = [_repeated_between(hashes, low, high - 1) for low, high in pairwise(borders) if low < high]
    return np.concatenate(parts)


def _repeated_between(hashes: U64, low: int, high: int) -> RowNumbers:
    """Returns ``_repeated`` for the hashes from ``low`` to ``high``, both included."""
    rows = np.flatnonzero((hashes >= np.uint64(low)) & (hashes <= np.uint64(high))).astype(np.uint32)
    rows = rows[np.argsort(hashes[rows], kind="stable")]
    ordered = hashes[rows]
    equal = ordered[1:] == ordered[:-1]
    member = np.zeros(len(rows), np.bool_)
    member[1:] |= equal
    member[:-1] |= equal
    return rows[member]


def _slice_starts(repeated: RowNumbers, key_lengths: Lengths, least: Slice) -> Iterator[int]:
    """Yields the start of each slice of ``repeated``, the last slice first."""
    rows_max = max(least.rows, -(-len(repeated) // _SLICES_MAX))
    total = sum(
        int(key_lengths[repeated[start : start + least.rows]].sum(dtype=np.int64))
        for start in range(0, len(repeated), least.rows)
    )
    bytes_max = max(least.key_bytes, -(-total // _SLICES_MAX))
    stop = len(repeated)
    while stop:
        start = max(0, stop - rows_max)
        sizes = np.cumsum(key_lengths[repeated[start:stop]][::-1], dtype=np.int64)
        stop -= max(1, int(np.searchsorted(sizes, bytes_max, side="right")))
        yield stop


def _newest_of_hash(repeated: RowNumbers, index: int, hashes: U64) -> int:
    """Returns the newest row with the hash of the row at ``index``, the last with this hash, by doubling steps."""
    hash_ = hashes[repeated[index]]
    step, inside = 1, index
    while inside + step < len(repeated) and hashes[repeated[inside + step]] == hash_:
        inside, step = inside + step, step * 2
    stop = min(inside + step, len(repeated))
    return int(repeated[inside + int(np.searchsorted(hashes[repeated[inside:stop]], hash_, side="right")) - 1])


class _Comparison:
    """Compares slices of ``_repeated``, from the back, and marks superseded rows in ``gone``."""

    def __init__(self, hashes: U64, keys_of: Callable[[RowNumbers], Keys], gone: Bools) -> None:
        self._hashes = hashes
        self._keys_of = keys_of
        self._gone = gone
        # The keys of the present hash that were found, if it has several.
        self._mixed_hash = -1
        self._mixed_keys: set[bytes] = set()

    def slice(self, rows: RowNumbers, newest: int) -> None:
        """Compares the rows of a slice. ``newest`` is the newest row with the last hash; it may be after the slice."""
        if newest != rows[-1]:
            rows = np.append(rows, np.uint32(newest))
        order = np.argsort(rows)
        keys = self._keys_of(rows[order])
        assert len(keys.offsets) == len(rows) + 1
        places = np.empty(len(rows), np.intp)
        places[order] = np.arange(len(rows))
        newest_places = places[_stretch_ends(self._hashes[rows])]
        same = _equal(keys, places, newest_places)
        self._gone[rows[same & (places != newest_places)]] = True
        for index in np.flatnonzero(~same)[::-1].tolist():
            self._mixed(int(rows[index]), keys.key(int(places[index])))

    def _mixed(self, row: int, key: bytes) -> None:
        """Notes a row whose key differs from that of the newest row of its hash; such rows come newest first."""
        hash_ = int(self._hashes[row])
        if hash_ != self._mixed_hash:
            self._mixed_hash = hash_
            self._mixed_keys.clear()
        if key in self._mixed_keys:
            self._gone[row] = True
        self._mixed_keys.add(key)


def _stretch_ends(ordered: U64) -> Indices:
    """Returns for each of the ordered hashes the index of the last equal one."""
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
    return np.repeat(last, np.diff(last, prepend=-1))


def _equal(keys: Keys, left: Indices, right: Indices) -> Bools:
    """Returns whether key ``left[i]`` equals key ``right[i]``, compared in groups of one length."""
    starts, lengths = keys.offsets[:-1], np.diff(keys.offsets)
    same: Bools = lengths[left] == lengths[right]
    candidates = np.flatnonzero(same)
    lengths = lengths[left[candidates]]
    for length in np.unique(lengths).tolist():
        group = candidates[lengths == length]
        windows = np.lib.stride_tricks.sliding_window_view(keys.data, length)
        step = max(1, _COMPARE_BYTES // length)
        for begin in range(0, len(group), step):
            few = group[begin : begin + step]
            same[few] = (windows[starts[left[few]]] == windows[starts[right[few]]]).all(axis=1)
    return same
