"""Routes the rows of Arrow batches to partitions and encodes them in blocks, whole columns at a time.

batch ──> hashes ──> partitions ──> rows by partition ──> buffers ──1 MiB──> block
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_tailrace.spans import spans
from tailrace.block import (
    FLAG_COMPRESSED,
    KEY_BYTES_MAX,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    Block,
    block_from_arrow,
    digest_of_arrays,
    hash_array,
)
from tailrace.errors import TooLarge

# Blocks have about this size, however large Spark's batches are.
BLOCK_BYTES = 1024 * 1024
BLOCK_ROWS_MAX = 16_384
# Rows are routed in pieces of this size, to bound the memory that a batch needs besides itself.
PIECE_BYTES = 16 * 1024 * 1024
# Trying to compress values that do not compress, such as images, takes a sixth of the task's time.
PASSED_OVER_MAX = 15
# The bound of all buffers: full blocks for a feed of up to 32 partitions, smaller blocks for larger feeds.
BUFFERED_BYTES_MAX = 48 * 1024 * 1024
# Up to this many partitions, their numbers are sorted as 16-bit integers, which is several times faster.
_SHORT_NUMBERS = 1 << 16

assert BLOCK_ROWS_MAX <= ROWS_MAX
assert PIECE_BYTES <= BUFFERED_BYTES_MAX


class _Source:
    """Memory that buffered rows are slices of, and the number of these slices."""

    __slots__ = ("nbytes", "parts")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.parts = 0


class _Rows(NamedTuple):
    """Rows in order: keys and values as Arrow binary arrays (a null value deletes), with hash and size of each row."""

    keys: Any
    values: Any
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    source: _Source

    def rows(self, start: int, stop: int) -> _Rows:
        part = slice(start, stop)
        return _Rows(self.keys[part], self.values[part], self.hashes[part], self.sizes[part], self.source)


class RoutedBlock(NamedTuple):
    """A block, and the rows that it encodes."""

    block: Block
    rows: _Rows

    def digest(self) -> int:
        """Returns the digest of the rows, without opening the block."""
        return digest_of_arrays(self.rows.hashes, self.rows.values)


class _Buffer:
    """The rows of one partition that are not in a block yet."""

    __slots__ = ("nbytes", "parts", "rows")

    def __init__(self) -> None:
        self.parts: list[_Rows] = []
        self.rows = 0
        self.nbytes = 0


class Router:
    """Buffers the rows of each partition of a feed, and yields a block when it is full."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._buffers: dict[int, _Buffer] = {}
        self.buffered_bytes = 0
        self._trials = Trials()

    def add(self, keys: Any, values: Any, numbers: Any | None = None) -> Iterator[RoutedBlock]:
        """Adds rows (Arrow binary arrays), and yields the blocks that become full.

        ``numbers`` is the partition of each row if the job has computed it. Raises ValueError for a null or empty key
        and for a wrong number, and TooLarge for a key or value over its bound, before any row is added.
        """
        sizes = _checked_sizes(keys, values)
        hashes = hash_array(keys)
        found = partition_of_hashes(hashes, self._partitions)
        if numbers is not None:
            _check_numbers(numbers, found, keys, self._partitions)
        for start, stop in spans(np.cumsum(sizes), PIECE_BYTES, ROWS_MAX):
            piece = _Rows(keys, values, hashes, sizes, _Source(0)).rows(start, stop)
            yield from self._add_piece(piece, found[start:stop])

    def flush(self) -> Iterator[RoutedBlock]:
        """Yields all remaining rows as blocks, full or not."""
        for partition in sorted(self._buffers):
            yield from self._cut(partition, whole=True)

    def _add_piece(self, piece: _Rows, found: NDArray[np.int64]) -> Iterator[RoutedBlock]:
        if np.any(found[1:] < found[:-1]):
            short = found.astype(np.uint16) if self._partitions <= _SHORT_NUMBERS else found
            order = np.argsort(short, kind="stable")
            rows = pa.array(order)
            found = found[order]
            keys, values = piece.keys.take(rows), piece.values.take(rows)
            piece = _Rows(keys, values, piece.hashes[order], piece.sizes[order], piece.source)
        source = _Source(int(piece.sizes.sum()))
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        stops = np.append(starts[1:], len(found))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield from self._gather(int(found[start]), piece._replace(source=source).rows(start, stop))
        if self.buffered_bytes > BUFFERED_BYTES_MAX:
            yield from self.flush()

    def _gather(self, partition: int, part: _Rows) -> Iterator[RoutedBlock]:
        buffer = self._add_to_buffer(partition, part)
        if buffer.nbytes >= BLOCK_BYTES or buffer.rows >= BLOCK_ROWS_MAX:
            yield from self._cut(partition, whole=False)

    def _add_to_buffer(self, partition: int, part: _Rows) -> _Buffer:
        buffer = self._buffers.setdefault(partition, _Buffer())
        buffer.parts.append(part)
        buffer.rows += len(part.hashes)
        buffer.nbytes += int(part.sizes.sum())
        if not part.source.parts:
            self.buffered_bytes += part.source.nbytes
        part.source.parts += 1
        return buffer

    def _release(self, partition: int) -> _Rows:
        """Empties the buffer of a partition, and returns its rows."""
        parts = self._buffers.pop(partition).parts
        for part in parts:
            part.source.parts -= 1
            if not part.source.parts:
                self.buffered_bytes -= part.source.nbytes
        if len(parts) == 1:
            return parts[0]
        keys = pa.concat_arrays([part.keys for part in parts])
        values = pa.concat_arrays([part.values for part in parts])
        hashes = np.concatenate([part.hashes for part in parts])
        sizes = np.concatenate([part.sizes for part in parts])
        return _Rows(keys, values, hashes, sizes, _Source(int(sizes.sum())))

    def _cut(self, partition: int, *, whole: bool) -> Iterator[RoutedBlock]:
        """Yields the full blocks of a partition's buffer, and with ``whole`` the last one too."""
        all_rows = self._release(partition)
        ends = np.cumsum(all_rows.sizes)
        for start, stop in spans(ends, BLOCK_BYTES, BLOCK_ROWS_MAX):
            part = all_rows.rows(start, stop)
            full = int(part.sizes.sum()) >= BLOCK_BYTES or stop - start == BLOCK_ROWS_MAX
            if full or whole:
                yield RoutedBlock(self._encode(partition, part), part)
            else:
                self._add_to_buffer(partition, part)

    def _encode(self, partition: int, part: _Rows) -> Block:
        compress = self._trials.is_due()
        block = block_from_arrow(part.keys, part.values, partition=partition, hashes=part.hashes, compress=compress)
        if compress:
            self._trials.note(bool(block.header.flags & FLAG_COMPRESSED))
        return block


