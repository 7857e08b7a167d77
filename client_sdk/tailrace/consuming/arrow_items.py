"""Gathers the latest state of partitions as Arrow tables, by whole columns. Pure.

    blocks ──note──> batches, with the hash and the length of each key ──> without superseded rows ──> table

Superseded rows go now and then, so memory holds the latest rows of a partition and about as many others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.block.arrow_strings import lengths_of
from tailrace.block.to_arrow import batch_schema
from tailrace.segment.superseded import Keys, superseded

if TYPE_CHECKING:
    from tailrace.block.arrays import U32, U64
    from tailrace.consuming.events import Mutations

# Superseded rows are looked for when as many rows have come as are held, and this many at least.
ROWS_MIN = 1 << 20
# Chunks of fewer rows on average, such as those of single puts, are copied into one.
CHUNK_ROWS_MIN = 1_024


class ArrowLatest:
    """The rows of one partition that are the newest of their key."""

    def __init__(self, rows_min: int = ROWS_MIN) -> None:
        self._rows_min = rows_min
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._batches: list[Any] = []
        self._hashes: list[U64] = []
        self._rows = self._held = 0

    def note(self, event: Mutations) -> None:
        """Adds rows, whose seqs are above those of all before them."""
        self._batches.append(event.to_arrow())
        self._hashes.append(np.frombuffer(event.hash_buffer(), "<u8"))
        self._rows += len(event)
        if self._rows >= self._held + max(self._held, self._rows_min):
            self._compact()

    def take(self) -> Any:
        """Returns the rows that are left, without deletions, and forgets them."""
        self._compact()
        table = pa.Table.from_batches(self._batches, batch_schema())
        self.clear()
        return table.filter(pc.invert(table["deleted"])) if pc.any(table["deleted"]).as_py() else table

    def _compact(self) -> None:
        """Drops superseded rows. Deletions stay: they supersede rows that came before."""
        if len(self._hashes) == 0 or self._rows == self._held:
            return
        table = pa.Table.from_batches(self._batches)
        hashes = np.concatenate(self._hashes)
        lengths = np.concatenate([lengths_of(batch["key"]) for batch in self._batches]).astype(np.uint16)
        kept = ~superseded(hashes, lengths, _KeysOf(table["key"]))
        if not kept.all():
            table, hashes = table.filter(pa.array(kept)), hashes[kept]
        self._batches, self._hashes = table.to_batches(), [hashes]
        self._rows = self._held = len(hashes)


def joined(tables: list[Any]) -> Any:
    """Returns the rows of all tables, in chunks of a useful size."""
    table = pa.concat_tables(tables) if tables else batch_schema().empty_table()
    chunks = table["key"].num_chunks
    return table.combine_chunks() if chunks > 1 and len(table) < chunks * CHUNK_ROWS_MIN else table


class _KeysOf:
    """Returns the keys of rising row numbers of a chunked column."""

    def __init__(self, column: Any) -> None:
        self._chunks = column.chunks
        self._ends = np.cumsum([len(chunk) for chunk in self._chunks])

    def __call__(self, rows: U32) -> Keys:
        borders = np.searchsorted(rows, self._ends)
        offsets, data, begin, first, nbytes = [np.zeros(1, np.int64)], [], 0, 0, 0
        for chunk, stop, end in zip(self._chunks, borders.tolist(), self._ends.tolist(), strict=True):
            taken = chunk.take(pa.array(rows[begin:stop].astype(np.int64) - first))
            numbers = np.frombuffer(taken.buffers()[1], "<i4", len(taken) + 1, 4 * taken.offset).astype(np.int64)
            data.append(np.frombuffer(taken.buffers()[2] or b"", "u1")[numbers[0] : numbers[-1]])
            offsets.append(numbers[1:] - numbers[0] + nbytes)
            begin, first, nbytes = stop, end, nbytes + len(data[-1])
        return Keys(np.concatenate(offsets), np.concatenate(data))
