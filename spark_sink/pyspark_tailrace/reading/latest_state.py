"""Computes the newest row of each key of a partition, from its mutations in order. Pure; whole columns at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Superseded rows are dropped when there are more of them than of the others, and more than this.
DEAD_ROWS_MAX = 100_000


class LatestState:
    """Takes batches of mutations (``Mutations.to_arrow``), and yields the rows that are not superseded or deleted.

    Until then it holds the batches, with at most about twice as many rows as there are keys.
    """

    def __init__(self) -> None:
        self._newest: dict[bytes, int] = {}  # key -> its newest row, counted through all batches that are held
        self._batches: list[Any] = []
        self._held = 0  # rows

    def clear(self) -> None:
        """Forgets all rows."""
        self._newest, self._batches, self._held = {}, [], 0

    def add(self, batch: Any) -> None:
        """Adds rows, which are newer than all rows before."""
        rows = range(self._held, self._held + batch.num_rows)
        self._newest.update(zip(batch.column("key").to_pylist(), rows, strict=True))
        self._batches.append(batch)
        self._held = rows.stop
        if self._held > 2 * len(self._newest) + DEAD_ROWS_MAX:
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
        """Drops the rows that are superseded, and counts the others anew."""
        newest = np.fromiter(self._newest.values(), np.int64, len(self._newest))
        live = np.zeros(self._held, np.bool_)
        live[newest] = True
        place = np.cumsum(live) - 1
        self._newest = dict(zip(self._newest, place[newest].tolist(), strict=True))
        batches, first = [], 0
        for batch in self._batches:
            kept = live[first : first + batch.num_rows]
            first += batch.num_rows
            if kept.any():
                batches.append(batch if kept.all() else batch.filter(pa.array(kept)))
        self._batches, self._held = batches, int(live.sum())
