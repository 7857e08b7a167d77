"""One stream among the streams of its connection: its state, its callbacks and its share of the bounds."""

from __future__ import annotations

from collections.abc import Callable

from tailrace_server.stream.frames import SnapshotFrames
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.stream_state import StreamEvent, StreamState, transition

Key = tuple[bytes, int, int]


def _no_news() -> None:
    """Replaces the callbacks of a stream that has ended."""


class StreamSlot:
    """The place of a stream in the rounds of its connection. Only its own methods change its fields.

    `PartitionStream` chooses the next block, and the state here the time to send it.
    """

    __slots__ = (
        "_on_flush",
        "_on_news",
        "flushed_bytes",
        "frames",
        "holds_chunk",
        "key",
        "notify",
        "state",
        "stream",
        "under_way_bytes",
    )

    def __init__(self, stream: PartitionStream, notify: Callable[[], None]) -> None:
        """``notify`` is called when the stream has something to send."""
        partition = stream.partition
        self.stream = stream
        self.notify = notify
        self.key: Key = (partition.feed_id, partition.id, stream.id)  # a pass is in the order of the keys
        self.frames = SnapshotFrames(stream.id, partition.id)
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
        self._on_news: Callable[[], None] = _no_news
        self._on_flush: Callable[[], None] = _no_news

    def watch(self, on_news: Callable[[], None], on_flush: Callable[[], None]) -> None:
        """Has ``on_news`` called when the partition shows more, and ``on_flush`` after each flush of it."""
        stream = self.stream
        self._on_news, self._on_flush = on_news, on_flush
        stream.partition.watchers.on_flush(on_flush)
        stream.partition.watchers.watch(stream.level, on_news)

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
        stream.partition.watchers.unwatch(stream.level, self._on_news)
        stream.partition.watchers.off_flush(self._on_flush)
        self._on_news = self._on_flush = _no_news
        stream.close()
