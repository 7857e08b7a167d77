"""What a by-key index is made of: runs, sorted by hash, 16 bytes an entry. Pure.

    run      hashes  2  5  9  12 ...       each hash once,
             seqs   17 31 12  14 ...       with the newest seq that it has in this run

    runs     oldest ── 50,000 ── 60,000 ── 9,000 ── 4,096 ── newest

Runs lie in the order of seqs, and one is merged with the one before it until that has more than twice as many entries,
or both together have too many. So an entry is moved a few times, and a look-up asks few runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tailrace_server.blocks.arrays import U64

# What two runs may come to when they are merged: half a ms, 1 where memory is slow, and one step on the loop.
RUN_ENTRIES_MAX = 32_768


class Run:
    """Hashes, rising, and the newest seq of each. ``last_seq`` is the last seq that was looked at for it."""

    __slots__ = ("hashes", "last_seq", "seqs")

    def __init__(self, hashes: U64, seqs: U64, last_seq: int) -> None:
        """For those who have sorted both."""
        self.hashes = hashes
        self.seqs = seqs
        self.last_seq = last_seq

    @classmethod
    def of_columns(cls, hashes: U64, seqs: U64) -> Run:
        """The run of rows in seq order, at least one."""
        order = np.argsort(hashes, kind="stable")
        return cls(*_newest(hashes[order], seqs[order]), int(seqs[-1]))

    @classmethod
    def of_dict(cls, newest: Mapping[int, int]) -> Run:
        """The run of hashes and their newest seqs, at least one."""
        hashes = np.fromiter(newest.keys(), "<u8", len(newest))
        seqs = np.fromiter(newest.values(), "<u8", len(newest))
        order = np.argsort(hashes)
        return cls(hashes[order], seqs[order], int(seqs.max()))

    def merged(self, newer: Run, above_seq: int) -> Run:
        """This run and the one after it as one, without what is at or below ``above_seq``; it may have no entry."""
        hashes = np.concatenate((self.hashes, newer.hashes))
        seqs = np.concatenate((self.seqs, newer.seqs))
        order = np.argsort(hashes, kind="stable")  # of two sorted parts: it is linear
        hashes, seqs = _newest(hashes[order], seqs[order])
        if int(seqs.min()) <= above_seq:
            live = seqs > above_seq
            hashes, seqs = hashes[live], seqs[live]
        return Run(hashes, seqs, newer.last_seq)

    def find(self, hash_: np.uint64) -> int | None:
        """The newest seq of ``hash_`` in this run."""
        hashes = self.hashes
        index = hashes.searchsorted(hash_)
        return int(self.seqs[index]) if index < len(hashes) and hashes[index] == hash_ else None


class Runs:
    """The runs of an index, and what of them is flushed: everything at or below ``flushed_seq`` is absent."""

    def __init__(self) -> None:
        self._runs: list[Run] = []
        self.flushed_seq = 0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def nbytes(self) -> int:
        """What they keep in memory."""
        return sum(run.hashes.nbytes + run.seqs.nbytes for run in self._runs)

    def add(self, run: Run) -> None:
        """``run`` is newer than all others. ``merge`` is called from time to time."""
        assert not self._runs or self._runs[-1].last_seq < run.seqs.min(), "runs lie in the order of seqs"
        self._runs.append(run)

    def find(self, hash_: int) -> int | None:
        """The newest seq of ``hash_``."""
        sought = np.uint64(hash_)
        for run in reversed(self._runs):
            seq = run.find(sought)
            if seq is not None:
                return seq if seq > self.flushed_seq else None
        return None

    def drop_through(self, seq: int) -> None:
        """What is at or below ``seq`` is not there any more; runs that end there go."""
        self.flushed_seq = max(self.flushed_seq, seq)
        self._runs = [run for run in self._runs if run.last_seq > seq]

    def merge(self) -> bool:
        """Merges two runs, the longest step there is; False where none are to be merged."""
        if not self._is_merge_due():
            return False
        newer, older = self._runs.pop(), self._runs.pop()
        merged = older.merged(newer, self.flushed_seq)
        if len(merged.hashes):
            self._runs.append(merged)
        return True

    def _is_merge_due(self) -> bool:
        if len(self._runs) < 2:
            return False
        older, newer = len(self._runs[-2].hashes), len(self._runs[-1].hashes)
        return older <= 2 * newer and older + newer <= RUN_ENTRIES_MAX

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        last_seq = 0
        for index, run in enumerate(self._runs):
            assert len(run.hashes) == len(run.seqs) > 0, f"run {index} has no entries, or columns of different lengths"
            assert bool((run.hashes[1:] > run.hashes[:-1]).all()), f"the hashes of run {index} do not rise"
            assert last_seq < int(run.seqs.min()), f"run {index} begins before the one before it ends"
            assert int(run.seqs.max()) <= run.last_seq, f"run {index} has seqs above its last"
            assert run.last_seq > self.flushed_seq, f"run {index} is flushed"
            last_seq = run.last_seq


def _newest(hashes: U64, seqs: U64) -> tuple[U64, U64]:
    """Of sorted entries, equal hashes in seq order, the last of each hash."""
    is_last = np.empty(len(hashes), np.bool_)
    is_last[-1] = True
    np.not_equal(hashes[1:], hashes[:-1], out=is_last[:-1])
    return (hashes, seqs) if is_last.all() else (hashes[is_last], seqs[is_last])
