"""A partition's segments, oldest first, and who is still reading which.

Chain    (0, 120] ── (120, 400] ── (400, 401]       immutable: each change makes another one
Pins     a reader names the segments that it reads; one that has left the chain is removed after the last of them
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence

from tailrace.block import Block
from tailrace_server.blocks import FoundRow
from tailrace_server.segment import Problem, Read, Segment, SegmentDamaged, SegmentFile, SegmentIdentity


class LostSegment(Segment):
    """A segment that the manifest names and that cannot be opened. Whoever would have to read it is told why.

    It keeps its place in the chain, so that the next manifest names it too, and the file can be put back.
    """

    def __init__(self, identity: SegmentIdentity, nbytes: int, why: SegmentDamaged) -> None:
        """``identity`` and ``nbytes`` are what the manifest says, ``why`` what became of the file."""
        self.identity, self.nbytes, self.path = identity, nbytes, why.path
        self.blocks = 1  # a reader looks for one, and fails
        self._why = why

    def block_after(self, seq: int) -> int:
        return 0

    def read_blocks(self, index: int, bytes_max: int) -> tuple[list[Block], int]:
        raise self._why.with_traceback(None)

    def read_block(self, number: int) -> Block:
        raise self._why.with_traceback(None)

    @property
    def last_row_seq(self) -> int:
        return self.identity.after_seq  # it has rows above, and nobody knows which

    def find(self, key: bytes, hash_: int, read: Read = SegmentFile.read) -> FoundRow | None:
        raise self._why.with_traceback(None)

    def verify(self, progress: Callable[[int], None] | None = None) -> list[Problem]:
        return [Problem(self._why.offset, self._why.why)]

    def close(self) -> None:
        """Nothing: there is no file."""


class Chain:
    """The segments of a partition; each begins where the one before it ends."""

    __slots__ = ("nbytes", "segments")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self.segments = tuple(segments)
        self.nbytes = sum(segment.nbytes for segment in self.segments)

    @property
    def flushed_seq(self) -> int:
        """The last seq that the segments cover; 0 where there are none."""
        return self.segments[-1].identity.last_seq if self.segments else 0

    @property
    def newest_timestamp(self) -> int:
        """The last stamp of all rows, in microseconds; 0 where there are none."""
        return max((segment.identity.newest_timestamp for segment in self.segments), default=0)

    def through(self, seq: int) -> Chain:
        """The segments that end at or below ``seq``."""
        return Chain([segment for segment in self.segments if segment.identity.last_seq <= seq])

    def after(self, seq: int) -> tuple[Segment, ...]:
        """The segments that cover anything above ``seq``."""
        for index, segment in enumerate(self.segments):
            if segment.identity.last_seq > seq:
                return self.segments[index:]
        return ()

    def end_at(self, seq: int) -> int:
        """The last end of a segment at or below ``seq``, which is at most ``flushed_seq``; 0 below the first one.

        There a reader may stand, and not between two of them.
        """
        for segment in reversed(self.segments):
            identity = segment.identity
            if identity.last_seq <= seq:
                return identity.last_seq
            if identity.after_seq <= seq:
                return identity.after_seq
        return seq if not self.segments else 0

    def with_flushed(self, segment: Segment) -> Chain:
        """This chain and ``segment`` behind it."""
        assert segment.identity.after_seq == self.flushed_seq or not self.segments, "segments of a chain are contiguous"
        return Chain((*self.segments, segment))

    def with_folded(self, folded: Sequence[Segment], result: Segment) -> Chain:
        """This chain with ``result`` in the place of ``folded``, which are neighbours in it."""
        first = self.segments.index(folded[0])
        last = first + len(folded)
        assert self.segments[first:last] == tuple(folded), "only neighbours can be folded into one segment"
        return Chain((*self.segments[:first], result, *self.segments[last:]))

    def without_oldest(self, count: int) -> Chain:
        """This chain without its ``count`` oldest segments."""
        return Chain(self.segments[count:])

    def find(self, key: bytes, hash_: int, read: Read = SegmentFile.read) -> FoundRow | None:
        """The newest row of ``key``, whose hash is ``hash_``. Raises SegmentDamaged, and what ``read`` does."""
        for segment in reversed(self.segments):
            found = segment.find(key, hash_, read)
            if found is not None:
                return found
        return None

    def check(self) -> None:
        """Walks the invariants; AssertionError names the one that does not hold."""
        for older, newer in zip(self.segments, self.segments[1:], strict=False):
            assert newer.identity.after_seq == older.identity.last_seq, "a gap between two segments"
        for segment in self.segments:
            assert segment.identity.after_seq <= segment.identity.last_seq, "a segment ends before it begins"


class Pins:
    """Which segments of a node are being read. One that no chain has any more is free once nobody reads it."""

    def __init__(self) -> None:
        self._readers: collections.Counter[Segment] = collections.Counter()
        self._retired: set[Segment] = set()
        self._free: list[Segment] = []

    def pin(self, segment: Segment) -> None:
        """A reader begins with ``segment``."""
        self._readers[segment] += 1

    def unpin(self, segment: Segment) -> None:
        """A reader has ended with ``segment``."""
        self._readers[segment] -= 1
        if not self._readers[segment]:
            del self._readers[segment]
            if segment in self._retired:
                self._retired.remove(segment)
                self._free.append(segment)

    def retire(self, segments: Iterable[Segment]) -> None:
        """These have left their chain, and the manifest that says so is durable."""
        for segment in segments:
            if segment in self._readers:
                self._retired.add(segment)
            else:
                self._free.append(segment)

    def take_free(self) -> list[Segment]:
        """Retired segments that nobody reads any more, each once: to be closed and removed by the caller."""
        free, self._free = self._free, []
        return free

    def reads_feed(self, feed_id: bytes) -> bool:
        """True while a reader of any segment of the feed has not ended."""
        return any(segment.identity.feed_id == feed_id for segment in self._readers)

    def is_retired(self, segment: Segment) -> bool:
        """``segment`` is kept only because somebody reads it."""
        return segment in self._retired

    @property
    def retired_bytes(self) -> int:
        """What is kept on disk only because somebody reads it."""
        return sum(segment.nbytes for segment in self._retired)
