"""Rows of Arrow batches cut into blocks by partition, by whole columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tailrace.block import ROWS_MAX, Block, block_from_arrow
from tailrace.hashing import hash_keys

# A block of about this size, whatever the size of the batches that Spark hands over.
BLOCK_BYTES = 1024 * 1024
BLOCK_ROWS_MAX = 16_384

assert BLOCK_ROWS_MAX <= ROWS_MAX


class Rows(NamedTuple):
    """Rows in order: keys and values as Arrow binary arrays, a null value deletes; the hash of each key."""

    keys: Any
    values: Any
    hashes: NDArray[np.uint64]


class _Pending:
    __slots__ = ("nbytes", "parts", "rows")

    def __init__(self) -> None:
        self.parts: list[Rows] = []
        self.rows = 0
        self.nbytes = 0


class Router:
    """Gathers the rows of each partition of a feed, and gives blocks as they fill up."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._pending: dict[int, _Pending] = {}

    def add(self, keys: Any, values: Any, numbers: Any | None = None) -> Iterator[Block]:
        """Adds rows (Arrow binary arrays); the blocks that are full with them.

        ``numbers``: the partition of each row where the job has computed it; the node refuses what is not there.
        Raises ValueError for a null key, or a number that is no partition of the feed.
        """
        if keys.null_count:
            raise ValueError(f"{keys.null_count} of {len(keys)} rows have a null key: filter them out, or give a key")
        hashes = np.fromiter(hash_keys(keys.to_pylist()), dtype=np.uint64, count=len(keys))
        found = partition_of_hashes(hashes, self._partitions) if numbers is None else self._checked(numbers)
        order = np.argsort(found, kind="stable")
        found = found[order]
        keys, values, hashes = keys.take(pa.array(order)), values.take(pa.array(order)), hashes[order]
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        stops = np.append(starts[1:], len(found))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            rows = Rows(keys[start:stop], values[start:stop], hashes[start:stop])
            yield from self._gather(int(found[start]), rows)

    def rest(self) -> Iterator[Block]:
        """The blocks that are not full."""
        for partition in sorted(self._pending):
            yield from self._cut(partition)

    def _checked(self, numbers: Any) -> NDArray[np.int64]:
        if numbers.null_count:
            raise ValueError("the partition column has nulls: fill it by partition_of(key, partitions)")
        found: NDArray[np.int64] = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
        if len(found) and not (int(found.min()) >= 0 and int(found.max()) < self._partitions):
            raise ValueError(
                f"the partition column has numbers from {found.min()} to {found.max()}, the feed has "
                f"{self._partitions} partitions: fill it by partition_of(key, {self._partitions})"
            )
        return found

    def _gather(self, partition: int, rows: Rows) -> Iterator[Block]:
        pending = self._pending.setdefault(partition, _Pending())
        pending.parts.append(rows)
        pending.rows += len(rows.hashes)
        pending.nbytes += _sizes(rows.keys, rows.values)[-1]
        if pending.nbytes >= BLOCK_BYTES or pending.rows >= BLOCK_ROWS_MAX:
            yield from self._cut(partition)

    def _cut(self, partition: int) -> Iterator[Block]:
        pending = self._pending.pop(partition)
        keys = pa.concat_arrays([part.keys for part in pending.parts])
        values = pa.concat_arrays([part.values for part in pending.parts])
        hashes = np.concatenate([part.hashes for part in pending.parts])
        ends = _sizes(keys, values)
        start = 0
        while start < len(hashes):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + BLOCK_BYTES, side="left")) + 1
            stop = min(stop, start + BLOCK_ROWS_MAX, len(hashes))
            part = slice(start, stop)
            yield block_from_arrow(keys[part], values[part], partition=partition, hashes=hashes[part])
            start = stop


def partition_of_hashes(hashes: NDArray[np.uint64], partitions: int) -> NDArray[np.int64]:
    """The partition of each hash, in a feed of so many equal ranges: (hash * n) >> 64 without 128-bit integers."""
    count, shift = np.uint64(partitions), np.uint64(32)
    upper, lower = hashes >> shift, hashes & np.uint64(0xFFFFFFFF)
    return ((upper * count + ((lower * count) >> shift)) >> shift).astype(np.int64)


def _sizes(keys: Any, values: Any) -> NDArray[np.int64]:
    """Bytes of keys and values up to and with each row."""
    lengths = pc.add(pc.binary_length(keys), pc.fill_null(pc.binary_length(values), 0))
    sizes: NDArray[np.int64] = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
    return sizes
