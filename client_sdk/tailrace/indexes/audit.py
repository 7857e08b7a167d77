"""Compares an index with its feed, at the position of the index, by checksums of each partition.

A feed forgets values that later ones supersede. So a key that has changed since the position of the index says nothing
about it, and is left out of the comparison. What is held in memory are the keys of one partition, with a checksum each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import xxhash

if TYPE_CHECKING:
    from tailrace.consuming.events import Mutations
    from tailrace.indexes.audited import Audited

_SUM_MASK = (1 << 64) - 1


class KeyDifference(NamedTuple):
    """A key of which index and feed do not have the same.

    Attributes:
        key: The key.
        why: "missing" if the index lacks it, "extra" if the feed does not have it, "value" if the values differ.
    """

    key: bytes
    why: str


class PartitionAudit(NamedTuple):
    """The comparison of one partition.

    Attributes:
        partition: The partition, from 0.
        seq: The seq of the index; 0 if it has not begun the partition.
        rows: The number of keys that were compared, of the feed.
        changed_since: The number of keys that were left out, since they have changed after ``seq``.
        feed_sum: The checksum of the compared rows of the feed.
        index_sum: The checksum of the compared rows of the index.
        differing: The number of keys that differ.
        differences: Some of these keys.
    """

    partition: int
    seq: int
    rows: int
    changed_since: int
    feed_sum: int
    index_sum: int
    differing: int
    differences: list[KeyDifference]

    @property
    def is_equal(self) -> bool:
        """True if index and feed have the same."""
        return not self.differing


class PartitionState:
    """The state of a partition of the feed at a seq, made of its events: a checksum for each key."""

    def __init__(self, seq: int) -> None:
        self._seq = seq
        self._sums: dict[bytes, int] = {}
        self._changed: set[bytes] = set()

    def add(self, event: Mutations) -> None:
        """Adds mutations, in the order of the stream."""
        sums = self._sums
        for key, value, seq in zip(event.keys(), event.values(), event.seqs(), strict=True):
            if seq > self._seq:
                if self._seq:  # of a partition that was not begun an index has nothing
                    self._changed.add(key)
            elif value is None:
                sums.pop(key, None)
            else:
                sums[key] = row_sum(key, value)

    def compare(self, partition: int, index: Audited, keys_max: int) -> PartitionAudit:
        """Compares the state with the rows of an index. It is used up by that."""
        left, changed = self._sums, self._changed
        for key in changed:
            left.pop(key, None)
        rows, feed_sum, index_sum = len(left), sum(left.values()) & _SUM_MASK, 0
        differing = 0
        found: list[KeyDifference] = []
        for key, value in index.rows(partition):
            if key in changed:
                continue
            held = row_sum(key, value)
            index_sum = (index_sum + held) & _SUM_MASK
            wanted = left.pop(key, None)
            if held != wanted:
                differing += 1
                if len(found) < keys_max:
                    found.append(KeyDifference(key, "extra" if wanted is None else "value"))
        differing += len(left)
        found += [KeyDifference(key, "missing") for key, _ in zip(left, range(keys_max - len(found)), strict=False)]
        return PartitionAudit(partition, self._seq, rows, len(changed), feed_sum, index_sum, differing, found)


def row_sum(key: bytes, value: bytes) -> int:
    """Returns the checksum of a row, 64 bits."""
    return xxhash.xxh3_64_intdigest(b"%d:%b%b" % (len(key), key, value))
