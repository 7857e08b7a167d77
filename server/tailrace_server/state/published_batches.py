"""Which stretches of a write queue are runs: the blocks of one publish, between which nobody stands. Pure.

    blocks   [ 1 ][ 2..9 ][ 10..80 ][ 81..90 ][ 91 ]
    runs           (  1,               90 ]             a publish of three blocks: ends are 1, 90, 91

Merging may join blocks of a run, and whole runs with what is beside them, but never a part of a run with something
outside of it (``cuts``); a flush ends where a run does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tailrace.block import Block


class PublishedBatch(NamedTuple):
    """The seqs (``after_seq``, ``last_seq``] of one publish, which had so many blocks."""

    after_seq: int
    last_seq: int
    blocks: int


class PublishedBatches:
    """Of one partition, in the order of their seqs."""

    def __init__(self) -> None:
        self._runs: list[PublishedBatch] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[PublishedBatch]:
        return iter(self._runs)

    def add(self, run: PublishedBatch) -> None:
        """A publish, above all others."""
        assert not self._runs or self._lasts[-1] <= run.after_seq < run.last_seq
        self._runs.append(run)
        self._lasts.append(run.last_seq)

    def around(self, seq: int) -> PublishedBatch | None:
        """The run that ``seq`` is strictly inside of; None where somebody may stand there."""
        index = bisect_right(self._lasts, seq)
        if index < len(self._runs) and self._runs[index].after_seq < seq:
            return self._runs[index]
        return None

    def above(self, seq: int) -> PublishedBatch | None:
        """The first run that ends above ``seq``."""
        index = bisect_right(self._lasts, seq)
        return self._runs[index] if index < len(self._runs) else None

    def has_any_of(self, block: Block) -> bool:
        """Some of ``block`` is of a run."""
        first_seq, last_seq = block.seqs
        run = self.above(first_seq - 1)
        return run is not None and run.after_seq < last_seq

    def cuts(self, find: Callable[[int], Block | None]) -> list[int]:
        """The bounds of the runs that still have several blocks; ``find`` gives the block that holds a seq."""
        found = []
        for run in self._runs:
            if run.blocks > 1:
                first = find(run.after_seq + 1)
                if first is not None and first.seqs[1] < run.last_seq:
                    found += [run.after_seq, run.last_seq]
        return found

    def drop_through(self, seq: int) -> None:
        """Everything up to ``seq``, where nobody stands inside a run, has left the write queue."""
        count = bisect_right(self._lasts, seq)
        del self._runs[:count], self._lasts[:count]

    def drop_above(self, seq: int) -> None:
        """Everything above ``seq`` is gone."""
        count = bisect_right(self._lasts, seq)
        del self._runs[count:], self._lasts[count:]

    def check(self, base_seq: int, last_seq: int, find: Callable[[int], Block | None]) -> None:
        """AssertionError where a run is not one of a write queue (``base_seq``, ``last_seq``]."""
        before = base_seq
        for run in self._runs:
            assert before <= run.after_seq < run.last_seq <= last_seq, f"{run} is out of place"
            before = run.last_seq
            first, last = find(run.after_seq + 1), find(run.last_seq)
            assert first is not None, f"{run} is not in the tree"
            assert last is not None, f"{run} is not in the tree"
            if first is not last:
                assert (first.seqs[0], last.seqs[1]) == (run.after_seq + 1, run.last_seq), f"{run} was cut"
        assert self._lasts == [run.last_seq for run in self._runs]
        assert bisect_left(self._lasts, last_seq + 1) == len(self._lasts)
