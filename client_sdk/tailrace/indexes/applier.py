"""Applies a feed to an index: batches and rollbacks, in an order that makes every crash harmless.

    events ──`IndexQueue`──> IndexBatch, IndexRollback, IndexBatch (refetched), ... ──`Applier`──> calls of the index

An atomic index stores rows, positions and rings in one call. Before each such call, an index without transactions
(`PreparedIndex`) gets the checkpoint that covers the rows which the call may touch. The calls run on the index's own
thread.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from tailrace.consuming.events import Assigned, Event, Mutations, Revoked, Rollback
from tailrace.consuming.ring import RingChange
from tailrace.indexes import AppliedMutation, Index, IndexBusy, PreparedIndex
from tailrace.indexes.applied import AppliedMutations
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.parking import Parking, apply_the_good, is_of_rows, parked_row
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN
from tailrace.model.position import Position, Positions

if TYPE_CHECKING:
    from tailrace.consuming.index_membership import IndexMembership

# A transaction: small enough to be short, large enough that its commit does not matter. 64 MiB bounds the memory.
APPLY_ROWS_MAX = 10_000
APPLY_BYTES_MAX = 64 * 1024 * 1024
# The pause between two calls of a busy index, which has waited for a moment itself.
BUSY_PAUSE_S = 0.05

T = TypeVar("T")


class IndexBatch(NamedTuple):
    """Mutations for one call of the index.

    Attributes:
        mutations: The mutations, in order.
        positions: The positions after them.
        floors: The floors of the rings of their partitions.
        refetched: True if they were read again after a rollback.
        changes: The new rings of the partitions whose last refetched mutations they are.
    """

    mutations: list[Mutations]
    positions: Positions
    floors: Mapping[int, int]
    refetched: bool = False
    changes: Mapping[int, RingChange] = {}


class IndexRollback(NamedTuple):
    """A rollback of one partition.

    Attributes:
        event: The Rollback of the stream.
        positions: The positions after it.
        floor: The floor of the partition's ring.
    """

    event: Rollback
    positions: Positions
    floor: int


class IndexTake(NamedTuple):
    """Partitions that a group has given to this member, by generation."""

    generations: Mapping[int, int]


class IndexRelease(NamedTuple):
    """Partitions that this member of a group owns no more, by the generation in which it did."""

    generations: Mapping[int, int]


Job: TypeAlias = "IndexBatch | IndexRollback | IndexTake | IndexRelease"
# What comes behind such an event depends on what the index does with it. So it is not read before.
AWAITED = (Rollback, Assigned, Revoked)


class Source(Protocol):
    """The stream that delivers the events."""

    @property
    def positions(self) -> Positions: ...
    @property
    def latest_positions(self) -> Positions: ...
    def has_event(self) -> bool: ...
    def ring_floor(self, partition: int) -> int: ...
    def ring_change(self, partition: int) -> RingChange | None: ...
    def for_group(self, step: Callable[[IndexMembership], T]) -> T: ...


class IndexQueue:
    """Events on their way to the index, gathered into batches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._closed: collections.deque[Job] = collections.deque()
        self._open: list[Mutations] = []
        self._open_refetched = False
        self._changes: dict[int, RingChange] = {}
        self._rows = self._bytes = 0
        self.received = 0  # the number of events that were added
        self._covered = 0  # the number of events up to the last closed job
        # The positions after the open batch; None while it cannot be taken yet.
        self._positions: Positions | None = None

    @property
    def is_full(self) -> bool:
        """True if the open batch has reached the bounds of a transaction."""
        return self._rows >= APPLY_ROWS_MAX or self._bytes >= APPLY_BYTES_MAX

    def add(self, event: Event) -> bool:
        """Adds the event that the program handles now. Returns True if `take` has a job."""
        source = self._source
        self.received += 1
        if isinstance(event, Rollback):
            self._close(source.positions)
            self._closed.append(IndexRollback(event, source.latest_positions, source.ring_floor(event.partition)))
            self._covered = self.received
            return True
        if isinstance(event, Assigned | Revoked):
            self._close(source.positions)
            is_assigned = isinstance(event, Assigned)
            generations = source.for_group(lambda group: group.assigned() if is_assigned else group.revoked())
            self._closed.append(IndexTake(generations) if is_assigned else IndexRelease(generations))
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
        """Closes the open batch, since the next event belongs to another transaction."""
        if self._open or self._changes:
            self._closed.append(self._batch(positions))
        self._positions = None
        self._covered = self.received - 1

    def _batch(self, positions: Positions) -> IndexBatch:
        partitions = {event.partition for event in self._open}
        floors = {partition: self._source.ring_floor(partition) for partition in partitions}
        batch = IndexBatch(self._open, positions, floors, self._open_refetched, self._changes)
        self._open, self._changes, self._open_refetched = [], {}, False
        return batch

    def take(self) -> tuple[list[Job], int]:
        """Returns the jobs that can be done now, in order, and the number of events that are then done."""
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
    """Does jobs on an index.

    Attributes:
        positions: The positions that the index has stored last; None at first.
        parks: True if rows that the index cannot take are returned, and do not end the follower.
    """

    def __init__(self, index: Index, *, parks: bool = False) -> None:
        self._index = index
        self.parks = parks
        self._is_prepared = isinstance(index, PreparedIndex)
        self._columns: Callable[[list[Mutations]], AppliedMutations] = AppliedMutations.of_events
        if getattr(index, "takes_arrow", False):
            from tailrace.indexes.arrow_mutations import ArrowMutations

            self._columns = ArrowMutations.of_events
        self._is_left = threading.Event()
        self.positions: Positions | None = None

    def leave(self) -> None:
        """Has a call that waits for a busy index raise IndexBusy. Any thread may call it."""
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

    def keep_prefix(self, key_prefix: bytes) -> None:
        """Has the index note the prefix of its keys. Raises ValueError if it was filled with another one.

        An index of a user's own need not have the method.
        """
        keep = getattr(self._index, "keep_prefix", None)
        if keep is not None:
            self._call(keep, key_prefix)

    def _prepare(self, checkpoint: Checkpoint) -> None:
        assert isinstance(self._index, PreparedIndex), "only a PreparedIndex is prepared"
        self._call(self._index.prepare, checkpoint)

    # Batches

    def apply(self, batch: IndexBatch) -> int | Parking:
        """Applies a batch. Returns the number of rows: only the newest of each key is applied.

        If rows are to be parked and the index cannot take some, they are returned. The others are applied then, and the
        positions wait for `Parking.finish`.
        """
        mutations = self._columns(batch.mutations)
        if batch.refetched:
            checkpoint = Checkpoint(batch.positions, batch.changes)
            return self._store_or_part(mutations, checkpoint, Checkpoint(self.positions or batch.positions))
        rings = mutations.ring_changes(batch.floors)
        partly = Checkpoint(self._promised(batch.positions, rings), rings) if self._splits(mutations) else None
        if self._is_prepared and mutations:
            assert partly is not None, "a prepared index is always told what may be applied in part"
            self._prepare(partly)
            rings = {}  # they are stored
        return self._store_or_part(mutations, Checkpoint(batch.positions, rings), partly)

    def _splits(self, mutations: AppliedMutations) -> bool:
        """Tells whether a batch may be applied in parts."""
        return bool(mutations) and (self._is_prepared or self.parks)

    def _store_or_part(
        self, mutations: AppliedMutations, checkpoint: Checkpoint, partly: Checkpoint | None
    ) -> int | Parking:
        """Stores a batch; or the rows that the index can take, at the checkpoint ``partly``."""
        try:
            self._store(mutations, checkpoint)
            return len(mutations)
        except Exception as error:
            if not self.parks or partly is None or not is_of_rows(error):
                raise
        # An empty call fails if the store is what does not work. It also stores the rings before any row.
        self._call(self._index.apply, (), partly)
        between = Checkpoint(partly.positions)
        bad = apply_the_good(lambda rows: self._call(self._index.apply, rows, between), mutations)
        rows = [parked_row(mutation, error, checkpoint.positions) for mutation, error in bad]
        last = Checkpoint(checkpoint.positions, checkpoint.rings if not partly.rings else {})

        def finish() -> int:
            self._store((), last)
            return len(mutations) - len(rows)

        return Parking(rows, finish)

    def _store(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        self._call(self._index.apply, mutations, checkpoint)
        self.positions = checkpoint.positions

    def _promised(self, positions: Positions, rings: Mapping[int, RingChange]) -> Positions:
        """Returns the positions of the index, with the ends and logs of the rows that are applied next."""
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

    def roll_back(self, back: IndexRollback) -> int | None:
        """Goes back, and stores the new position. Returns its seq; None if keys have to be read again."""
        (partition, seq, keys), positions, floor = back
        point = self._call(self._index.rollback, partition, seq) if seq else 0
        if point is not None and not 0 <= point <= seq:
            raise ValueError(
                f"rollback({partition}, {seq}) of the index returned {point!r}, but has to return 0 to {seq}"
            )
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
            # If it is interrupted while it deletes rows, the next start has to delete the rest first.
            begun = Position.at(positions[partition].log, 0, 0, SNAPSHOT_LAST_UNKNOWN)
            self._prepare(Checkpoint((self.positions or positions).with_position(partition, begun)))
        self._call(self._index.clear, partition)
        self.positions = (self.positions or positions).without(partition)
