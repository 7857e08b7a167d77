"""The files of segments that are being received from another node, and that no chain has yet.

    <id>.seg.new ── all bytes, checksum, header, fsync ──> <id>.seg ── installed (received_chain.py) ──> in a chain

A transfer that is interrupted goes on behind the last byte, also with another checkpoint that has the same segment. The
start removes these files, since no manifest names them, but keeps whole ones beside an AHEAD (ahead_files.py): then
they are segments of a chain that is still coming.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence

import trio
import xxhash

from tailrace.copies.compare import Part
from tailrace.copies.layout import SegmentCopy
from tailrace.copies.receiver import why_wrong
from tailrace.errors import BadSegment
from tailrace.segment.ends import END_BYTES, HEADER_BYTES, SegmentHeader
from tailrace_server.host.disk import TEMPORARY, Disk, File, raise_if_no_space
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment, SegmentDamaged

log = logging.getLogger("tailrace.server")

# The partitions that are received at a time: while one waits for the disk, others use the network. It bounds the
# memory, too: two windows of at most 8 MiB each.
PARTITIONS_AT_ONCE = 4
# The seconds after which files that nothing has been added to are removed: their follower has found another way.
UNUSED_SECONDS = 600.0


class ReceivedSegment:
    """The file of one segment. Its methods wait for the disk; ``offset`` is the count of bytes that it has."""

    def __init__(self, disk: Disk, path: str, header: SegmentHeader, segment: SegmentCopy) -> None:
        self.segment = segment
        self.path = path
        self.offset = 0
        self.is_whole = False  # it is verified, and has its name
        self._disk = disk
        self._header = header
        self._sum = xxhash.xxh3_128()
        self._file: File | None = None

    def add(self, data: memoryview) -> None:
        """Writes the next bytes, and finishes the file with the last ones.

        Raises BadSegment if the bytes are not those of the segment, and forgets all of them; NoSpace, OSError.
        """
        try:
            if self._file is None:
                new = self.path + TEMPORARY
                self._file = self._disk.open(new, writable=True) if self.offset else self._disk.create(new)
            self._file.write_at(self.offset, [data], len(data))
            left = max(self.segment.nbytes - END_BYTES - self.offset, 0)
            self._sum.update(data[:left])
            self.offset += len(data)
            if self.offset == self.segment.nbytes:
                self._finish(self._file)
        except OSError as error:
            raise_if_no_space(error, f"at {self.path}")
            raise

    def _finish(self, file: File) -> None:
        try:
            file.sync()
            first = file.read_at(0, HEADER_BYTES)
            last = file.read_at(max(self.offset - END_BYTES, 0), END_BYTES)
            wrong = why_wrong(self.segment, self._header, self.offset, self._sum.intdigest(), first, last)
            if not wrong:
                self.close()
                self._disk.rename(self.path + TEMPORARY, self.path)
        except OSError:
            self.remove()  # a later fsync would not tell of bytes that are lost
            raise
        if wrong:
            self.remove()
            raise BadSegment(f"the file of segment {self.segment.id.hex()} is not as the node told: {wrong}")
        self.is_whole = True

    def close(self) -> None:
        """Closes the file; the bytes stay. May be called again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """Removes the file, and begins anew, also after an OSError: the next bytes empty a file that is left."""
        path = self.path if self.is_whole else self.path + TEMPORARY
        self.offset, self.is_whole = 0, False
        self._sum.reset()
        self.close()
        if self._disk.exists(path):
            self._disk.remove(path)


