"""Indexes that die before any of their durable steps, and keep what was stored before it."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.checkpoint import Checkpoint
from tailrace.indexes import MemoryIndex
from tailrace.position import Positions
from tailrace.ring import unbounded_ring


class Crash(Exception):
    """The consumer's process is gone."""


class Steps:
    """Counts durable steps, and dies before the one that it was told: None for never."""

    def __init__(self):
        self.left = None
        self.taken = 0

    def step(self):
        if self.left == 0:
            raise Crash
        if self.left is not None:
            self.left -= 1
        self.taken += 1


class AtomicIndex(MemoryIndex):
    """Each call is one step."""

    def __init__(self):
        super().__init__()
        self.steps = Steps()

    def apply(self, mutations, checkpoint):
        self.steps.step()
        super().apply(mutations, checkpoint)

    def rollback(self, partition, seq):
        self.steps.step()
        super().rollback(partition, seq)

    def clear(self, partition):
        self.steps.step()
        super().clear(partition)


class RinglessIndex(AtomicIndex):
    """Stores positions and rows only, as an index may."""

    def open(self):
        checkpoint = super().open()
        return None if checkpoint is None else Checkpoint(checkpoint.positions)


class RowByRowIndex:
    """Not atomic: each row is a step of its own, and so is the checkpoint. Of partition 0 only."""

    def __init__(self):
        self.steps = Steps()
        self.rows = {}  # key -> (seq, value)
        self._positions = None
        self._ring = None

    @property
    def state(self):
        return {key: value for key, (_, value) in self.rows.items()}

    def open(self):
        if not self._positions:
            return None
        return Checkpoint(self._positions, {} if self._ring is None else {0: self._ring.whole()})

    def prepare(self, checkpoint):
        self.steps.step()
        self._store(checkpoint)

    def apply(self, mutations, checkpoint):
        for mutation in mutations:
            self.steps.step()
            held = self.rows.get(mutation.key)
            if held is not None and held[0] > mutation.seq:
                continue
            if mutation.value is None:
                self.rows.pop(mutation.key, None)
            else:
                self.rows[mutation.key] = (mutation.seq, mutation.value)
        self.steps.step()
        self._store(checkpoint)

    def _store(self, checkpoint):
        self._positions = checkpoint.positions
        change = checkpoint.rings.get(0)
        if change is not None and self._ring is not None:
            self._ring.apply(change)
        elif change is not None:
            self._ring = unbounded_ring(change)

    def rollback(self, partition, seq):
        for key, (held_seq, value) in list(self.rows.items()):
            if held_seq > seq:
                self.steps.step()
                self.rows[key] = (0, value)

    def clear(self, partition):
        for key in list(self.rows):
            self.steps.step()
            del self.rows[key]
        self.steps.step()
        self._positions, self._ring = self._positions.without(0), None

    def close(self):
        pass


class Point(NamedTuple):
    seq: int
    positions: Positions
    state: dict[bytes, bytes]


class TruncatingIndex:
    """Atomic; goes back by itself, to one of the last few points where it stood between snapshots."""

    POINTS_MAX = 4

    def __init__(self):
        self.steps = Steps()
        self.state = {}
        self._positions = None
        self._points = []
        self.went_back = 0

    def open(self):
        return Checkpoint(self._positions) if self._positions else None

    def apply(self, mutations, checkpoint):
        self.steps.step()
        for mutation in mutations:
            if mutation.value is None:
                self.state.pop(mutation.key, None)
            else:
                self.state[mutation.key] = mutation.value
        self._positions = checkpoint.positions
        _, seq, first, last, _, _ = checkpoint.positions[0]
        if first == seq == last:
            self._points = [point for point in self._points if point.seq < seq]
            self._points = [*self._points, Point(seq, self._positions, dict(self.state))][-self.POINTS_MAX :]

    def rollback(self, partition, seq):
        self.steps.step()
        self._points = [point for point in self._points if point.seq <= seq]
        if not self._points:
            return 0
        self.went_back += 1
        point = self._points[-1]
        self.state, self._positions = dict(point.state), point.positions
        return point.seq

    def clear(self, partition):
        self.steps.step()
        self.state, self._points = {}, []
        if self._positions:
            self._positions = self._positions.without(0)

    def close(self):
        pass
