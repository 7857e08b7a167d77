"""The streams of one connection that end at a time of the wall clock, and whose time is still to come. Pure."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

from sortedcontainers import SortedKeyList

from tailrace_server.partition.partition import Partition
from tailrace_server.stream.stream_slot import StreamSlot

# The most streams that get their end in one call, which takes 25 us for each.
ENDS_MAX = 64


class Deadlines:
    """Invariant: the slots of the open streams with ``awaits_time``, and no others."""

    def __init__(self) -> None:
        # Many may end at the same time, and each has to be found among them at once.
        # Most connections have none ever: () until the first one.
        self._slots: SortedKeyList[StreamSlot] | tuple[()] = ()

    @property
    def next_us(self) -> int | None:
        """The earliest time (microseconds since 1970 UTC); None if no stream waits for one."""
        return self._slots[0].stream.until_us if self._slots else None

    def partitions(self) -> list[Partition]:
        """Returns the partitions of these streams, each once."""
        return list(dict.fromkeys(slot.stream.partition for slot in self._slots))

    def add(self, slot: StreamSlot) -> None:
        """Adds an open stream, if it ends at a time that is to come."""
        if slot.stream.awaits_time:
            if not self._slots:
                self._slots = SortedKeyList(key=attrgetter("stream.until_us", "key"))
            self._slots.add(slot)

    def forget(self, slot: StreamSlot) -> None:
        """Removes a stream that ends now."""
        if self._slots and slot.stream.awaits_time:
            self._slots.remove(slot)

    def take_passed(self, wall_us: int, accepted: Callable[[bytes, int], int] | None) -> list[StreamSlot]:
        """Removes the streams whose time has come, and sets their ends. Returns them, ENDS_MAX at most.

        Each ends behind all that was accepted by now: ``accepted(feed id, partition)`` by the leader; None on it.
        """
        passed: list[StreamSlot] = []
        while self._slots and len(passed) < ENDS_MAX and self._slots[0].stream.until_us <= wall_us:
            slot = self._slots.pop(0)
            partition = slot.stream.partition
            slot.stream.time_passed(None if accepted is None else accepted(partition.feed_id, partition.id))
            passed.append(slot)
        return passed