class PartitionFiles:
    """The received files of one partition."""

    def __init__(self, host: Host, store: ManifestStore, pins: Pins, partition: Partition) -> None:
        self.used_at = 0.0  # monotonic
        self.in_use = False
        self.wrong: tuple[bytes, ...] = ()  # the id of the segment that the last `store_parts` has found to be wrong
        self._host = host
        self._store = store
        self._pins = pins
        self._partition = partition
        self._segments: dict[bytes, ReceivedSegment] = {}
        self._lock = trio.Lock()  # files that come wait until those of the same names are gone

    @property
    def are_left(self) -> bool:
        """Whether there are files, or some are going to be written."""
        return self.in_use or bool(self._segments)

    @property
    def nbytes(self) -> int:
        """The bytes that have come."""
        return sum(segment.offset for segment in self._segments.values())

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs (after seq, last seq) of the whole files."""
        return [(s.segment.first_seq - 1, s.segment.last_seq) for s in self._segments.values() if s.is_whole]

    def recall(self) -> None:
        """Takes over the whole files that an earlier start has left, and that the chain does not have. OSError."""
        partition, disk = self._partition, self._host.disk
        named = {segment.path for segment in partition.chain.segments}
        for path in self._store.unnamed_segments(partition.feed_id, partition.id, named):
            try:
                segment = Segment.open(disk, path)
            except SegmentDamaged as error:
                log.warning("a received segment comes again: %s", error)
                disk.remove(path)
                continue
            identity, nbytes, checksum = segment.identity, segment.nbytes, segment.read_checksum()
            segment.close()
            copy = SegmentCopy(identity.segment_id, nbytes, checksum, identity.after_seq + 1, identity.last_seq)
            found = self._of(copy)
            found.offset, found.is_whole = nbytes, True

    def offset(self, segment: SegmentCopy) -> int:
        """Returns the count of bytes that are here of ``segment``."""
        found = self._segments.get(segment.id)
        return 0 if found is None or found.segment != segment else found.offset

    async def store_parts(self, received: Sequence[tuple[Part, memoryview]]) -> None:
        """Writes parts behind the bytes that are there. Raises BadSegment, NoSpace, OSError."""
        self.used_at = self._host.clock.monotonic()
        self.wrong = ()
        segments = [self._of(part.segment) for part, _ in received]

        def store() -> None:
            for segment, (part, data) in zip(segments, received, strict=True):
                assert segment.offset == part.offset, "parts come in their order"
                try:
                    segment.add(data)
                except BadSegment:
                    self.wrong = (part.segment.id,)
                    raise

        async with self._lock:
            await self._host.workers.in_thread(store)

    def _of(self, segment: SegmentCopy) -> ReceivedSegment:
        partition, found = self._partition, self._segments.get(segment.id)
        if found is None or found.segment != segment:
            if found is not None:
                found.close()
            path = self._store.segment_path(partition.feed_id, partition.id, segment.id)
            header = SegmentHeader(partition.feed_id, partition.id, segment.id)
            found = self._segments[segment.id] = ReceivedSegment(self._host.disk, path, header, segment)
        return found

    def close(self) -> None:
        """Closes the files. They stay, and may be continued."""
        for segment in self._segments.values():
            segment.close()

    def installed(self, ids: Iterable[bytes]) -> None:
        """Notes that the files of these segments are in a chain, and are not removed any more."""
        for id in ids:
            self._segments.pop(id, None)

    async def remove(self, kept: Container[bytes] = ()) -> None:
        """Removes all files but those that the chain has or had: `Pins` knows when a retired one may go. OSError.

        Also stay those of the segments ``kept`` (ids). A cancellation waits until the others are gone.
        """
        left = {id: segment for id, segment in self._segments.items() if id in kept}
        others = [segment for id, segment in self._segments.items() if id not in kept]
        gone = [segment for segment in others if not (segment.is_whole and self._is_owned(segment))]
        self._segments = left

        def remove() -> None:
            for segment in gone:
                segment.remove()

        if gone:
            with trio.CancelScope(shield=True):  # nothing would remove files that are forgotten
                async with self._lock:
                    await self._host.workers.in_thread(remove)

    def _is_owned(self, received: ReceivedSegment) -> bool:
        """Returns whether the chain has the segment, or had it, and its file is still there: it came another way."""
        partition, pins = self._partition, self._pins
        segments = (*partition.chain.segments, *pins.retired_of(partition.feed_id, partition.id))
        return any(segment.path == received.path for segment in segments) or pins.is_leaving(received.segment.id)


class ReceivedFiles:
    """The received files of a node, by partition. A node has one."""

    def __init__(self, host: Host, store: ManifestStore, pins: Pins, is_unsure: Callable[[Partition], bool]) -> None:
        """``is_unsure`` returns whether the manifest on disk may name received files that were not installed."""
        self._host = host
        self._store = store
        self._pins = pins
        self._is_unsure = is_unsure
        self._files: dict[Partition, PartitionFiles] = {}
        self._limiter: trio.CapacityLimiter | None = None

    @property
    def limiter(self) -> trio.CapacityLimiter:
        """Bounds the partitions that are received at a time."""
        if self._limiter is None:  # a limiter belongs to the loop that it is made in
            self._limiter = trio.CapacityLimiter(PARTITIONS_AT_ONCE)
        return self._limiter

    @property
    def nbytes(self) -> int:
        """The bytes that have come of files that no chain has yet."""
        return sum(files.nbytes for files in self._files.values())

    def of(self, partition: Partition) -> PartitionFiles:
        """Returns the files of ``partition``, to receive more of them."""
        if partition not in self._files:
            self._files[partition] = PartitionFiles(self._host, self._store, self._pins, partition)
        found = self._files[partition]
        found.used_at = self._host.clock.monotonic()
        return found

    def recall(self, partition: Partition) -> None:
        """Takes over the whole files of ``partition`` that an earlier start has left. For the start. OSError."""
        self.of(partition).recall()

    def runs(self, partition: Partition) -> list[tuple[int, int]]:
        """Returns the runs (after seq, last seq) of the whole files of ``partition``, which no chain has yet."""
        found = self._files.get(partition)
        return [] if found is None else found.runs

    def installed(self, partition: Partition, ids: Iterable[bytes]) -> None:
        """Notes that the files of these segments of ``partition`` are in its chain, and are not removed any more."""
        if partition in self._files:
            self._files[partition].installed(ids)

    async def discard(self, partition: Partition) -> None:
        """Removes the files of ``partition`` that are in no chain. OSError."""
        found = self._files.get(partition)
        if found is not None:
            await found.remove()
            if not found.are_left:
                self._files.pop(partition, None)

    async def expire(self) -> None:
        """Removes the files to which nothing was added for UNUSED_SECONDS. OSError.

        Files that the manifest on disk may name stay: after a crash the start would need them.
        """
        oldest = self._host.clock.monotonic() - UNUSED_SECONDS
        for partition, files in list(self._files.items()):
            is_old = not files.in_use and files.used_at <= oldest
            if is_old and not self._is_unsure(partition) and self._files.get(partition) is files:
                await self.discard(partition)
