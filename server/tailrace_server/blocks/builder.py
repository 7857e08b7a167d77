"""Makes blocks of a given size of the rows of other blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tailrace.block import BODY_BYTES_MAX, ROWS_MAX, Block
from tailrace.block.arrays import I64, ColumnArrays, encode_arrays, join_arrays, take

# The most bytes of a row beside key and value: hash, seq, timestamp, both offsets and validity.
_ROW_BYTES = 8 + 8 + 8 + 4 + 4 + 1
# The bytes of a ttl, which few blocks have.
_TTL_BYTES = 4
# The last offsets, and the padding of each column.
_BLOCK_BYTES = 2 * 4 + 8 * 8
TARGET_BYTES_MAX = BODY_BYTES_MAX - _BLOCK_BYTES - _TTL_BYTES * ROWS_MAX


class BlockBuilder:
    """Takes rows in seq order and hands blocks of about ``target_bytes`` raw bytes to ``on_block``, in order.

    A block has fewer bytes than that, unless one row alone has more. Rows that are not in a block yet are kept as views
    of the arrays that were added.
    """

    def __init__(self, partition: int, target_bytes: int, *, compress: bool, on_block: Callable[[Block], None]) -> None:
        """Raises ValueError if no block can have ``target_bytes``."""
        if not 1 <= target_bytes <= TARGET_BYTES_MAX:
            raise ValueError(f"blocks have 1 to {TARGET_BYTES_MAX} bytes, not {target_bytes}")
        self._partition = partition
        self._target_bytes = target_bytes
        self._compress = compress
        self._on_block = on_block
        self._pieces: list[ColumnArrays] = []
        self._rows = 0
        self._nbytes = _BLOCK_BYTES
        self._last_seq = self._last_timestamp = 0

    def add(self, arrays: ColumnArrays) -> None:
        """Adds rows, perhaps none.

        Raises ValueError if their seqs are not above those that were added before, or their timestamps are below.
        """
        if arrays.rows == 0:
            return
        self._check_order(arrays)
        ends = self._ends(arrays)
        start = taken_bytes = 0
        while True:
            stop = int(np.searchsorted(ends, taken_bytes + self._target_bytes - self._nbytes, side="right"))
            stop = min(stop, start + ROWS_MAX - self._rows)
            if self._rows == 0:
                stop = max(stop, start + 1)
            if stop > start:
                self._pieces.append(take(arrays, slice(start, stop)))
                self._rows += stop - start
                self._nbytes += int(ends[stop - 1]) - taken_bytes
                start, taken_bytes = stop, int(ends[stop - 1])
            if start == arrays.rows:
                return
            self.finish()

    def finish(self) -> None:
        """Makes a block of the rows that are left, if any. More rows may be added afterwards."""
        if not self._pieces:
            return
        block = encode_arrays(join_arrays(self._pieces), self._partition, compress=self._compress)
        self._pieces, self._rows, self._nbytes = [], 0, _BLOCK_BYTES
        self._on_block(block)

    def _ends(self, arrays: ColumnArrays) -> I64:
        """Returns the bytes of all rows up to each one, itself included."""
        counts = np.arange(1, arrays.rows + 1, dtype=np.int64)
        row_bytes = _ROW_BYTES if arrays.ttls is None else _ROW_BYTES + _TTL_BYTES
        return counts * row_bytes + arrays.key_offsets[1:] + arrays.value_offsets[1:]

    def _check_order(self, arrays: ColumnArrays) -> None:
        first_seq, timestamp = int(arrays.seqs[0]), int(arrays.timestamps[0])
        if first_seq <= self._last_seq:
            raise ValueError(f"seq {first_seq} comes after seq {self._last_seq}: rows are added in their order")
        if timestamp < self._last_timestamp:
            raise ValueError(f"timestamp {timestamp} of seq {first_seq} comes after {self._last_timestamp}")
        self._last_seq, self._last_timestamp = int(arrays.seqs[-1]), int(arrays.timestamps[-1])
