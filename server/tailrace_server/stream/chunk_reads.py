"""The chunks of segments that the streams of one connection hold in memory, and the streams that wait for one. Pure.

QUEUED ──> start ──> LOADING, a thread reads ──> finish ──> SENDING ──> release, or the next chunk
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from tailrace_server.stream.segment_cursor import CHUNK_BYTES, SegmentCursor
from tailrace_server.stream.stream_slot import StreamSlot
from tailrace_server.stream.stream_state import StreamEvent, StreamState

# The most streams that may hold a chunk of a segment, or have one read for them; fewer if the window has room for
# fewer.
LOADS_MAX = 8


def chunks_max(window_bytes: int, *, is_full: bool) -> int:
    """Returns how many streams may have a chunk. If the window is smaller than one, it has to have room first."""
    if window_bytes < CHUNK_BYTES and is_full:
        return 0
    return min(max(window_bytes // CHUNK_BYTES, 1), LOADS_MAX)


class ChunkReads:
    """Bounds the chunks of one connection. Streams get theirs in the order in which they came to need one."""

    def __init__(self) -> None:
        # Invariant: the slots of the streams that are QUEUED.
        self.queue: collections.OrderedDict[StreamSlot, None] = collections.OrderedDict()
        # Invariant: the number of slots with holds_chunk, including ended ones that a thread still reads for.
        self._chunks = 0

    def add(self, slot: StreamSlot) -> None:
        """Queues a stream whose next block has to be read. It has used up the chunk that it had."""
        self.release(slot)
        slot.move(StreamEvent.CHUNK_MISSING)
        self.queue[slot] = None

    def start(self, chunks_max: int) -> Iterator[tuple[StreamSlot, SegmentCursor]]:
        """Yields the streams whose chunk is to be read now, and the part to read it from.

        There are at most ``chunks_max`` chunks then. Each read ends with `finish`. A caller that takes no more of them
        leaves the others in the queue.
        """
        while self.queue and self._chunks < chunks_max:
            slot, _ = self.queue.popitem(last=False)
            part = slot.stream.cursor_to_load
            assert part is not None, "a stream waits for its next chunk"
            slot.start_read()
            self._chunks += 1
            yield slot, part

    def finish(self, slot: StreamSlot) -> bool:
        """Notes that a read ended. Returns False if the stream ended before it; then the chunk is dropped."""
        if slot.state is StreamState.ENDED:
            self.release(slot)
            return False
        return True

    def release(self, slot: StreamSlot) -> None:
        """Makes room for another chunk if the stream has used up its own."""
        if slot.drop_chunk():
            self._chunks -= 1

    def forget(self, slot: StreamSlot) -> None:
        """Drops a stream that is about to end. If a thread reads for it, its chunk counts until the read is over."""
        if slot.state is StreamState.QUEUED:
            del self.queue[slot]
        elif slot.state is not StreamState.LOADING:
            self.release(slot)
