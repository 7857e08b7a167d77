"""Indexes of each kind that there may be, which die before any of their durable steps, and keep what was stored before.

What is stored is held as a file would hold it: positions as their string. ``held`` is what an index has: {key: (seq,
value)}, as far as the kind keeps seqs.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.consuming.ring import unbounded_ring
from tailrace.indexes import MemoryIndex, SQLiteIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.position import Position, Positions


class Crash(Exception):
    """The consumer's process is gone."""


class Steps:
    """Counts durable steps, and dies before the one that it was told: None for never."""

    def __init__(self):
        self.left = None
        self.taken = 0

    def step(self):
        if self.left == 0:
            self.left = None
            raise Crash
        if self.left is not None:
            self.left -= 1
        self.taken += 1


class AtomicIndex(MemoryIndex):
    """Each call is one step."""

    def __init__(self):
        super().__init__()
        self.steps = Steps()

    def held(self):
        return {key: (version.seq, self.state[key]) for key, version in self.versions.items()}

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


class CrashingTables:
    """Dies before its transactions, in the middle of them, and before their commit; before the class of an index."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.steps = Steps()

    def held(self):
        rows = self._connected().execute("SELECT key, seq, value FROM items").fetchall()
        return {key: (seq, value) for key, seq, value in rows}

    @property
    def state(self):
        return {key: value for key, (_, value) in self.held().items()}

    def _store_mutations(self, connection, mutations):
        self.steps.step()
        super()._store_mutations(connection, mutations)

    def _store_positions(self, connection, positions):
        self.steps.step()
        super()._store_positions(connection, positions)
        self.steps.step()

    def rollback(self, partition, seq):
        self.steps.step()
        super().rollback(partition, seq)

    def clear(self, partition):
        self.steps.step()
        super().clear(partition)


class CrashingSQLiteIndex(CrashingTables, SQLiteIndex):
    pass


class RowByRowIndex:
    """Not atomic: each row is a step of its own, and so is the checkpoint."""

    def __init__(self):
        self.steps = Steps()
        self.rows = {}  # key -> (partition, seq, value)
        self._positions = None
        self._rings = {}

    @property
    def state(self):
        return {key: value for key, (_, _, value) in self.rows.items()}

    def held(self):
        return {key: (seq, value) for key, (_, seq, value) in self.rows.items()}

    def open(self):
        if self._positions is None:
            return None
        return Checkpoint(Positions.parse(self._positions), {id: ring.whole() for id, ring in self._rings.items()})

    def prepare(self, checkpoint):
        self.steps.step()
        self._store(checkpoint)

    def apply(self, mutations, checkpoint):
        for mutation in mutations:
            self.steps.step()
            held = self.rows.get(mutation.key)
            if held is not None and held[1] > mutation.seq:
                continue
            if mutation.value is None:
                self.rows.pop(mutation.key, None)
            else:
                self.rows[mutation.key] = (mutation.partition, mutation.seq, mutation.value)
        self.steps.step()
        self._store(checkpoint)

    def _store(self, checkpoint):
        self._store_positions(checkpoint.positions)
        for partition, change in checkpoint.rings.items():
            if partition in self._rings:
                self._rings[partition].apply(change)
            else:
                self._rings[partition] = unbounded_ring(change)

    def _store_positions(self, positions):
        self._positions = str(positions) if positions else None

    def rollback(self, partition, seq):
        for key, (of, held_seq, value) in list(self.rows.items()):
            if of == partition and held_seq > seq:
                self.steps.step()
                self.rows[key] = (of, 0, value)

    def clear(self, partition):
        for key in [key for key, (of, _, _) in self.rows.items() if of == partition]:
            self.steps.step()
            del self.rows[key]
        self.steps.step()
        self._store_positions(Positions.parse(self._positions).without(partition))
        self._rings.pop(partition, None)

    def close(self):
        pass


class Point(NamedTuple):
    """Where a partition stood between snapshots."""

    position: Position
    rows: dict[bytes, tuple[int, bytes]]


class TruncatingIndex:
    """Atomic; goes back by itself, to one of the last few points where it stood between snapshots."""

    POINTS_MAX = 4

    def __init__(self):
        self.steps = Steps()
        self._rows = {}  # partition -> {key: (seq, value)}
        self._positions = None
        self._points = {}  # partition -> the lowest first
        self.went_back = 0

    @property
    def state(self):
        return {key: value for key, (_, value) in self.held().items()}

    def held(self):
        return {key: row for rows in self._rows.values() for key, row in rows.items()}

    def open(self):
        return None if self._positions is None else Checkpoint(Positions.parse(self._positions))

    def apply(self, mutations, checkpoint):
        self.steps.step()
        for mutation in mutations:
            rows = self._rows.setdefault(mutation.partition, {})
            if mutation.value is None:
                rows.pop(mutation.key, None)
            else:
                rows[mutation.key] = (mutation.seq, mutation.value)
        self._positions = str(checkpoint.positions) if checkpoint.positions else None
        for partition, position in checkpoint.positions.items():
            if position.snapshot_first == position.seq == position.snapshot_last:
                self._keep_point(partition, position)

    def _keep_point(self, partition, position):
        points = self._points.get(partition, [])
        if points and points[-1].position == position:
            return
        points = [point for point in points if point.position.seq < position.seq]
        point = Point(position, dict(self._rows.get(partition, {})))
        self._points[partition] = [*points, point][-self.POINTS_MAX :]

    def rollback(self, partition, seq):
        self.steps.step()
        points = self._points[partition] = [
            point for point in self._points.get(partition, []) if point.position.seq <= seq
        ]
        if not points:
            return 0
        self.went_back += 1
        position, rows = points[-1]
        self._rows[partition] = dict(rows)
        self._positions = str(Positions.parse(self._positions).with_position(partition, position))
        return position.seq

    def clear(self, partition):
        self.steps.step()
        self._rows.pop(partition, None)
        self._points.pop(partition, None)
        if self._positions is not None:
            positions = Positions.parse(self._positions).without(partition)
            self._positions = str(positions) if positions else None

    def close(self):
        pass
