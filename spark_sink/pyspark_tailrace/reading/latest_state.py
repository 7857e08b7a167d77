"""Computes the newest row of each key of a partition, from its mutations in order. Pure; whole columns at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# Superseded rows are dropped when there are this many rows more than twice those that stayed the last time.
DEAD_ROWS_MAX = 100_000
# Arrow's offsets of 32 bits reach 2 GiB of keys.
_SMALL_KEY_BYTES = 1 << 30


class LatestState:
    """Takes batches of mutations (``Mutations.to_arrow``), and yields the rows that are not superseded or deleted.

    Until then it holds the batches, with at most about twice as many rows as there are keys.
    """

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self._held = 0  # rows
        self._live = 0  # rows that were newest when superseded ones were dropped

    def clear(self) -> None:
        """Forgets all rows."""
        self._batches, self._held, self._live = [], 0, 0

    def add(self, batch: Any) -> None:
        """Adds rows, which are newer than all rows before."""
        self._batches.append(batch)
        self._held += batch.num_rows
        if self._held > 2 * self._live + DEAD_ROWS_MAX:
            self._let_go()

    def rows(self) -> Iterator[Any]:
        """Yields the state, in batches that keep their order, and forgets it."""
        self._let_go()
        batches = self._batches
        self.clear()
        for batch in batches:
            kept = batch.filter(pc.invert(batch.column("deleted")))
            if kept.num_rows:
                yield kept

    def _let_go(self) -> None:
        """Drops the rows that are superseded."""
        if not self._batches:
            return
        live = _newest([batch.column("key") for batch in self._batches])
        batches, first = [], 0
        for batch in self._batches:
            kept = live[first : first + batch.num_rows]
            first += batch.num_rows
            if kept.any():
                batches.append(batch if kept.all() else batch.filter(pa.array(kept)))
        self._batches = batches
        self._held = self._live = int(live.sum())


def _newest(keys: list[Any]) -> npt.NDArray[np.bool_]:
    """Returns a mask of the rows that are the last ones of their key, over all arrays of ``keys``."""
    if sum(array.nbytes for array in keys) > _SMALL_KEY_BYTES:
        keys = [array.cast(pa.large_binary()) for array in keys]
    encoded = pa.chunked_array(keys).dictionary_encode()
    numbers = np.concatenate([chunk.indices.to_numpy() for chunk in encoded.chunks])  # of keys, in one dictionary
    newest = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    newest[numbers] = np.arange(len(numbers))  # of assignments to one place, the last one counts
    live = np.zeros(len(numbers), np.bool_)
    live[newest] = True
    return live
