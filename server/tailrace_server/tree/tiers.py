"""The tiers of an index by key: size-tiered runs, sorted by hash, 16 bytes an entry. Pure.

    tier     hashes  2  5  9  12 ...       each hash once,
             seqs   17 31 12  14 ...       with the newest seq that it has in this tier

    tiers    oldest ── 50,000 ── 60,000 ── 9,000 ── 4,096 ── newest

Tiers lie in the order of seqs. A tier is merged with the tier before it, until that one has more than twice as many
entries or both together have too many. So an entry is moved a few times, and a look-up searches few tiers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

import numpy as np

from tailrace.block.arrays import U64

# Entries of two tiers that are merged: 0.5 ms, or 1 ms if memory is slow, in one step on the node's loop.
TIER_ENTRIES_MAX = 65_536


class Tier:
    """Hashes, rising, and the newest seq of each. ``last_seq`` is the last seq that was indexed for the tier."""

    __slots__ = ("_view", "hashes", "last_seq", "seqs")

    def __init__(self, hashes: U64, seqs: U64, last_seq: int) -> None:
        """Makes a tier of two columns that are sorted by hash."""
        self.hashes = hashes
        self.seqs = seqs
        self.last_seq = last_seq
        self._view = hashes.data  # bisects in half the time of ``searchsorted`` for one hash

    @classmethod
    def of_columns(cls, hashes: U64, seqs: U64) -> Tier:
        """Returns the tier of rows in seq order, at least one."""
        order = np.argsort(hashes, kind="stable")
        return cls(*_newest(hashes[order], seqs[order]), int(seqs[-1]))

    @classmethod
    def of_dict(cls, newest: Mapping[int, int]) -> Tier:
        """Returns the tier of hashes and their newest seqs, at least one."""
        hashes = np.fromiter(newest.keys(), "<u8", len(newest))
        seqs = np.fromiter(newest.values(), "<u8", len(newest))
        order = np.argsort(hashes)
        return cls(hashes[order], seqs[order], int(seqs.max()))

    def merged(self, newer: Tier, above_seq: int) -> Tier:
        """Returns this tier and the one after it as one, without entries at or below ``above_seq``; it may be empty."""
        hashes = np.concatenate((self.hashes, newer.hashes))
        seqs = np.concatenate((self.seqs, newer.seqs))
        order = np.argsort(hashes, kind="stable")  # of two sorted parts: it is linear
        hashes, seqs = _newest(hashes[order], seqs[order])
        if int(seqs.min()) <= above_seq:
            live = seqs > above_seq
            hashes, seqs = hashes[live], seqs[live]
        return Tier(hashes, seqs, newer.last_seq)

    def find(self, hash_: int) -> int | None:
        """Returns the newest seq of ``hash_`` in this tier; None if the tier lacks it."""
        view = self._view
        index = bisect_left(view, hash_)
        return int(self.seqs[index]) if index < len(view) and view[index] == hash_ else None

    def find_all(self, hashes: U64, seqs: U64) -> None:
        """Sets the seq of each of ``hashes`` that this tier has, in place of one in ``seqs``."""
        # The forms that take least time for a few hashes: 1.6 µs, of 3.8 with ``mode=`` and ``np.copyto``.
        index = self.hashes.searchsorted(hashes)
        is_here = self.hashes.take(index, None, None, "clip") == hashes
        np.putmask(seqs, is_here, self.seqs.take(index, None, None, "clip"))


class Tiers:
    """The tiers of an index. Entries at or below ``flushed_seq`` do not count: they are flushed."""

    def __init__(self) -> None:
        self._tiers: list[Tier] = []
        self.flushed_seq = 0

    def __len__(self) -> int:
        return len(self._tiers)

    @property
    def nbytes(self) -> int:
        """The memory of all tiers."""
        return sum(tier.hashes.nbytes + tier.seqs.nbytes for tier in self._tiers)

    def add(self, tier: Tier) -> None:
        """Adds ``tier``, which is newer than all others. The caller calls ``merge`` from time to time."""
        assert not self._tiers or self._tiers[-1].last_seq < tier.seqs.min(), "tiers lie in the order of seqs"
        self._tiers.append(tier)

    def find(self, hash_: int) -> int | None:
        """Returns the newest seq of ``hash_``; None if no tier has it."""
        for tier in reversed(self._tiers):
            seq = tier.find(hash_)
            if seq is not None:
                return seq if seq > self.flushed_seq else None
        return None

    def find_all(self, hashes: U64, seqs: U64) -> None:
        """Sets the newest seq of each of ``hashes`` that a tier has. It may be a flushed one."""
        for tier in self._tiers:
            tier.find_all(hashes, seqs)

    def drop_through(self, seq: int) -> None:
        """Forgets entries at or below ``seq``, and drops the tiers that end there."""
        self.flushed_seq = max(self.flushed_seq, seq)
        self._tiers = [tier for tier in self._tiers if tier.last_seq > seq]

    def merge(self) -> bool:
        """Merges two tiers, which is the longest step of the index; False if no merge is due."""
        if not self._is_merge_due():
            return False
        newer, older = self._tiers.pop(), self._tiers.pop()
        merged = older.merged(newer, self.flushed_seq)
        if len(merged.hashes):
            self._tiers.append(merged)
        return True

    def _is_merge_due(self) -> bool:
        if len(self._tiers) < 2:
            return False
        older, newer = len(self._tiers[-2].hashes), len(self._tiers[-1].hashes)
        return older <= 2 * newer and older + newer <= TIER_ENTRIES_MAX

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        last_seq = 0
        for index, tier in enumerate(self._tiers):
            assert len(tier.hashes) == len(tier.seqs) > 0, f"tier {index}: no entries, or columns of different lengths"
            assert bool((tier.hashes[1:] > tier.hashes[:-1]).all()), f"the hashes of tier {index} do not rise"
            assert last_seq < int(tier.seqs.min()), f"tier {index} begins before the one before it ends"
            assert int(tier.seqs.max()) <= tier.last_seq, f"tier {index} has seqs above its last"
            assert tier.last_seq > self.flushed_seq, f"tier {index} is flushed"
            last_seq = tier.last_seq


def _newest(hashes: U64, seqs: U64) -> tuple[U64, U64]:
    """Returns the last entry of each hash; entries are sorted by hash, equal hashes by seq."""
    is_last = np.empty(len(hashes), np.bool_)
    is_last[-1] = True
    np.not_equal(hashes[1:], hashes[:-1], out=is_last[:-1])
    return (hashes, seqs) if is_last.all() else (hashes[is_last], seqs[is_last])
