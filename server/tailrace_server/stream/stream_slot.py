"""One stream among the streams of its connection: its state, its callbacks and its share of the bounds."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from sortedcontainers import SortedKeyList

from tailrace_server.stream.frames import SnapshotFrames
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.stream_state import StreamEvent, StreamState, transition

Key = tuple[bytes, int, int]


class SlotOwner(Protocol):
    """The part of `Rounds` that a slot calls."""

    def news(self, slot: StreamSlot) -> None:
        """Notes that the partition of a stream shows more."""

    def flushed(self, slot: StreamSlot) -> None:
        """Notes that the partition of a stream was flushed."""


class StreamSlot:
    """The place of a stream in the rounds of its connection. Only its own methods change its fields.

    `PartitionStream` chooses the next block, and the state here the time to send it.
    """

    __slots__ = (
        "_frames",
        "_owner",
        "flushed_bytes",
        "holds_chunk",
        "key",
        "notify",
        "state",
        "stream",
        "under_way_bytes",
    )

    def __init__(self, stream: PartitionStream, notify: Callable[[], None], owner: SlotOwner) -> None:
        """``notify`` is called when the stream has something to send."""
        partition = stream.partition
        self.stream = stream
        self.notify = notify
        self.key: Key = (partition.feed_id, partition.id, stream.id)  # a pass is in the order of the keys
        self._frames: SnapshotFrames | None = None  # made by the first snapshot: most streams of many send none
        self._owner = owner
        # Invariant, between two calls of Rounds: the slot is among the turns exactly if state.has_turn, and in the
        # queue of ChunkReads exactly if QUEUED.
        self.state = StreamState.IDLE
        # A chunk of a segment is in memory for the stream, or a thread reads it. Invariant: True in LOADING; False in
        # IDLE, READY and QUEUED; in ENDED only if a thread still reads.
        self.holds_chunk = False
        # The bytes in memory that were flushed too, when they were last counted. Invariant: 0 if the stream has never
        # held any since it was opened, or since it let go of them.
        self.flushed_bytes = 0
        self.under_way_bytes = 0  # sent and not credited, if the stream is credited by itself

    @property
    def frames(self) -> SnapshotFrames:
        """The frames around the blocks of the stream's snapshots."""
        if self._frames is None:
            self._frames = SnapshotFrames(self.stream.id, self.stream.partition.id)
        return self._frames

    def watch(self) -> None:
        """Has the owner told when the partition shows more, and after each flush of it, until `close`."""
        stream = self.stream
        stream.partition.watchers.on_flush(self._flushed)
        stream.partition.watchers.watch(stream.level, self._news)

    def _news(self) -> None:
        self._owner.news(self)

    def _flushed(self) -> None:
        self._owner.flushed(self)

    def move(self, event: StreamEvent) -> None:
        """Changes the state as the table says. RuntimeError if ``event`` is not possible now."""
        self.state = transition(self.state, event)

    def start_read(self) -> None:
        """Notes that a thread reads the next chunk."""
        self.move(StreamEvent.READ_STARTED)
        self.holds_chunk = True

    def drop_chunk(self) -> bool:
        """Notes that the stream has used up its chunk. Returns False if it held none."""
        held, self.holds_chunk = self.holds_chunk, False
        return held

    def count_flushed(self) -> int:
        """Counts the flushed bytes that the stream holds in memory. Returns by how many bytes they changed."""
        before, self.flushed_bytes = self.flushed_bytes, self.stream.flushed_bytes
        return self.flushed_bytes - before

    def add_under_way(self, nbytes: int) -> None:
        """Notes that so many bytes more are under way; fewer if negative."""
        self.under_way_bytes += nbytes

    def close(self) -> None:
        """Ends the stream, and frees its segments and callbacks."""
        self.move(StreamEvent.CLOSED)
        stream = self.stream
        stream.partition.watchers.unwatch(stream.level, self._news)
        stream.partition.watchers.off_flush(self._flushed)
        stream.close()


def turns() -> SortedKeyList[StreamSlot]:
    """Returns a list of slots in the order of their keys, without any yet."""
    return SortedKeyList(key=attrgetter("key"))


# The turns of all connections without a stream yet, which takes 400 bytes less for each. Nothing is added to it.
NO_TURNS = turns()
