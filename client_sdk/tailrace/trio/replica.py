"""The streams by which a node copies one feed from another node, under trio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import trio

from tailrace.consuming.events import Event, ReplicaEvent, Rollback
from tailrace.consuming.replica import ReplicaStreams
from tailrace.errors import TailraceError, Unreachable
from tailrace.model.position import Position
from tailrace.wire.push_messages import SegmentAnswer


class SharedLink(Protocol):
    """The connection that the feeds share."""

    @property
    def error(self) -> TailraceError | None:
        """How the connection has ended."""
        ...

    def flush(self) -> None:
        """Sends the frames that are due. Never waits."""
        ...

    def forget(self, stream: ReplicaStream) -> None:
        """Ends the streams of a feed."""
        ...


class CopyOptions(NamedTuple):
    """What of a feed is copied.

    Attributes:
        partitions: The partitions to copy; None for all.
        until: The last seq of each partition; None: no end.
        hold: Chooses from the ``partitions`` of the node's partition map the ones that are not asked for before
            `ReplicaStream.release`.
    """

    partitions: Iterable[int] | None = None
    until: Mapping[int, int] | None = None
    hold: Callable[[Sequence[Any]], frozenset[int]] | None = None


class ReplicaStream:
    """The streams of one feed for a node; made by `ReplicaLink.copy`. It gives events, and those of `ReplicaEvent`.

    Events come by `next_event`, or by iterating. If the connection breaks, or the node does not lead and should, the
    next event raises Unreachable, StreamEnded, NotLeader or the node's error. Make another link then, and copy from the
    replica's positions. UnknownFeed ends this feed only. An error of one partition, such as a damaged segment, is a
    `StreamFailed`: the other partitions continue, and `resume` asks for that one again.

    After a Rollback, go back to its ``seq`` or a lower one that the store can restore. Tell it by `settle` before you
    ask for the next event; the partition is then asked for again. The Rollback's keys are of no use to a replica.
    """

    def __init__(self, link: SharedLink, streams: ReplicaStreams) -> None:
        self.streams = streams
        self.on_arrival: Callable[[], None] | None = None  # the owner's: called if no task waits for frames
        self._link = link
        self._arrived: trio.Event | None = None  # while a task waits for frames
        self._asked: dict[trio.Event, None] = {}  # one for each task that waits for the partition map
        self._is_left = False

    def __aiter__(self) -> ReplicaStream:
        return self

    async def __anext__(self) -> Event | ReplicaEvent:
        """Returns the next event; the one before it counts as handled. Raises the error that ended the streams."""
        while True:
            event = self.next_event()
            if event is not None:
                return event
            if self.finished:
                raise StopAsyncIteration
            await self.wait()

    def next_event(self) -> Event | ReplicaEvent | None:
        """Returns the next event; None if none has arrived. The one before it counts as handled.

        Raises as iterating.
        """
        event = self.streams.next_event()
        if event is None:
            self._link.flush()  # credit
            if self._link.error is not None and not self.finished:
                raise self._link.error
        return event

    def has_event(self) -> bool:
        """Tells whether frames have arrived that `next_event` has not handled yet."""
        return self.streams.has_event

    @property
    def finished(self) -> bool:
        """True if every partition has reached its end and every event was handed out."""
        return self.streams.finished

    async def wait(self) -> None:
        """Waits until frames arrive, or the connection ends. One task may wait."""
        if not self.streams.has_event and self._link.error is None:
            self._arrived = trio.Event()
            try:
                await self._arrived.wait()
            finally:
                self._arrived = None

    def arrived(self) -> None:
        """Notes that frames have arrived."""
        if self._arrived is not None:
            self._arrived.set()
        elif self.on_arrival is not None:
            self.on_arrival()

    def lost(self) -> None:
        """Wakes the tasks that wait for frames or for the partition map: the connection has ended."""
        self._stop_waiting()
        if self._arrived is not None:
            self._arrived.set()

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> None:
        """Says that the replica holds ``partition``, fsynced, up to ``seq``, the end of a run of ``branch`` (16 bytes).

        The next `ReplicaLink.flush` sends it, together with those of other partitions. Nothing is sent if the
        partition's stream is not open.
        """
        self.streams.acknowledge(partition, branch, seq)

    def answer_segment(self, partition: int, answer: SegmentAnswer) -> None:
        """Answers an offer or a part of a segment of ``partition``. Sent at once; never waits."""
        self.streams.answer_segment(partition, answer)
        self._link.flush()

    def settle(self, event: Rollback, point: int | None) -> None:
        """Notes that the replica has gone back to ``point`` for ``event``; None: to 0."""
        self.streams.settle(event, point)

    def resume(self, partition: int, position: Position) -> None:
        """Asks for a partition again after a `StreamFailed`, from ``position``, after a pause."""
        self.streams.resume(partition, position)
        self._link.flush()

    def withdraw(self, partition: int) -> bool:
        """Closes the stream of a partition until `release` or `resume`. Returns False if it is not open.

        No event of the closed stream comes any more.
        """
        is_closed = self.streams.withdraw(partition)
        self._link.flush()
        return is_closed

    def give_up(self, partition: int, reason: str) -> None:
        """Closes the stream of a partition whose events the replica cannot use, until `resume`."""
        self.streams.give_up(partition, reason)
        self._link.flush()

    def release(self, partition: int, position: Position) -> None:
        """Asks for a partition that ``hold`` has named, or that was withdrawn, from ``position``.

        Sent at once; never waits.
        """
        self.streams.release(partition, position)
        self._link.flush()

    def leave(self) -> None:
        """Ends the streams. No event comes any more, and the connection goes on without this feed."""
        self._is_left = True
        self._link.forget(self)
        self._stop_waiting()

    async def partition_map(self) -> list[Any]:
        """Returns the ``partitions`` of the node's partition map. Another task has to take the events meanwhile.

        Raises the error of the connection, or Unreachable after `leave`.
        """
        told: list[Any] = []
        asked = trio.Event()
        self._asked[asked] = None
        try:
            if self._may_answer:
                self.streams.ask_map(partial(_answer, told, asked))
                self._link.flush()
                await asked.wait()
        finally:
            del self._asked[asked]
        if not told:
            raise self._link.error or Unreachable("the feed is not copied any more")
        return told

    @property
    def _may_answer(self) -> bool:
        return self._link.error is None and not self._is_left

    def _stop_waiting(self) -> None:
        """Wakes the tasks that wait for the partition map, which does not come any more."""
        for asked in self._asked:
            asked.set()


def _answer(told: list[Any], asked: trio.Event, partitions: list[Any]) -> None:
    told.extend(partitions)
    asked.set()
