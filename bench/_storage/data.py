"""The rows: 16-byte keys, uniform over so many; 100-byte values that do not compress."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import numpy as np

import tailrace

KEY_BYTES, VALUE_BYTES = 16, 100
ROW_BYTES = KEY_BYTES + VALUE_BYTES
BATCH_ROWS = 10_000
# Values come again after so many rows: far more than a block has, and lz4 looks no further than its block.
_VALUES = 100_000


def key_of(number: int) -> bytes:
    """Key number ``number``."""
    return b"key-%012d" % number


class Rows:
    """Batches of puts, all made before: the producer is what the SDK costs. Each key has one value, about 120 bytes."""

    def __init__(self, keys: int, seed: int = 1) -> None:
        random = os.urandom(_VALUES * VALUE_BYTES)
        values = [random[at : at + VALUE_BYTES] for at in range(0, len(random), VALUE_BYTES)]
        self._puts = [tailrace.Put(key_of(number), values[number % _VALUES]) for number in range(keys)]
        # Else a full collection walks through them, now and then, in the middle of the measurement.
        gc.collect()
        gc.freeze()
        self._written = np.zeros(keys, np.bool_)  # which keys have come at least once
        self._chance = np.random.default_rng(seed)

    def batches(self, rows: int) -> Iterator[list[tailrace.Put]]:
        """``rows`` puts in batches; the last one may be smaller."""
        while rows:
            count = min(rows, BATCH_ROWS)
            numbers = self._chance.integers(0, len(self._puts), count)
            self._written[numbers] = True
            yield list(map(self._puts.__getitem__, numbers.tolist()))
            rows -= count

    def written_keys(self, count: int) -> list[bytes]:
        """So many keys that have been written, drawn at random, with replacement."""
        numbers = np.flatnonzero(self._written)
        return [key_of(number) for number in self._chance.choice(numbers, count).tolist()]

    @property
    def live_bytes(self) -> int:
        """Keys and values of the rows that are not superseded."""
        return int(self._written.sum()) * ROW_BYTES
