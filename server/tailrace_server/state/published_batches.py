"""The stretches of a write queue that were published in one step: no stream or read stops inside one. Pure.

    blocks     [ 1 ][ 2..9 ][ 10..80 ][ 81..90 ][ 91 ]
    batches          (  1,               90 ]             a publish of three blocks: ends are 1, 90, 91

Merging may join blocks of a batch, and whole batches with their neighbours. It never joins a part of a batch with rows
outside it (``cuts``). A flush ends at the end of a batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.block import Block


class PublishedBatch(NamedTuple):
    """The seqs (``after_seq``, ``last_seq``] that one step of a publish wrote, as this number of ``blocks``."""

    after_seq: int
    last_seq: int
    blocks: int


class PublishedBatches:
    """The published batches in one partition's write queue, in the order of their seqs."""

    def __init__(self) -> None:
        self._batches: list[PublishedBatch] = []
        self._lasts: list[int] = []  # the last seq of each

    def __bool__(self) -> bool:
        return bool(self._batches)

    def __iter__(self) -> Iterator[PublishedBatch]:
        return iter(self._batches)

    def add(self, batch: PublishedBatch) -> None:
        """Adds a batch above all others."""
        assert not self._batches or self._lasts[-1] <= batch.after_seq < batch.last_seq
        self._batches.append(batch)
        self._lasts.append(batch.last_seq)

    def around(self, seq: int) -> PublishedBatch | None:
        """Returns the batch that ``seq`` is strictly inside of; None if a stream may stop at ``seq``."""
        index = bisect_right(self._lasts, seq)
        if index < len(self._batches) and self._batches[index].after_seq < seq:
            return self._batches[index]
        return None

    def above(self, seq: int) -> PublishedBatch | None:
        """Returns the first batch that ends above ``seq``."""
        index = bisect_right(self._lasts, seq)
        return self._batches[index] if index < len(self._batches) else None

    def has_any_of(self, block: Block) -> bool:
        """Returns whether any row of ``block`` belongs to a batch."""
        first_seq, last_seq = block.seqs
        batch = self.above(first_seq - 1)
        return batch is not None and batch.after_seq < last_seq

    def cuts(self, find: Callable[[int], Block | None]) -> list[int]:
        """Returns the bounds of the batches that still have several blocks; ``find`` returns the block of a seq."""
        found = []
        for batch in self._batches:
            if batch.blocks > 1:
                first = find(batch.after_seq + 1)
                if first is not None and first.seqs[1] < batch.last_seq:
                    found += [batch.after_seq, batch.last_seq]
        return found

    def drop_through(self, seq: int) -> None:
        """Drops the batches up to ``seq``, which is not inside one: their blocks have left the write queue."""
        count = bisect_right(self._lasts, seq)
        del self._batches[:count], self._lasts[:count]

    def drop_above(self, seq: int) -> None:
        """Drops the batches above ``seq``, after a rollback."""
        count = bisect_right(self._lasts, seq)
        del self._batches[count:], self._lasts[count:]

    def check(self, base_seq: int, last_seq: int, find: Callable[[int], Block | None]) -> None:
        """Raises AssertionError if a batch does not fit into a write queue (``base_seq``, ``last_seq``]."""
        before = base_seq
        for batch in self._batches:
            assert before <= batch.after_seq < batch.last_seq <= last_seq, f"{batch} is out of place"
            before = batch.last_seq
            first, last = find(batch.after_seq + 1), find(batch.last_seq)
            assert first is not None, f"{batch} is not in the tree"
            assert last is not None, f"{batch} is not in the tree"
            if first is not last:
                assert (first.seqs[0], last.seqs[1]) == (batch.after_seq + 1, batch.last_seq), f"{batch} was cut"
        assert self._lasts == [batch.last_seq for batch in self._batches]
        assert bisect_left(self._lasts, last_seq + 1) == len(self._lasts)
