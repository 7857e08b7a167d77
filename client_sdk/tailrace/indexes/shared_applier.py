"""Applies the partitions that a member of a group owns to a shared index.

IndexTake ──> the index stores the generations, and returns its positions and rings
IndexBatch, IndexRollback ──> the index refuses partitions that others have taken; the rest is applied without them
IndexRelease ──> the index forgets the partitions, and keeps their rows
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import NotOwner
from tailrace.indexes.applier import Applier, IndexBatch, IndexRelease, IndexRollback, IndexTake
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.parking import Parking
from tailrace.indexes.protocol import SharedIndex, Taken
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tailrace.indexes.protocol import AppliedMutation


class SharedApplier(Applier):
    """Does jobs on an index that the members of a group share."""

    def __init__(self, index: SharedIndex, group: str, *, parks: bool = False) -> None:
        super().__init__(index, parks=parks)
        self._shared = index
        self._group = group
        # The generations of the partitions that the index has for this member.
        self.owned: dict[int, int] = {}
        self._refused: dict[int, int] = {}

    def take_refused(self) -> dict[int, int]:
        """Returns, once, the partitions that the index has refused, by their generation."""
        refused, self._refused = self._refused, {}
        return refused

    def open(self) -> None:
        """Opens the index. Its positions come with `take`."""
        self._call(self._shared.open_shared, self._group)

    # Jobs

    def take(self, job: IndexTake) -> Taken:
        """Has the index take partitions over."""
        taken = self._call(self._shared.take, job.generations)
        self.owned.update({p: each for p, each in job.generations.items() if p not in taken.later})
        if taken.checkpoint is not None:
            found = taken.checkpoint.positions
            self.positions = found if self.positions is None else self.positions.with_positions(found)
        return taken

    def begun(self, partitions: Collection[int]) -> None:
        """Forgets partitions that do not begin, since they were lost while the index took them."""
        self._forget([p for p in self.owned if p not in partitions])

    def release(self, job: IndexRelease) -> None:
        """Has the index forget partitions."""
        self._call(self._shared.give_back, job.generations)
        self._forget(p for p, generation in job.generations.items() if self.owned.get(p) == generation)

    def apply(self, batch: IndexBatch) -> int | Parking:
        """Applies the rows of a batch that are of partitions which the index has for this member."""
        events = batch.mutations
        while True:
            mine = [event for event in events if event.partition in self.owned]
            own_batch = batch._replace(
                mutations=mine,
                positions=self._mine(batch.positions),
                floors={p: floor for p, floor in batch.floors.items() if p in self.owned},
                changes={p: change for p, change in batch.changes.items() if p in self.owned},
            )
            try:
                result = super().apply(own_batch)
            except NotOwner as error:
                self._refuse(error)
            else:
                return result if isinstance(result, int) else self._finished_later(result)

    def _finished_later(self, parking: Parking) -> Parking:
        finish = parking.finish

        def finish_mine() -> int:
            while True:
                try:
                    return finish()
                except NotOwner as error:
                    self._refuse(error)

        return parking._replace(finish=finish_mine)

    def roll_back(self, back: IndexRollback) -> int | None:
        """Goes back, if the index has the partition for this member."""
        if back.event.partition not in self.owned:
            return None
        try:
            return super().roll_back(back._replace(positions=self._mine(back.positions)))
        except NotOwner as error:
            self._refuse(error)
            return self.roll_back(back)

    def _store(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        positions = self._mine(checkpoint.positions)
        rings = {p: change for p, change in checkpoint.rings.items() if p in self.owned}
        super()._store(mutations, Checkpoint(positions, rings))

    # What is owned

    def _mine(self, positions: Positions) -> Positions:
        mine = {p: at for p, at in positions.items() if p in self.owned}
        return Positions(positions.cluster_id, positions.feed_id, mine)

    def _refuse(self, error: NotOwner) -> None:
        """Forgets partitions that another member has taken. Raises ``error`` if they are not known, or none."""
        refused = {p: self.owned[p] for p in error.partitions if p in self.owned}
        if not refused:
            raise error
        self._shared.give_back(refused)
        self._refused.update(refused)
        self._forget(refused)

    def _forget(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            self.owned.pop(partition, None)
        if self.positions is not None:
            self.positions = self._mine(self.positions)
