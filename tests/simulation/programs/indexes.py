"""The indexes of followers: each compares all that it is given with the rows that were written."""

from __future__ import annotations

import contextlib
import itertools

from tests.crashing_indexes import (
    AtomicIndex,
    Crash,
    CrashingSQLiteIndex,
    RinglessIndex,
    RowByRowIndex,
    TruncatingIndex,
)
from tests.processes.violation import Violation

from tailrace.indexes import MemoryIndex
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN

KINDS = {
    "in memory": lambda world, name: AtomicIndex(),
    "in a file": lambda world, name: CrashingSQLiteIndex(world.directory / f"{name}.db"),
    "row by row": lambda world, name: RowByRowIndex(),
    "truncating": lambda world, name: TruncatingIndex(),
    "without a ring": lambda world, name: RinglessIndex(),
}
# How many entries of each partition the ring of a follower or of a consumer keeps.
RINGS = (100_000, 100_000, 100_000, 100, 20, 3, 0)


class CheckedIndex:
    """Compares each apply to an index with the truth of the node.

    ``on_crash`` is called if it dies at one of its steps. It outlives the programs that follow with it.
    """

    def __init__(self, world, name, kind, visibility, on_crash):
        self.kind = kind
        self._inner = KINDS[kind](world, name)
        self.steps = self._inner.steps
        self._world = world
        self._name = name
        self._may_be_lost = visibility == "memory"
        self._on_crash = on_crash
        self.is_dead = False
        self._going_back = set()  # partitions
        self.positions = {}  # that the index has stored

    @classmethod
    def of(cls, world, name, kind, visibility, on_crash):
        """Returns an index of a kind, with `prepare` if that kind has it."""
        checked = _CheckedPreparedIndex if kind == "row by row" else cls
        return checked(world, name, kind, visibility, on_crash)

    def held(self):
        """Returns {key: (seq, value)}. An index in a file has to be open."""
        return self._inner.held()

    @contextlib.contextmanager
    def _dying(self):
        """Lets the program end with a death in the body, and do nothing after that."""
        if self.is_dead:
            raise Crash
        try:
            yield
        except Crash:
            self.is_dead = True
            self._on_crash()
            raise

    def open(self):
        self.is_dead = False
        return self._inner.open()

    def apply(self, mutations, checkpoint):
        truth = self._world.checks.truth
        truth.check_rows(mutations, may_be_lost=self._may_be_lost)
        with self._dying():
            self._inner.apply(mutations, checkpoint)
        self._world.report.operation("apply", f"{self._name} {len(mutations)}")
        self.positions = checkpoint.positions
        self._has_read_again(checkpoint.positions)
        held = self.held()
        for number in {mutation.partition: None for mutation in mutations}:
            self._check_position(number, checkpoint.positions.get(number), held)

    def _has_read_again(self, positions):
        for number in sorted(self._going_back):
            if positions[number].snapshot_last != SNAPSHOT_LAST_UNKNOWN:
                self._going_back.remove(number)
                self._world.has_read_again()

    def _check_position(self, number, position, held):
        """Checks that the index has all rows up to its position."""
        truth = self._world.checks.truth
        if position is None or position.log.branch != truth.history.branches[number].log.branch:
            return  # that branch has ended; the follower has not heard of it yet
        if position.seq > len(truth.partitions[number].rows):
            raise Violation(f"{self._name} is at {number}/{position.seq}, above all rows")
        if position.snapshot_last == SNAPSHOT_LAST_UNKNOWN:
            return  # it is rolling back: other keys are still to be read again
        # Inside a snapshot rows may be missing that later ones of the snapshot supersede.
        is_between = position.seq >= position.snapshot_last
        floor = position.seq if is_between else position.snapshot_first
        truth.check_covers(number, floor, held, f"{self._name} ({self.kind}) at its position")
        if is_between:
            truth.check_stands(number, position.seq, self._name)
            self._world.report.at_snapshot_end(self._name, number)

    def check_covers(self, number, floor, what):
        self._world.checks.truth.check_covers(number, floor, self.held(), f"{self._name} ({self.kind}) {what}")

    def rollback(self, partition, seq):
        self._world.checks.rolled_back(self._name, partition, f"{self.kind} to {seq}")
        with self._dying():
            point = self._inner.rollback(partition, seq)
        if point is None:
            self._going_back.add(partition)
        self._world.report.operation(f"rollback of an index {self.kind}", f"{self._name} {partition} to {point}")
        return point

    def clear(self, partition):
        self._going_back.discard(partition)
        with self._dying():
            self._inner.clear(partition)
        self._world.report.operation("clear", f"{self._name} {partition}")

    def close(self):
        self._inner.close()


class _CheckedPreparedIndex(CheckedIndex):
    def prepare(self, checkpoint):
        with self._dying():
            self._inner.prepare(checkpoint)


def chosen(rnd, count):
    """Returns ``count`` kinds, all different if there are enough."""
    return list(itertools.islice(itertools.cycle(rnd.sample(sorted(KINDS), len(KINDS))), count))


class LevelIndex(MemoryIndex):
    """An index in memory. It checks that each row was written, and that its level allows each rollback."""

    def __init__(self, world, name, level):
        super().__init__()
        self._world = world
        self._name = name
        self._level = level
        self.positions = {}

    def apply(self, mutations, checkpoint):
        for partition, key, value, seq, _ in mutations:
            if value is not None:
                self._world.checks.check_was_written(self._name, partition, key, value)
            del seq
        super().apply(mutations, checkpoint)
        self.positions = dict(checkpoint.positions)
        self._world.report.operation("apply", f"{self._name} {len(mutations)}")

    def rollback(self, partition, seq):
        self._world.checks.rolled_back(self._name, partition, f"to {seq}", self._level)
        return super().rollback(partition, seq)
