"""Rows whose hash is not that of their key: counted by producer, and corrected where they belong here.

A producer's word on its hashes is all that the node looks at when it takes a block. Where the word was wrong, ``get``
does not find the key; so the right hash is written where it is one of this partition. A row that belongs to another
partition has nowhere to go: it stays as it is, in the stream as well, and the result names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace_server.compaction.task import FOREIGN_MAX, Foreign

if TYPE_CHECKING:
    from tailrace_server.blocks import ColumnArrays
    from tailrace_server.blocks.arrays import U64, Bools, Indices
    from tailrace_server.compaction.rows import RowBatch

_EXAMPLE_KEY_BYTES = 64


class ForeignRows:
    """Those of a compaction, for a partition that owns the hashes ``hash_first`` to ``hash_last``."""

    def __init__(self, hash_first: int, hash_last: int) -> None:
        self._first = np.uint64(hash_first)
        self._last = np.uint64(hash_last)
        self._by_producer: dict[int, Foreign] = {}
        self.rows = 0
        self.kept = 0

    def note(self, batch: RowBatch, arrays: ColumnArrays, hashes: U64) -> None:
        """Counts the rows of a batch whose hash is not that of ``hashes``, the right ones."""
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
        """The rows with the right hash, ``hashes``, wherever it is one of this partition."""
        wrong = arrays.hashes != hashes
        if not wrong.any():
            return arrays
        return arrays._replace(hashes=np.where(wrong & self._is_here(hashes), hashes, arrays.hashes))

    @property
    def found(self) -> tuple[Foreign, ...]:
        """Those of each producer, of the first FOREIGN_MAX ones."""
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
