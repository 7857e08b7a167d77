"""Routes the rows of Arrow batches to partitions and encodes them in blocks, whole columns at a time.

batch ──> hashes ──> partitions ──> rows by partition ──> buffers ──1 MiB──> block
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tailrace.block.arrow_strings import lengths_of, nulls_of
from tailrace.block.block import Block
from tailrace.block.from_arrow import block_from_arrow
from tailrace.block.hash_columns import hash_array
from tailrace.block.header import FLAG_COMPRESSED, KEY_BYTES_MAX, ROWS_MAX, VALUE_BYTES_MAX
from tailrace.block.row_digest import digest_of_arrays
from tailrace.block.spans import spans
from tailrace.errors import TooLarge

# Blocks have about this size, however large the batches are.
BLOCK_BYTES = 1024 * 1024
BLOCK_ROWS_MAX = 16_384
# Rows are routed in pieces of this size, to bound the memory that a batch needs besides itself.
PIECE_BYTES = 16 * 1024 * 1024
# Trying to compress values that do not compress, such as images, takes a sixth of the time.
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
    """Rows in order: keys and values as Arrow binary arrays (a null value deletes), with hash and size of each row.

    ``ttls`` are seconds, 0 for a row without; None if no row has one.
    """

    keys: Any
    values: Any
    hashes: NDArray[np.uint64]
    sizes: NDArray[np.int64]
    source: _Source
    ttls: NDArray[np.uint32] | None = None

    def rows(self, start: int, stop: int) -> _Rows:
        part = slice(start, stop)
        ttls = None if self.ttls is None else self.ttls[part]
        return _Rows(self.keys[part], self.values[part], self.hashes[part], self.sizes[part], self.source, ttls)


class RoutedBlock(NamedTuple):
    """A block, and the rows that it encodes."""

    block: Block
    rows: _Rows

    def digest(self) -> int:
        """Returns the digest of the rows, without opening the block."""
        return digest_of_arrays(self.rows.hashes, self.rows.values)


Routed: TypeAlias = Iterator[RoutedBlock]


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

    def add(
        self,
        keys: Any,
        values: Any,
        check: Callable[[Any, NDArray[np.int64]], None] | None = None,
        ttls: NDArray[np.uint32] | None = None,
    ) -> Routed:
        """Adds rows (Arrow binary arrays), and yields the blocks that become full.

        ``ttls`` are the seconds of each row, 0 for none. ``check`` is called with the keys and the partition of each
        row. Raises its errors, and those of ``row_bytes``, before any row is added.
        """
        sizes = row_bytes(keys, values)
        hashes = hash_array(keys)
        found = partition_of_hashes(hashes, self._partitions)
        if check is not None:
            check(keys, found)
        for start, stop in spans(np.cumsum(sizes), PIECE_BYTES, ROWS_MAX):
            piece = _Rows(keys, values, hashes, sizes, _Source(0), ttls).rows(start, stop)
            yield from self._add_piece(piece, found[start:stop])

    def flush(self) -> Routed:
        """Yields all remaining rows as blocks, full or not."""
        for partition in sorted(self._buffers):
            yield from self._cut(partition, whole=True)

    def _add_piece(self, piece: _Rows, found: NDArray[np.int64]) -> Routed:
        if np.any(found[1:] < found[:-1]):
            short = found.astype(np.uint16) if self._partitions <= _SHORT_NUMBERS else found
            order = np.argsort(short, kind="stable")
            rows = pa.array(order)
            found = found[order]
            keys, values = piece.keys.take(rows), piece.values.take(rows)
            ttls = None if piece.ttls is None else piece.ttls[order]
            piece = _Rows(keys, values, piece.hashes[order], piece.sizes[order], piece.source, ttls)
        source = _Source(int(piece.sizes.sum()))
        starts = np.flatnonzero(np.diff(found, prepend=-1))
        stops = np.append(starts[1:], len(found))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield from self._gather(int(found[start]), piece._replace(source=source).rows(start, stop))
        if self.buffered_bytes > BUFFERED_BYTES_MAX:
            yield from self.flush()

    def _gather(self, partition: int, part: _Rows) -> Routed:
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
        ttls = None if all(part.ttls is None for part in parts) else np.concatenate([_seconds(part) for part in parts])
        return _Rows(keys, values, hashes, sizes, _Source(int(sizes.sum())), ttls)

    def _cut(self, partition: int, *, whole: bool) -> Routed:
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
        block = block_from_arrow(
            part.keys, part.values, partition=partition, hashes=part.hashes, compress=compress, ttls=part.ttls
        )
        if compress:
            self._trials.note(bool(block.header.flags & FLAG_COMPRESSED))
        return block


def _seconds(rows: _Rows) -> NDArray[np.uint32]:
    return np.zeros(len(rows.hashes), "<u4") if rows.ttls is None else rows.ttls


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


def row_bytes(
    keys: Any, values: Any, first_row: int = 0, deleted: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Returns the bytes of each row of two Arrow arrays of strings, in any form.

    ``first_row`` is the number of the first one, and ``deleted`` is True for rows without their value. Raises
    ValueError for a null or empty key, TooLarge for a key or value over its bound, with the number of the row.
    """
    nulls = nulls_of(keys)
    if nulls is not None:
        raise ValueError(f"{_some_rows(nulls, first_row)} a null key: give each a key, or filter them out")
    key_bytes, value_bytes = lengths_of(keys), lengths_of(values)
    if deleted is not None:
        value_bytes[deleted] = 0
    if len(keys):
        if not key_bytes.min():
            raise ValueError(f"{_some_rows(key_bytes == 0, first_row)} an empty key: a key has at least one byte")
        for what, lengths, bound in (("key", key_bytes, KEY_BYTES_MAX), ("value", value_bytes, VALUE_BYTES_MAX)):
            row = int(lengths.argmax())
            if lengths[row] > bound:
                raise TooLarge(
                    f"row {first_row + row}: a {what} has {lengths[row]} bytes, at most {bound} are permitted: "
                    f"key {_key_at(keys, row)[:80]!r}"
                )
    sizes: NDArray[np.int64] = key_bytes + value_bytes
    return sizes


def _some_rows(bad: NDArray[np.bool_], first_row: int) -> str:
    count = int(np.count_nonzero(bad))
    return f"row {first_row + int(bad.argmax())} (counted from 0): {count} of {len(bad)} rows have"


def _key_at(keys: Any, row: int) -> bytes:
    found = keys[row].as_py()
    return found.encode() if isinstance(found, str) else bytes(found)
