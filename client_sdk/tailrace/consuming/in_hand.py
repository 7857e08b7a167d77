"""The events that a program handles now. Pure."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tailrace.consuming.events import Event, Rollback
    from tailrace.consuming.rollbacks import Queued
    from tailrace.model.position import Position


class InHand:
    """The events of the program's last call. They count as handled when it calls again.

    ``last`` is the last one of them, None before the first call and between two calls. Only its session sets it.
    ``before`` has the others, in their order.
    """

    __slots__ = ("before", "last")

    def __init__(self) -> None:
        self.last: Queued | None = None
        self.before: list[Queued] = []

    @property
    def reached(self) -> dict[int, Position]:
        """The position of each partition that these events lead to."""
        if self.last is None:
            return {}
        events = (*self.before, self.last)
        return {partition: position for _, partition, position, _ in events if position is not None}

    def take_together(
        self,
        queue: collections.deque[Queued],
        arrive: Callable[[], bool],
        rows_max: int,
        handled: Mapping[int, Position],
    ) -> list[Event]:
        """Returns the last event and those behind it that are taken with it; the arguments are those of `together`."""
        from tailrace.consuming.together import together  # few programs poll

        assert self.last is not None, "`next_event` has returned an event"
        *self.before, self.last = taken = together(self.last, queue, arrive, rows_max, handled)
        return [cast("Event", event) for event, *_ in taken]  # a replica takes its events one by one

    def take_before(self) -> list[Queued]:
        """Returns the events before the last one, which are handled now."""
        before, self.before = self.before, []
        return before

    def disown(self, partitions: Iterable[int]) -> None:
        """Has events of these partitions lead to no position: their next owner may have gone on behind it."""
        lost = frozenset(partitions)
        if self.last is not None:
            *self.before, self.last = [
                (event, of, None if of in lost else position, nbytes)
                for event, of, position, nbytes in (*self.before, self.last)
            ]

    def settle(self, event: Rollback, position: Position) -> None:
        """Notes the position that an index has gone back to, if ``event`` is the last event."""
        if self.last is not None and self.last[0] is event:
            self.last = (event, event.partition, position, 0)
