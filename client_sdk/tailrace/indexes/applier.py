"""What a follower does with an index: batches and rollbacks, in the order that keeps every crash harmless.

    events ──`Jobs.add`──> Batch, Batch, Back, Batch (refetched), ... ──`Applier.run`──> calls of the index

An index that is atomic stores rows, positions and rings in one call. One that is not (`PreparedIndex`) is told before
each of them which keys may be touched, and up to where. Plain calls, on the index's own thread.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Protocol, TypeVar

from tailrace.consuming.events import Event, Mutations, Rollback
from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.indexes import AppliedMutation, Index, IndexBusy, PreparedIndex
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN
from tailrace.model.position import Position, Positions

# A transaction: small enough to be short, large enough that its commit does not matter. 64 MiB bounds the memory.
APPLY_ROWS_MAX = 10_000
APPLY_BYTES_MAX = 64 * 1024 * 1024
# Between two calls of an index that is busy, which has waited for a moment by itself.
BUSY_PAUSE_S = 0.05

T = TypeVar("T")


class Batch(NamedTuple):
    """Mutations, in order, that lead to ``positions``. ``floors``: of the rings of their partitions.

    Where they are ``refetched``, ``changes`` has the rings of those partitions whose last ones they are.
    """

    mutations: list[Mutations]
    positions: Positions
    floors: Mapping[int, int]
    refetched: bool = False
    changes: Mapping[int, RingChange] = {}


class Back(NamedTuple):
    """A partition goes back as ``event`` says; ``positions`` are what follows from it, ``floor`` is of its ring."""

    event: Rollback
    positions: Positions
    floor: int


class Source(Protocol):
    """What is asked of the stream that the events come from."""

    @property
    def positions(self) -> Positions: ...
    @property
    def latest_positions(self) -> Positions: ...
    def has_event(self) -> bool: ...
    def ring_floor(self, partition: int) -> int: ...
    def ring_change(self, partition: int) -> RingChange | None: ...


class Jobs:
    """Events on their way to the index, gathered into batches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._closed: collections.deque[Batch | Back] = collections.deque()
        self._open: list[Mutations] = []
        self._open_refetched = False
        self._changes: dict[int, RingChange] = {}
        self._rows = self._bytes = 0
        self.received = 0  # how many events there have been
        self._covered = 0  # by what is closed
        self._positions: Positions | None = None  # that the open batch leads to, where it may be taken as it is

    @property
    def is_full(self) -> bool:
        """A transaction's worth waits."""
        return self._rows >= APPLY_ROWS_MAX or self._bytes >= APPLY_BYTES_MAX

    def add(self, event: Event) -> bool:
        """Adds an event that is being handled; True where there is something to take now."""
        source = self._source
        self.received += 1
        if isinstance(event, Rollback):
            self._close(source.positions)
            self._closed.append(Back(event, source.latest_positions, source.ring_floor(event.partition)))
            self._covered = self.received
            return True
        refetched = isinstance(event, Mutations) and event.refetched
        if refetched != self._open_refetched and (self._open or self._changes):
            self._close(source.positions)
        self._open_refetched = refetched
        if isinstance(event, Mutations):
            self._open.append(event)
            self._rows += len(event)
            self._bytes += event.block.header.raw_bytes
            change = source.ring_change(event.partition) if refetched else None
            if change is not None:
                self._changes[event.partition] = change
        self._positions = None
        if self.is_full or not source.has_event():
            self._positions = source.latest_positions
        return self._positions is not None or bool(self._closed)

    def _close(self, positions: Positions) -> None:
        """What follows is not for the same transaction as what is gathered."""
        if self._open or self._changes:
            self._closed.append(self._batch(positions))
        self._positions = None
        self._covered = self.received - 1

    def _batch(self, positions: Positions) -> Batch:
        partitions = {event.partition for event in self._open}
        floors = {partition: self._source.ring_floor(partition) for partition in partitions}
        batch = Batch(self._open, positions, floors, self._open_refetched, self._changes)
        self._open, self._changes, self._open_refetched = [], {}, False
        return batch

    def take(self) -> tuple[list[Batch | Back], int]:
        """All that can be done now, in order, and how many events are done with it."""
        if self._positions is not None:
            self._closed.append(self._batch(self._positions))
            self._positions = None
            self._covered = self.received
        jobs = list(self._closed)
        self._closed.clear()
        self._rows = sum(map(len, self._open))
        self._bytes = sum(event.block.header.raw_bytes for event in self._open)
        return jobs, self._covered


