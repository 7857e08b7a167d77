"""The chain of a partition's segments, oldest first, and the pins of their readers.

Chain    (0, 120] ── (120, 400] ── (400, 401]       immutable: each change makes a new chain
Pins     a reader pins the segments that it reads; a segment that has left the chain is removed after its last reader
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence

from tailrace.block import Block
from tailrace.block.arrays import U64, Indices
from tailrace.block.found import FoundRows
from tailrace.segment.ends import VERSION_PLAIN
from tailrace.segment.file import Kept
from tailrace_server.blocks import FoundRow
from tailrace_server.segment import Problem, Read, Segment, SegmentDamaged, SegmentFile, SegmentIdentity


class LostSegment(Segment):
    """A segment of the manifest that cannot be opened. Every read raises the error of the open.

    It keeps its place in the chain, so that the next manifest names it too, and the file can be put back.
    """

    def __init__(self, identity: SegmentIdentity, nbytes: int, why: SegmentDamaged) -> None:
        """``identity`` and ``nbytes`` are those of the manifest, ``why`` is the error of the open."""
        self.identity, self.nbytes, self.path = identity, nbytes, why.path
        self.blocks = 1  # a reader tries to read it, and fails
        self.version = VERSION_PLAIN  # it may be another one
        self._why = why

    def block_after(self, seq: int) -> int:
        return 0

    def block_bytes(self, number: int) -> int:
        return 0  # not known: the read that follows fails

    def place_of(self, number: int) -> tuple[int, int]:
        return 0, 0  # not known, either

    def read_blocks(self, index: int, bytes_max: int, read: object = None) -> tuple[list[Block], int]:
        raise self._why.with_traceback(None)

    def read_block(self, number: int) -> Block:
        raise self._why.with_traceback(None)

    @property
    def last_row_seq(self) -> int:
        return self.identity.after_seq  # its rows above are not known

    def find(self, key: bytes, hash_: int, read: Read = SegmentFile.read, kept: Kept | None = None) -> FoundRow | None:
        raise self._why.with_traceback(None)

    def find_all(
        self,
        keys: Sequence[bytes],
        hashes: Sequence[int] | U64,
        room: Callable[[], int],
        read: Read = SegmentFile.read,
        kept: Kept | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[list[int], FoundRows]]:
        raise self._why.with_traceback(None)

    def counts_of(self, hashes: U64, read: Read = SegmentFile.read) -> Indices:
        raise self._why.with_traceback(None)

    def read_checksum(self) -> bytes:
        raise self._why.with_traceback(None)

    def verify(self, progress: Callable[[int], None] | None = None) -> list[Problem]:
        return [Problem(self._why.offset, self._why.why)]

    def close(self) -> None:
        """Does nothing: no file is open."""


class Chain:
    """The segments of a partition. Invariant: each begins at the end of the one before it."""

    __slots__ = ("nbytes", "segments")

    def __init__(self, segments: Sequence[Segment] = ()) -> None:
        self.segments = tuple(segments)
        self.nbytes = sum(segment.nbytes for segment in self.segments)

    @property
    def flushed_seq(self) -> int:
        """The last seq that the segments cover; 0 in an empty chain."""
        return self.segments[-1].identity.last_seq if self.segments else 0

    @property
    def newest_timestamp(self) -> int:
        """The last timestamp of all rows, in microseconds; 0 in an empty chain."""
        return max((segment.identity.newest_timestamp for segment in self.segments), default=0)

    def through(self, seq: int) -> Chain:
        """Returns the chain of the segments that end at or below ``seq``."""
        return Chain([segment for segment in self.segments if segment.identity.last_seq <= seq])

    def after(self, seq: int) -> tuple[Segment, ...]:
        """Returns the segments with seqs above ``seq``."""
        for index, segment in enumerate(self.segments):
            if segment.identity.last_seq > seq:
                return self.segments[index:]
        return ()

    def end_at(self, seq: int) -> int:
        """Returns the last end of a segment at or below ``seq``, which is at most ``flushed_seq``; 0 below the first.

        A stream may stop at the end of a segment, but not inside one.
        """
        for segment in reversed(self.segments):
            identity = segment.identity
            if identity.last_seq <= seq:
                return identity.last_seq
            if identity.after_seq <= seq:
                return identity.after_seq
        return seq if not self.segments else 0

    def with_flushed(self, segment: Segment) -> Chain:
        """Returns this chain with ``segment`` at its end."""
        assert segment.identity.after_seq == self.flushed_seq or not self.segments, "segments of a chain are contiguous"
        return Chain((*self.segments, segment))

    def with_compacted(self, inputs: Sequence[Segment], result: Segment) -> Chain:
        """Returns this chain with ``result`` in the place of ``inputs``, which are neighbours in it."""
        first = self.segments.index(inputs[0])
        last = first + len(inputs)
        assert self.segments[first:last] == tuple(inputs), "only neighbours can be compacted into one segment"
        return Chain((*self.segments[:first], result, *self.segments[last:]))

    def without_oldest(self, count: int) -> Chain:
        """Returns this chain without its ``count`` oldest segments."""
        return Chain(self.segments[count:])

    def find(self, key: bytes, hash_: int, read: Read = SegmentFile.read, kept: Kept | None = None) -> FoundRow | None:
        """Returns the newest row of ``key``, whose hash is ``hash_``. Raises SegmentDamaged, and errors of ``read``."""
        for segment in reversed(self.segments):
            found = segment.find(key, hash_, read, kept)
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
    """The segments of a node that are being read. A segment that has left its chain is free after its last reader."""

    def __init__(self) -> None:
        self._readers: collections.Counter[Segment] = collections.Counter()
        self._retired: set[Segment] = set()
        self._free: list[Segment] = []
        self._leaving: list[Segment] = []  # given out by take_free: their files are being removed

    def pin(self, segment: Segment) -> None:
        """Notes that a reader begins to read ``segment``."""
        self._readers[segment] += 1

    def unpin(self, segment: Segment) -> None:
        """Notes that a reader has ended reading ``segment``."""
        self._readers[segment] -= 1
        if not self._readers[segment]:
            del self._readers[segment]
            if segment in self._retired:
                self._retired.remove(segment)
                self._free.append(segment)

    def retire(self, segments: Iterable[Segment]) -> None:
        """Notes that ``segments`` have left their chain, and that the manifest without them is durable."""
        for segment in segments:
            if segment in self._readers:
                self._retired.add(segment)
            else:
                self._free.append(segment)

    def take_free(self) -> list[Segment]:
        """Returns the retired segments without readers, each once. The caller closes and removes them."""
        free, self._free = self._free, []
        self._leaving += free
        return free

    def removed(self, segments: Iterable[Segment]) -> None:
        """Notes that the files of ``segments``, which ``take_free`` has given out, are gone or were retired again."""
        gone = set(segments)
        self._leaving = [segment for segment in self._leaving if segment not in gone]

    def retired_of(self, feed_id: bytes, partition: int) -> list[Segment]:
        """Returns the retired segments of a partition that are still being read: their files stay meanwhile."""
        return [s for s in self._retired if (s.identity.feed_id, s.identity.partition) == (feed_id, partition)]

    def is_leaving(self, segment_id: bytes) -> bool:
        """Returns whether the file of a retired segment is being removed, or will be."""
        return any(segment.identity.segment_id == segment_id for segment in (*self._free, *self._leaving))

    def reinstate(self, segments: Iterable[Segment]) -> None:
        """Notes that pinned ``segments``, retired or not, are in a chain again."""
        self._retired.difference_update(segments)

    def reads_feed(self, feed_id: bytes) -> bool:
        """Returns whether any segment of the feed is being read."""
        return any(segment.identity.feed_id == feed_id for segment in self._readers)

    def is_retired(self, segment: Segment) -> bool:
        """Returns whether ``segment`` is kept only for its readers."""
        return segment in self._retired

    @property
    def retired_bytes(self) -> int:
        """The bytes on disk that are kept only for readers."""
        return sum(segment.nbytes for segment in self._retired)
