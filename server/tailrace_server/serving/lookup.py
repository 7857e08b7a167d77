"""Looks up the keys of one GET in slices, so that many keys, or large compressed blocks, do not hold up others.

keys ── of each partition, block by block of its tree and its segments ──┬──> rows, by the number of the key
  └──── one by one: few keys, and those that have no room ahead ─────────┘
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np

from tailrace.block.arrays import U64, Indices
from tailrace.block.found import FoundRows
from tailrace.block.hash_columns import hash_column
from tailrace.model import Level
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Reads
from tailrace_server.serving.got_columns import GotColumns
from tailrace_server.tree.open_blocks import OpenBlocks

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

# Numbers of keys: their places in the GET.
Numbers: TypeAlias = "list[int]"


class Lookup:
    """``rows`` has what was found, ``count`` of the first keys are looked up.

    ``partitions`` own the keys, and ``hashes`` are those of the keys, if they are known: an entry for each key.
    """

    def __init__(
        self,
        keys: Sequence[bytes],
        partitions: Sequence[Partition],
        kept: Kept | None = None,
        hashes: U64 | None = None,
    ) -> None:
        self.rows = GotColumns(len(keys))
        self.count = 0
        self._keys = keys
        self._partitions = partitions
        self._alone: set[int] = set()  # the numbers of keys that have to be looked up by themselves
        self._value_bytes = 0  # of the first ``count`` keys
        self._ahead_bytes = 0  # of the keys behind them
        self._reads, self._kept = Reads(), kept
        # The numbers of keys that are still to be looked up by blocks, in the order of their hashes.
        self._left: dict[Partition, Indices] = {}
        self._hashes = np.zeros(0, "<u8") if hashes is None else hashes
        self._below: list[_Below] = []
        if len(keys) >= AHEAD_KEYS_MIN:
            if hashes is None:
                self._hashes = hash_column(keys)
            self._left = _by_partition(self._hashes, partitions)

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
            found = newest_row(partition, self._keys[number], opened, self._reads.read, self._kept)
            self._reads.forget()
            self._take(number, partition, found)
            self._advance()
            has_time = not out_of_time()
        return True

    def _advance(self) -> None:
        """Counts the first keys that are known. Values of other keys that were found ahead may fill the answer, too."""
        begin, values = self.count, self.rows.values
        end = len(values)
        with contextlib.suppress(ValueError):
            end = values.index(None, begin)
        if end > begin:
            known = cast("list[bytes]", values[begin:end])
            nbytes = sum(map(len, known))
            self.count = end
            self._value_bytes += nbytes
            self._ahead_bytes -= nbytes

    def _take(self, number: int, partition: Partition, found: FoundRow | None) -> None:
        """Takes over the row of a key; None: it has none."""
        if found is None or found.value is None:
            self.rows.values[number] = b""
            return
        self.rows.values[number] = found.value
        branch = partition.log.branch_at(found.seq)
        self.rows.add([number], partition.id, [(branch, 1)], [found.seq], [found.timestamp])
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
                    self._have_no_rows(left.tolist())
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

    def _unknown(self, numbers: Indices) -> Indices:
        """Returns those of ``numbers`` whose keys are still to be looked up by blocks."""
        values, alone = self.rows.values, self._alone
        values_of = list(map(values.__getitem__, numbers.tolist()))
        if None not in values_of:
            return numbers[:0]
        unknown = numbers[[value is None for value in values_of]]
        return unknown[[number not in alone for number in unknown.tolist()]] if alone else unknown

    def _have_no_rows(self, numbers: Numbers) -> None:
        values = self.rows.values
        for number in numbers:
            values[number] = b""

    def _look_at_tree(
        self, partition: Partition, numbers: Indices, opened: OpenBlocks, out_of_time: Callable[[], bool]
    ) -> bool:
        """Takes rows of the write queue; False if ``out_of_time()`` ended it."""
        if not partition.index_keys(out_of_time):
            return False
        indices, seqs = partition.keys.rows_of(partition.tree, self._hashes[numbers])
        picked, wanted = numbers[indices].tolist(), seqs.tolist()
        keys, found = list(map(self._keys.__getitem__, picked)), FoundRows(self._room())
        begin = found.look(partition.tree.rows_of(wanted, opened), keys, wanted, out_of_time, by_seqs=True)
        self._take_rows(partition, picked[:begin], found)
        if begin < len(wanted):
            self._left[partition] = self._unknown(numbers)
        return begin == len(wanted)

    def _look_at_segments(self, below: _Below, out_of_time: Callable[[], bool]) -> bool:
        """Takes rows of a chain, the newest segment first; False if ``out_of_time()`` ended it. Raises NotCached."""
        keys = self._keys
        while below.left and len(below.numbers):
            segment, numbers = below.chain.segments[below.left - 1], self._unknown(below.numbers)
            asked = list(map(keys.__getitem__, numbers.tolist()))
            rows = segment.find_all(asked, self._hashes[numbers], self._room, self._reads.read, self._kept, out_of_time)
            for indices, found in rows:
                self._take_rows(below.partition, numbers[indices].tolist(), found)
                self._reads.forget()
                if out_of_time():
                    return False
            below.left -= 1
            below.numbers = self._unknown(numbers)
            if below.left and len(below.numbers) and out_of_time():
                return False
        self._have_no_rows(below.numbers.tolist())
        return True

    def _take_rows(self, partition: Partition, numbers: Numbers, found: FoundRows) -> None:
        """Takes over the rows of the keys with these ``numbers``."""
        seqs, timestamps, values = found.seqs, found.timestamps, found.values
        if None in values:
            numbers, seqs, timestamps, values = self._sift(numbers, found)
        if not numbers:
            return
        of_all, log = self.rows.values, partition.log
        for number, value in zip(numbers, values, strict=True):
            of_all[number] = value
        self._ahead_bytes += sum(map(len, cast("list[bytes]", values)))
        newest = log[0]
        if min(seqs) > newest.base:
            branches = [(newest.branch, len(seqs))]
        else:
            branches = [(branch, len(list(rows))) for branch, rows in itertools.groupby(map(log.branch_at, seqs))]
        self.rows.add(numbers, partition.id, branches, seqs, timestamps)

    def _sift(self, numbers: Numbers, found: FoundRows) -> tuple[Numbers, list[int], list[int], list[bytes | None]]:
        """Returns the rows with values, with the numbers of their keys. Notes which keys have none, or are left."""
        seqs, timestamps, values, alone = found.seqs, found.timestamps, found.values, set(found.alone)
        self._alone.update(numbers[index] for index in alone)
        kept = [index for index, value in enumerate(values) if value is not None]
        self._have_no_rows([numbers[index] for index in set(range(len(numbers))).difference(kept, alone)])
        return (
            [numbers[index] for index in kept],
            [seqs[index] for index in kept],
            [timestamps[index] for index in kept],
            [values[index] for index in kept],
        )

    def _room(self) -> int:
        return AHEAD_BYTES_MAX - self._ahead_bytes


class _Below:
    """The keys of a partition that its tree does not have, and the chain that it had then.

    ``left``: how many of the oldest segments are not searched yet. What the chain has is what the partition had when
    the tree was searched. If the chain changes, or the partition is rolled back, the tree is searched again.
    """

    def __init__(self, partition: Partition, chain: Chain, rollbacks: int, numbers: Indices) -> None:
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


def _by_partition(hashes: U64, partitions: Sequence[Partition]) -> dict[Partition, Indices]:
    """Returns the numbers of keys for each partition with several of them, in the order of their hashes.

    The partition of the first key comes first: no answer leaves without its row.
    """
    order, begin = hashes.argsort(), 0
    parts: dict[Partition, list[Indices]] = {partitions[0]: []}
    for partition, run in itertools.groupby(map(partitions.__getitem__, order.tolist())):
        end = begin + len(list(run))
        parts.setdefault(partition, []).append(order[begin:end])
        begin = end
    numbers = {partition: of[0] if len(of) == 1 else np.concatenate(of) for partition, of in parts.items()}
    return {partition: of for partition, of in numbers.items() if len(of) >= AHEAD_KEYS_MIN}
