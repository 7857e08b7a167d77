"""A member of a group that fills a shared index: its partitions begin at the index's positions. Sans-IO.

    CHANGE granted: Assigned ──the index has taken them──> the streams begin ──applied──> COMMIT, once a second
                                └─ it has later generations ──> RELEASE, and the node grants above them

The index refuses what an owner applies that is none any more. The positions at the node only show how far it is.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from tailrace.consuming.membership import Membership
from tailrace.link.backoff import earliest
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.consumer_messages import ConsumerId, Hold

if TYPE_CHECKING:
    from tailrace.consuming.events import Assigned, Revoked
    from tailrace.consuming.named_streams import NamedStreams
    from tailrace.consuming.ring import RingChange
    from tailrace.consuming.subscription import Subscription

# The node hears of an index's positions so often.
COMMIT_EVERY_S = 1.0


class IndexMembership(Membership):
    """The group of a follower. Only this file and that of `Membership` set its fields."""

    def __init__(
        self,
        subscription: Subscription,
        streams: NamedStreams,
        clock: Callable[[], float],
        emit: Callable[[Assigned | Revoked], None],
        drop: Callable[[frozenset[int]], None],
        disown: Callable[[Iterable[int]], None],
    ) -> None:
        """Takes the arguments of `Membership`, but ``disown``.

        An index stores the rows of an event with its position, if it has the partition for this member still: without
        the position a later rollback would not find them.
        """
        super().__init__(subscription, streams, clock, emit, drop, lambda partitions: None)
        self._untaken: set[int] = set()  # those that the index has not taken yet
        # The generations of the events that the follower has not handled yet, in their order.
        self._of_assigned: collections.deque[Mapping[int, int]] = collections.deque()
        self._of_revoked: collections.deque[Mapping[int, int]] = collections.deque()
        self._applied: dict[int, Position] = {}  # that the node is told next
        self._commit_at = math.inf
        self._above: dict[int, int] = {}  # of partitions in ``_releasing``: the generations that the index has

    # For the follower

    def assigned(self) -> Mapping[int, int]:
        """Returns the generations of the `Assigned` event in hand, once."""
        return self._of_assigned.popleft()

    def revoked(self) -> Mapping[int, int]:
        """Returns the generations of the `Revoked` event in hand, once."""
        return self._of_revoked.popleft()

    def taken(
        self,
        generations: Mapping[int, int],
        positions: Mapping[int, Position],
        rings: Mapping[int, RingChange],
    ) -> None:
        """Begins partitions that the index has taken, as far as they are still owned in these generations."""
        for partition, generation in generations.items():
            if partition in self._untaken and self._has(partition, generation):
                self._untaken.discard(partition)
                position = positions.get(partition, Position.at(FailoverLog(), 0))
                self._streams.add(partition, position, rings.get(partition))
        self.applied(positions)

    def give_up(self, generations: Mapping[int, int], later: Mapping[int, int]) -> None:
        """Releases partitions that the index has of another owner. ``later``: the generations that it has of them."""
        mine = [
            partition
            for partition, generation in generations.items()
            if self._has(partition, generation) and partition not in self._revoked | self._releasing
        ]
        self._end_streams(tuple(mine))
        self._streams.forget_handled(mine)
        self._releasing.update(mine)
        self._above.update({partition: later[partition] for partition in mine if partition in later})

    def applied(self, positions: Mapping[int, Position]) -> None:
        """Notes how far the index is. The node is told within a second."""
        for partition, position in positions.items():
            if partition in self._generations and partition not in self._untaken | self._releasing:
                self._applied[partition] = position
        if self._applied:
            self._commit_at = min(self._commit_at, self._clock() + COMMIT_EVERY_S)

    def _flush(self) -> None:
        applied, self._applied, self._commit_at = self._applied, {}, math.inf
        for partition, position in applied.items():
            known = self._wanted.get(partition) or self._sent.get(partition) or self._committed.get(partition)
            if partition in self._generations and partition not in self._releasing and position != known:
                self._wanted[partition] = position

    # What differs

    @property
    def is_taking(self) -> bool:
        return bool(self._untaken)

    @property
    def next_at(self) -> float | None:
        return earliest(super().next_at, None if self._commit_at == math.inf else self._commit_at)

    def data_to_send(self) -> list[bytes]:
        if self._clock() >= self._commit_at:
            self._flush()
        return super().data_to_send()

    def leave(self) -> list[bytes]:
        self._flush()
        return super().leave()

    def handled(self, event: Revoked) -> None:
        self._flush()
        super().handled(event)
        self._streams.forget_handled(event.partitions)  # also those that were granted again, and begin elsewhere

    def reads(self) -> frozenset[int]:
        """Returns the partitions that are read."""
        return frozenset(self._streams.read_ids)

    def _hold(self, consumer: ConsumerId, released: Mapping[int, int]) -> Hold:
        above = {partition: self._above[partition] for partition in released if partition in self._above}
        return super()._hold(consumer, released)._replace(above=above)

    def _begin_unstored(self, partition: int, position: Position) -> None:
        self._begin_at(partition, position)

    def _begin_at(self, partition: int, position: Position) -> None:
        self._streams.remove(partition)
        self._above.pop(partition, None)
        self._untaken.add(partition)

    def _end_streams(self, partitions: tuple[int, ...]) -> None:
        super()._end_streams(partitions)
        self._untaken.difference_update(partitions)

    def _forget(self, partitions: Iterable[int]) -> None:
        forgotten = list(partitions)
        super()._forget(forgotten)
        for partition in forgotten:
            self._applied.pop(partition, None)
            self._above.pop(partition, None)

    def _tell_assigned(self, generations: Mapping[int, int]) -> None:
        self._of_assigned.append(generations)
        super()._tell_assigned(generations)

    def _tell_revoked(self, generations: Mapping[int, int], *, lost: bool) -> None:
        self._of_revoked.append(generations)
        super()._tell_revoked(generations, lost=lost)