class Trials:
    """Decides whether to try lz4 on a block.

    After a try that does not make its block smaller, blocks are passed over: 1, 3, 7, up to PASSED_OVER_MAX. After a
    useful try every block is tried again.
    """

    def __init__(self) -> None:
        self._pause = self._left = 0

    def is_due(self) -> bool:
        """Returns whether to try lz4 on the next block. Call it once for each block."""
        if self._left:
            self._left -= 1
            return False
        return True

    def note(self, useful: bool) -> None:
        """Notes whether a try has made the block smaller."""
        self._pause = 0 if useful else min(2 * self._pause + 1, PASSED_OVER_MAX)
        self._left = self._pause


def partition_of_hashes(hashes: NDArray[np.uint64], partitions: int) -> NDArray[np.int64]:
    """Returns the partition of each hash in a feed of ``partitions`` equal ranges.

    It is (hash * partitions) >> 64, computed without 128-bit integers.
    """
    count, shift = np.uint64(partitions), np.uint64(32)
    upper, lower = hashes >> shift, hashes & np.uint64(0xFFFFFFFF)
    return ((upper * count + ((lower * count) >> shift)) >> shift).astype(np.int64)


def _checked_sizes(keys: Any, values: Any) -> NDArray[np.int64]:
    """Returns the bytes of each row. Raises ValueError for a null or empty key, TooLarge for a row over a bound."""
    if keys.null_count:
        raise ValueError(
            f"{keys.null_count} of {len(keys)} rows have a null key: give each a key, or filter them out, for example "
            "by df.where('key IS NOT NULL')"
        )
    key_bytes = pc.binary_length(keys).to_numpy(zero_copy_only=False)
    value_bytes = pc.binary_length(values)
    if values.null_count:
        value_bytes = pc.fill_null(value_bytes, 0)
    value_bytes = value_bytes.to_numpy(zero_copy_only=False)
    if len(keys):
        if not key_bytes.min():
            empty = int(np.count_nonzero(key_bytes == 0))
            raise ValueError(f"{empty} of {len(keys)} rows have an empty key: a key has at least one byte")
        for what, lengths, bound in (("key", key_bytes, KEY_BYTES_MAX), ("value", value_bytes, VALUE_BYTES_MAX)):
            if lengths.max() > bound:
                key = keys[int(lengths.argmax())].as_py()
                raise TooLarge(f"a {what} has {lengths.max()} bytes, at most {bound} are permitted: key {key[:80]!r}")
    sizes: NDArray[np.int64] = np.add(key_bytes, value_bytes, dtype=np.int64)
    return sizes


def _check_numbers(numbers: Any, found: NDArray[np.int64], keys: Any, partitions: int) -> None:
    """Raises ValueError if the job's partition numbers are not those of the feed."""
    advice = f"fill the partition column by partition_of(<the key column>, {partitions}), the feed's count"
    if numbers.null_count:
        raise ValueError(f"the partition column is null in {numbers.null_count} of {len(numbers)} rows: {advice}")
    given = numbers.to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(given != found)
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"the partition column says {given[row]} for the key {keys[row].as_py()[:80]!r}, which belongs to "
            f"partition {found[row]}; it is wrong in {len(wrong)} of {len(given)} rows: {advice}"
        )
