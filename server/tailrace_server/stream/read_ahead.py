"""Chooses the parts of files that a thread brings into the system's memory before a stream needs them. Pure.

    the loop reads chunks of a segment ──> [ at least AHEAD_BYTES / 2 of the file, in memory ] ... or of the next one
    one is not in memory: missed ──> next: a part for a thread ──> read

Many disks are as fast as a consumer, but not if each waits for the other after every chunk.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace_server.partition.chain import Chain
from tailrace_server.segment import Segment
from tailrace_server.stream.segment_cursor import SegmentCursor

# The bytes that a thread reads at once. It begins again when the stream has used half of them.
AHEAD_BYTES = 4 * 1024 * 1024


class Part(NamedTuple):
    """A part of a segment's file."""

    segment: Segment
    offset: int
    nbytes: int

    def bring(self) -> bool:
        """Reads the part, in a thread. Returns False if all of it was in memory. SegmentDamaged, Overloaded."""
        lent = self.segment.lend_cached(self.offset, self.nbytes)
        if lent is not None:
            lent.give_back()
            return False
        self.segment.load(self.offset, self.nbytes)
        return True


class ReadAhead:
    """Reads ahead of one stream of a connection: the last one whose chunk was not in memory.

    Only its own methods change its fields. No memory of the node is used, and one thread at a time.
    """

    def __init__(self) -> None:
        # The place behind the last part; None if no stream has to wait for the disk.
        self._segment: Segment | None = None
        self._end = 0
        self._is_reading = False

    def missed(self, part: SegmentCursor) -> None:
        """Notes that the last chunk of ``part`` was not in memory: what follows it will not be, either."""
        if not self._is_reading:
            self._segment, self._end = part.segment, part.offset

    def next(self, part: SegmentCursor, chain: Chain) -> Part | None:
        """Returns the part that a thread should read now, while a chunk of ``part`` is sent; None if it need not read.

        ``chain``: that of the partition. The caller calls ``read`` once that is done.
        """
        segment = part.segment
        if self._is_reading or segment is not self._segment or self._end - part.offset > AHEAD_BYTES // 2:
            return None
        begin, end = self._end, segment.place_of(segment.blocks)[0]
        if begin >= end:
            last_seq = segment.identity.last_seq
            following = chain.after(last_seq)
            if not following:
                return None
            segment = following[0]  # it may have been compacted of some, and hold rows that were sent
            begin, end = segment.place_of(segment.block_after(last_seq))[0], segment.place_of(segment.blocks)[0]
        if begin >= end:  # it is lost, or has no rows
            return None
        nbytes = min(end - begin, AHEAD_BYTES)
        self._segment, self._end, self._is_reading = segment, begin + nbytes, True
        return Part(segment, begin, nbytes)

    def read(self, *, was_missing: bool) -> None:
        """Notes that a part was read. ``was_missing``: it was not in memory before."""
        self._is_reading = False
        if not was_missing:
            self._segment = None
