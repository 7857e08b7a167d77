"""Counts rows with a wrong key hash by producer, and corrects those that belong to this partition.

The node accepts a producer's hashes without a check. With a wrong hash, ``get`` does not find the key, so compaction
writes the right hash if it belongs to this partition. A row of another partition stays unchanged, in the stream, too,
and the result names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.compaction.task import FOREIGN_MAX, Foreign

if TYPE_CHECKING:
    from tailrace.block.arrays import U64, Bools, Indices
    from tailrace.segment.rows import RowBatch
    from tailrace_server.blocks import ColumnArrays

_EXAMPLE_KEY_BYTES = 64


class ForeignRows:
    """The rows with a wrong hash in a compaction, of a partition with hashes ``hash_first`` to ``hash_last``."""

    def __init__(self, hash_first: int, hash_last: int) -> None:
        self._first = np.uint64(hash_first)
        self._last = np.uint64(hash_last)
        self._by_producer: dict[int, Foreign] = {}
        self.rows = 0
        self.kept = 0

    def note(self, batch: RowBatch, arrays: ColumnArrays, hashes: U64) -> None:
        """Counts the rows of a batch with another hash than in ``hashes``, the right ones."""
        wrong = np.flatnonzero(arrays.hashes != hashes)
        if not len(wrong):
            return
        inside = self._is_here(hashes[wrong])
        self.rows += len(wrong)
        self.kept += int(np.count_nonzero(~inside))
        producers = batch.producers()[wrong]
        for producer in np.unique(producers).tolist():
            mine = producers == producer
            self._add(producer, batch, arrays, wrong[mine], int(np.count_nonzero(inside[mine])))

    def corrected(self, arrays: ColumnArrays, hashes: U64) -> ColumnArrays:
        """Returns the rows with the right hash from ``hashes``, if it belongs to this partition."""
        wrong = arrays.hashes != hashes
        if not wrong.any():
            return arrays
        return arrays._replace(hashes=np.where(wrong & self._is_here(hashes), hashes, arrays.hashes))

    @property
    def found(self) -> tuple[Foreign, ...]:
        """The counts of the first FOREIGN_MAX producers."""
        return tuple(self._by_producer.values())

    def _is_here(self, hashes: U64) -> Bools:
        return (hashes >= self._first) & (hashes <= self._last)

    def _add(self, producer: int, batch: RowBatch, arrays: ColumnArrays, rows: Indices, corrected: int) -> None:
        if producer not in self._by_producer:
            if len(self._by_producer) == FOREIGN_MAX:
                return
            begin, end = arrays.key_offsets[rows[0] : rows[0] + 2].tolist()
            key = arrays.key_data[begin : min(end, begin + _EXAMPLE_KEY_BYTES)].tobytes()
            example = (batch.segment.path, int(arrays.seqs[rows[0]]), key)
            self._by_producer[producer] = Foreign(producer, 0, 0, *example)
        so_far = self._by_producer[producer]
        self._by_producer[producer] = so_far._replace(
            rows=so_far.rows + len(rows), corrected=so_far.corrected + corrected
        )