class Applier:
    """Does jobs on an index. ``positions`` is what it has stored last, None at first."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._is_prepared = isinstance(index, PreparedIndex)
        self._is_left = threading.Event()
        self.positions: Positions | None = None

    def leave(self) -> None:
        """Makes the call that is under way raise IndexBusy if it waits for the index. May be called by any thread."""
        self._is_left.set()

    def _call(self, method: Callable[..., T], *args: Any) -> T:
        """Returns what ``method`` of the index returns; calls it again as long as the index is busy."""
        while True:
            try:
                return method(*args)
            except IndexBusy:
                if self._is_left.wait(BUSY_PAUSE_S):
                    raise

    def open(self) -> Checkpoint | None:
        """Opens the index."""
        checkpoint = self._index.open()
        self.positions = None if checkpoint is None else checkpoint.positions
        return checkpoint

    def _prepare(self, checkpoint: Checkpoint) -> None:
        assert isinstance(self._index, PreparedIndex), "no other index is prepared"
        self._call(self._index.prepare, checkpoint)

    # Batches

    def apply(self, batch: Batch) -> int:
        """Does a batch; how many rows it has come to: of each key the newest."""
        newest: dict[bytes, AppliedMutation] = {}
        events = batch.mutations
        events.reverse()
        while events:
            event = events.pop()  # its columns are copies: what has been taken over is let go
            keys = event.keys()
            rows = zip(repeat(event.partition), keys, event.values(), event.seqs(), event.timestamps())
            newest.update(zip(keys, map(AppliedMutation._make, rows), strict=True))
        mutations = list(newest.values())
        if batch.refetched:
            self._store(mutations, Checkpoint(batch.positions, batch.changes))
            return len(mutations)
        rings = _added(mutations, batch.floors)
        if self._is_prepared and mutations:
            self._prepare(Checkpoint(self._promised(batch.positions, rings), rings))
            rings = {}  # they are stored
        self._store(mutations, Checkpoint(batch.positions, rings))
        return len(mutations)

    def _store(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        self._call(self._index.apply, mutations, checkpoint)
        self.positions = checkpoint.positions

    def _promised(self, positions: Positions, rings: Mapping[int, RingChange]) -> Positions:
        """Where the index stands, with the ends up to which rows are about to be applied, and the logs they are of."""
        held: Mapping[int, Position] = self.positions or {}
        promised = {}
        for partition, to in positions.items():
            stands = held.get(partition, Position.at(to.log, 0))
            last = max(stands.snapshot_last, to.snapshot_last)
            last = max([last, *(chunk.last_seq for chunk in rings.get(partition, RingChange(0)).chunks)])
            promised[partition] = Position.at(
                to.log, stands.seq, stands.snapshot_first, last, stands.purge_seq if stands.seq else to.purge_seq
            )
        return positions.with_positions(promised)

    # Rollbacks

    def roll_back(self, back: Back) -> int | None:
        """Goes back, and stores that; where the index stands now, None where keys have to be read again."""
        (partition, seq, keys), positions, floor = back
        point = self._call(self._index.rollback, partition, seq) if seq else 0
        if point is not None and not 0 <= point <= seq:
            raise ValueError(f"rollback({partition}, {seq}) of the index gave {point!r}, which is not from 0 to {seq}")
        if point is None and keys is None:
            point = 0
        if point == 0:
            self._clear(partition, positions)
        elif point is None:
            self._store((), Checkpoint(positions))
        else:
            at = Position.at(positions[partition].log, point)
            change = RingChange(floor, point)
            self._store((), Checkpoint(positions.with_position(partition, at), {partition: change}))
        return point

    def _clear(self, partition: int, positions: Positions) -> None:
        if self._is_prepared:
            # Interrupted while it forgets rows, it has to go on with that before anything else.
            begun = Position.at(positions[partition].log, 0, 0, SNAPSHOT_LAST_UNKNOWN)
            self._prepare(Checkpoint((self.positions or positions).with_position(partition, begun)))
        self._call(self._index.clear, partition)
        self.positions = (self.positions or positions).without(partition)


def _added(mutations: Iterable[AppliedMutation], floors: Mapping[int, int]) -> dict[int, RingChange]:
    """What ``mutations`` add to the rings of their partitions."""
    by_partition: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in floors}
    for partition, key, _, seq, _ in mutations:
        if seq > floors[partition]:
            by_partition[partition].append((seq, key))
    changes = {}
    for partition, entries in by_partition.items():
        entries.sort()
        chunks = (RingChunk.of([seq for seq, _ in entries], [key for _, key in entries]),) if entries else ()
        changes[partition] = RingChange(floors[partition], None, chunks)
    return changes
