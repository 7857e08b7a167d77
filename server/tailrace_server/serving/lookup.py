"""Looks up the keys of one GET in slices, so that many keys, or large compressed blocks, do not hold up others.

keys ──ahead──> rows of the write queues, block by block ──in the order of the keys──> items
  └──────────── one by one: from segments, and the others ─────────────────────────────┘
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tailrace.model import Level, Version
from tailrace.model.hashing import hash_keys
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Reads
from tailrace_server.tree.key_index import OpenBlocks
from tailrace_server.tree.rows_of_keys import newest_rows

if TYPE_CHECKING:
    from tailrace.block.arrays import Indices
    from tailrace.block.found import FoundRow
    from tailrace.segment.file import Kept

# An answer ends with the value that comes to this: with one of the largest size it still fits into a frame.
VALUE_BYTES_MAX = 16 * 1024 * 1024
# The bounds of keys that are looked up together. A few keys take less time one by one.
AHEAD_KEYS_MAX = 1_024
AHEAD_KEYS_MIN = 16


class Lookup:
    """``items`` are the answers found by now, in the order of the keys; ``partitions`` has the owner of each key."""

    def __init__(self, keys: Sequence[bytes], partitions: Sequence[Partition], kept: Kept | None = None) -> None:
        self.items: list[tuple[Version, int, bytes] | None] = []
        self._keys = keys
        self._partitions = partitions
        self._value_bytes = 0
        self._reads, self._kept = Reads(), kept
        self._ahead: dict[int, FoundRow] = {}  # rows of later keys, by the number of the key
        self._ahead_bytes = 0  # of their values
        self._ahead_stop = 0  # the keys before this one were looked up ahead, or are in ``_left``
        self._left: dict[Partition, Indices] = {}  # the numbers of keys that are still to be looked up ahead

    @property
    def is_done(self) -> bool:
        """Whether every key was looked up, or the values fill an answer: the client asks again for the rest."""
        return len(self.items) == len(self._keys) or self._value_bytes >= VALUE_BYTES_MAX

    def found_bytes(self) -> int:
        """Returns the bytes of the found values. If an answer leaves keys out, the client asks for them again."""
        return self._value_bytes + self._ahead_bytes if self.items else 0

    def in_flight(self, level: Level) -> list[tuple[Partition, int]]:
        """Returns the partitions whose newest rows are not at ``level`` yet, and the seqs that have to get there."""
        return [(p, p.high_seq) for p in set(self._partitions) if p.high_seq > p.visible_seq(level)]

    def step(self, out_of_time: Callable[[], bool]) -> bool:
        """Looks keys up until all is done (True), or ``out_of_time()`` (False: call it again).

        Raises NotCached if it would wait for the disk: load that, and call it again. SegmentDamaged, UnknownFeed.
        """
        opened = OpenBlocks()
        while not self.is_done:
            if not self._look_ahead(opened, out_of_time) and self.items:
                return False
            partition, found = self._partitions[len(self.items)], self._ahead.pop(len(self.items), None)
            if found is not None:
                self._ahead_bytes -= len(found.value or b"")
            else:
                if not partition.index_keys(out_of_time):
                    return False
                found = partition.find(self._keys[len(self.items)], opened, self._reads.read, self._kept)
                self._reads.forget()
            if found is None or found.value is None:
                self.items.append(None)
            else:
                self.items.append((partition.version_of(found.seq), found.timestamp, found.value))
                self._value_bytes += len(found.value)
            if out_of_time():
                return self.is_done
        return True

    def _look_ahead(self, opened: OpenBlocks, out_of_time: Callable[[], bool]) -> bool:
        """Takes rows of the next keys from the write queues, block by block; False if ``out_of_time()`` ended it."""
        number = len(self.items)
        if number >= self._ahead_stop and len(self._keys) - number >= AHEAD_KEYS_MIN:
            self._ahead_stop = min(number + AHEAD_KEYS_MAX, len(self._keys))
            numbers = collections.defaultdict[Partition, list[int]](list)
            for at in range(number, self._ahead_stop):
                numbers[self._partitions[at]].append(at)
            self._left = {partition: np.array(of) for partition, of in numbers.items()}
        for partition, of in list(self._left.items()):
            if partition.is_dropped:  # ``find`` tells it
                del self._left[partition]
                continue
            if not partition.index_keys(out_of_time):
                return False
            keys = [self._keys[at] for at in of.tolist()]
            is_left = np.ones(len(of), np.bool_)
            hashes = np.fromiter(hash_keys(keys), "<u8", len(keys))
            for tried, rows in newest_rows(partition.keys, partition.tree, keys, hashes, opened, self._room):
                is_left[tried] = False
                for index, row in rows:
                    self._ahead[int(of[index])] = row
                    self._ahead_bytes += len(row.value or b"")
                if out_of_time():
                    self._left[partition] = of[is_left]
                    return False
            del self._left[partition]
        return True

    def _room(self) -> int:
        return VALUE_BYTES_MAX - self._ahead_bytes
