"""Looks up the keys of one GET in slices, so that many keys, or large compressed blocks, do not hold up others.

keys ── of each partition, block by block of its tree and its segments ──┬──> rows, by the number of the key
  └──── one by one: few keys, and those that have no room ahead ─────────┘
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.model import Level, Version
from tailrace.model.hashing import hash_keys
from tailrace.wire.messages import GotRows
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Reads
from tailrace_server.tree.key_index import OpenBlocks, rows_at

if TYPE_CHECKING:
    from tailrace.block.found import FoundRow
    from tailrace.segment.file import Kept
    from tailrace_server.partition.chain import Chain

# An answer ends with the value that comes to this: with one of the largest size it still fits into a frame.
VALUE_BYTES_MAX = 16 * 1024 * 1024
# The bytes of values that are looked up out of turn. It bounds what an answer that has to end early throws away.
AHEAD_BYTES_MAX = 4 * 1024 * 1024
# Fewer keys of a partition take less time one by one.
AHEAD_KEYS_MIN = 3

# What is known of a key: nothing; that it has to be looked up by itself; its row, or that it has none.
_UNKNOWN, _ALONE, _KNOWN = 0, 1, 2


class Lookup:
    """``rows`` has what was found, ``count`` of the first keys are looked up. ``partitions`` own the keys."""

    def __init__(self, keys: Sequence[bytes], partitions: Sequence[Partition], kept: Kept | None = None) -> None:
        self.rows = GotRows(len(keys))
        self.count = 0
        self._keys = keys
        self._partitions = partitions
        self._state = bytearray(len(keys))
        self._value_bytes = 0  # of the first ``count`` keys
        self._ahead_bytes = 0  # of the keys behind them
        self._reads, self._kept = Reads(), kept
        self._left: dict[Partition, list[int]] = {}  # the numbers of keys that are still to be looked up by blocks
        if len(keys) >= AHEAD_KEYS_MIN:
            numbers = collections.defaultdict[Partition, list[int]](list)
            for number, partition in enumerate(partitions):
                numbers[partition].append(number)
            self._left = {partition: of for partition, of in numbers.items() if len(of) >= AHEAD_KEYS_MIN}
        self._hashes = hash_keys(keys) if self._left else []
        self._below: list[_Below] = []

    @property
    def items(self) -> list[tuple[Version, int, bytes] | None]:
        """The answers found by now, in the order of the keys."""
        return self.rows.items(self.count)

    @property
    def is_done(self) -> bool:
        """Whether every key was looked up, or the values fill an answer: the client asks again for the rest."""
        return self.count == len(self._keys) or self._value_bytes >= VALUE_BYTES_MAX

    def found_bytes(self) -> int:
        """Returns the bytes of the found values. If an answer leaves keys out, the client asks for them again."""
        return self._value_bytes + self._ahead_bytes if self.count else 0

    def in_flight(self, level: Level) -> list[tuple[Partition, int]]:
        """Returns the partitions whose newest rows are not at ``level`` yet, and the seqs that have to get there."""
        return [(p, p.high_seq) for p in set(self._partitions) if p.high_seq > p.visible_seq(level)]

    def step(self, out_of_time: Callable[[], bool]) -> bool:
        """Looks keys up until all is done (True), or ``out_of_time()`` (False: call it again).

        Raises NotCached if it would wait for the disk: load that, and call it again. SegmentDamaged, UnknownFeed.
        """
        opened = OpenBlocks(self._kept)
        has_time = self._look_ahead(opened, out_of_time)
        self._advance()
        while not self.is_done:
            if not has_time and self.count:
                return False
            number = self.count
            partition = self._partitions[number]
            if not partition.index_keys(out_of_time):
                return False
            found = partition.find(self._keys[number], opened, self._reads.read, self._kept)
            self._reads.forget()
            self._take(number, partition, found)
            self._advance()
            has_time = not out_of_time()
        return True

    def _advance(self) -> None:
        """Counts the first keys that are known. Values of other keys that were found ahead may fill the answer, too."""
        begin, state = self.count, self._state
        end = len(state) - len(state[begin:].lstrip(_KNOWN_BYTES))
        if end > begin:
            nbytes = sum(map(len, self.rows.values[begin:end]))
            self.count = end
            self._value_bytes += nbytes
            self._ahead_bytes -= nbytes

    def _take(self, number: int, partition: Partition, found: FoundRow | None) -> None:
        """Takes over the row of a key; None: it has none."""
        self._state[number] = _KNOWN
        if found is not None and found.value is not None:
            branch = partition.log.branch_at(found.seq)
            self.rows.put(number, partition.id, branch, found.seq, found.timestamp, found.value)
            self._ahead_bytes += len(found.value)

    def _look_ahead(self, opened: OpenBlocks, out_of_time: Callable[[], bool]) -> bool:
        """Takes rows block by block, of trees and then of segments; False if ``out_of_time()`` ended it."""
        while self._left or self._below:
            if self._left:
                partition, numbers = next(iter(self._left.items()))
                if partition.is_dropped:  # ``find`` tells it
                    del self._left[partition]
                    continue
                if not self._look_at_tree(partition, numbers, opened, out_of_time):
                    return False
                del self._left[partition]
                left = self._unknown(numbers)
                if not partition.chain.segments:
                    for number in left:
                        self._state[number] = _KNOWN
                elif len(left) >= AHEAD_KEYS_MIN:
                    self._below.append(_Below(partition, partition.chain, partition.rollbacks, left))
            else:
                below = self._below[-1]
                if below.is_over:  # the rows of the tree may be in another place now
                    self._left[below.partition] = self._unknown(below.numbers)
                elif not self._look_at_segments(below, out_of_time):
                    return False
                self._below.pop()
            if (self._left or self._below) and out_of_time():  # keys without rows take time, too
                return False
        return True

    def _unknown(self, numbers: list[int]) -> list[int]:
        return [number for number in numbers if self._state[number] == _UNKNOWN]

    def _look_at_tree(
        self, partition: Partition, numbers: list[int], opened: OpenBlocks, out_of_time: Callable[[], bool]
    ) -> bool:
        """Takes rows of the write queue; False if ``out_of_time()`` ended it."""
        if not partition.index_keys(out_of_time):
            return False
        hashes, keys = self._hashes, self._keys
        of_numbers = [hashes[number] for number in numbers]
        for block, indices, seqs in partition.keys.blocks_of(partition.tree, of_numbers):
            picked = [numbers[index] for index in indices]
            found = rows_at(block, seqs, [keys[number] for number in picked], opened, self._room())
            self._take_rows(partition, picked, found)
            if out_of_time():
                self._left[partition] = self._unknown(numbers)
                return False
        return True

    def _look_at_segments(self, below: _Below, out_of_time: Callable[[], bool]) -> bool:
        """Takes rows of a chain, the newest segment first; False if ``out_of_time()`` ended it. Raises NotCached."""
        keys, hashes = self._keys, self._hashes
        while below.left and below.numbers:
            segment, numbers = below.chain.segments[below.left - 1], self._unknown(below.numbers)
            rows = segment.find_all(
                [keys[at] for at in numbers], [hashes[at] for at in numbers], self._room, self._reads.read, self._kept
            )
            for indices, found in rows:
                self._take_rows(below.partition, [numbers[index] for index in indices], found)
                self._reads.forget()
                if out_of_time():
                    return False
            below.left -= 1
            below.numbers = self._unknown(numbers)
            if below.left and below.numbers and out_of_time():
                return False
        for number in below.numbers:
            self._state[number] = _KNOWN
        return True

    def _take_rows(self, partition: Partition, numbers: list[int], found: list[FoundRow | None]) -> None:
        """Takes over rows of keys. Keys with None, and those that had no room, are looked up alone."""
        state, put, log, id = self._state, self.rows.put, partition.log, partition.id
        newest = log[0]
        for number, row in zip(numbers, found, strict=False):
            if row is None:  # another key of its hash is newer
                state[number] = _ALONE
                continue
            state[number] = _KNOWN
            seq, timestamp, value = row
            if value is not None:
                put(number, id, newest.branch if seq > newest.base else log.branch_at(seq), seq, timestamp, value)
                self._ahead_bytes += len(value)
        for number in numbers[len(found) :]:
            state[number] = _ALONE

    def _room(self) -> int:
        return AHEAD_BYTES_MAX - self._ahead_bytes


class _Below:
    """The keys of a partition that its tree does not have, and the chain that it had then.

    ``left``: how many of the oldest segments are not searched yet. What the chain has is what the partition had when
    the tree was searched. If the chain changes, or the partition is rolled back, the tree is searched again.
    """

    def __init__(self, partition: Partition, chain: Chain, rollbacks: int, numbers: list[int]) -> None:
        self.partition = partition
        self.chain = chain
        self.numbers = numbers
        self.left = len(chain.segments)
        self._rollbacks = rollbacks

    @property
    def is_over(self) -> bool:
        """Whether the chain may not be searched any more."""
        partition = self.partition
        return partition.is_dropped or partition.chain is not self.chain or partition.rollbacks != self._rollbacks


_KNOWN_BYTES = bytes((_KNOWN,))
