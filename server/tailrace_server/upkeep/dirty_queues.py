"""The write queues with something to flush, and when one of them may be due. Pure.

A node may have a hundred thousand of them, and mostly none is due. So they are gone through only if the oldest has come
of age, or if something else has happened that makes one due.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition


class DirtyQueues:
    """Only its own methods change its fields. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since: dict[Partition, float] = {}
        self._look_at = math.inf  # Invariant: no queue is due by its age before

    def __contains__(self, partition: object) -> bool:
        return partition in self._since

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._since))

    def __len__(self) -> int:
        return len(self._since)

    def items(self) -> list[tuple[Partition, float]]:
        """Returns the partitions, and since when each has had something to flush."""
        return list(self._since.items())

    def begin(self, partition: Partition, now: float, age_bound_s: float) -> None:
        """Notes that what a queue has to flush is not older than ``now``. It is due ``age_bound_s`` from then."""
        self._since[partition] = now
        self._look_at = min(self._look_at, now + age_bound_s)

    def forget(self, partition: Partition) -> None:
        """Forgets a queue that is empty, or whose feed was dropped. No-op if it is not known."""
        self._since.pop(partition, None)

    def must_look(self) -> None:
        """Notes that a queue may be due by something else than its age."""
        self._look_at = -math.inf

    def may_be_due(self, now: float) -> bool:
        """Returns False if no queue can be due."""
        return now >= self._look_at

    def begin_look(self) -> None:
        """Notes that the queues are gone through now. What is noted meanwhile counts for the next time."""
        self._look_at = math.inf

    def looked(self, next_at: float) -> None:
        """Notes that no queue is due before ``next_at``, but for what was noted since `begin_look`."""
        self._look_at = min(self._look_at, next_at)
