"""The files of segments that a leader pushes: written part by part, verified, and named when they are whole.

    <id>.seg.pushed.new ── parts, from the first byte to the last ── checksum, header, fsync ──> <id>.seg

A half file stays while the node runs, so a transfer that broke is continued behind its last byte. The next start
removes it, as all files that no manifest names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from tailrace.errors import BadSegment
from tailrace.segment.ends import END_BYTES, HEADER_BYTES, SegmentHeader, is_end_of
from tailrace.segment.errors import SegmentFormatError
from tailrace_server.host.disk import TEMPORARY, raise_if_no_space

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, File
    from tailrace_server.manifest import ManifestStore
    from tailrace_server.partition.partition import Partition


# The end of a half file's name. A copy of the same segment (received_files.py) writes to a file of its own.
_HALF = ".pushed" + TEMPORARY


class PushedFile(NamedTuple):
    """The id (16 bytes), the size and the XXH3-128 (16 bytes, the highest first) of a segment's file."""

    id: bytes
    nbytes: int
    checksum: bytes


class IncomingSegment:
    """The file of one segment of ``partition``. ``add`` and ``finish`` wait for the disk, and are called in turn.

    ``offset`` is the count of bytes that the file has.
    """

    def __init__(self, disk: Disk, path: str, partition: Partition, pushed: PushedFile) -> None:
        self.pushed = pushed
        self.path = path
        self.offset = 0
        self.is_active = True
        self._disk = disk
        self._header = SegmentHeader(partition.feed_id, partition.id, pushed.id)
        self._sum = xxhash.xxh3_128()
        self._summed_bytes = pushed.nbytes - END_BYTES
        self._file: File | None = None

    def add(self, data: bytes | memoryview) -> None:
        """Writes the next bytes. NoSpace, OSError: ``offset`` is as before."""
        try:
            if self._file is None:
                self._file = self._disk.create(self.path + _HALF)
            self._file.write_at(self.offset, (data,), len(data))
        except OSError as error:
            raise_if_no_space(error, f"for {self.path}")
            raise
        self._sum.update(memoryview(data)[: max(self._summed_bytes - self.offset, 0)])
        self.offset += len(data)

    def finish(self) -> None:
        """Verifies the file, makes it durable, and gives it its name. The name is durable once the directory is.

        Raises BadSegment if the bytes are not those of the offered segment; the file is removed. NoSpace, OSError.
        """
        wrong = self._why_wrong()
        if wrong:
            self.abandon()
            raise BadSegment(f"the file of segment {self.pushed.id.hex()} is not as the leader told: {wrong}")
        assert self._file is not None, "the file was written"
        try:
            self._file.sync()
        except OSError as error:
            raise_if_no_space(error, f"for {self.path}")
            raise
        self._file.close()
        self._file = None
        self._disk.rename(self.path + _HALF, self.path)

    def _why_wrong(self) -> str:
        if self._file is None or self.offset != self.pushed.nbytes:
            return f"it has {self.offset} bytes of {self.pushed.nbytes}"
        found = self._sum.intdigest()
        if found != int.from_bytes(self.pushed.checksum, "big"):
            return f"its checksum is {found:032x}, not {self.pushed.checksum.hex()}"
        # The checksum does not cover the last bytes, which have it.
        if not is_end_of(self._file.read_at(self._summed_bytes, END_BYTES), found):
            return "it does not end as a segment with this checksum does"
        try:
            header = SegmentHeader.unpack(self._file.read_at(0, HEADER_BYTES))
        except SegmentFormatError as error:
            return str(error)
        if header != self._header:
            return (
                f"it is segment {header.segment_id.hex()} of partition {header.partition} of the feed "
                f"{header.feed_id.hex()}"
            )
        return ""

    def abandon(self) -> None:
        """Removes the file, if it has not got its name. May be called again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            with contextlib.suppress(OSError):  # the next start removes it
                self._disk.remove(self.path + _HALF)


class IncomingSegments:
    """The segments that a node receives: at most one of a partition, and ``active_max`` at the same time."""

    def __init__(self, disk: Disk, store: ManifestStore, active_max: int) -> None:
        self._disk = disk
        self._store = store
        self._active_max = active_max
        self._segments: dict[Partition, IncomingSegment] = {}  # the one that was begun first comes first

    @property
    def are_full(self) -> bool:
        """Whether no other segment may be received now."""
        return sum(segment.is_active for segment in self._segments.values()) >= self._active_max

    def half_bytes(self, partition: Partition) -> int:
        """Returns the bytes of the half file of ``partition``: ``begin`` continues it, or removes it."""
        segment = self._segments.get(partition)
        return 0 if segment is None else segment.offset

    def begin(self, partition: Partition, pushed: PushedFile) -> IncomingSegment:
        """Returns the file to write: a half one of an earlier transfer of the same bytes, or a new one.

        The transfer is active until ``end`` or ``interrupt``.
        """
        segment = self._segments.pop(partition, None)
        if segment is not None and (segment.pushed != pushed or segment.offset == pushed.nbytes):
            segment.abandon()
            segment = None
        if segment is None:
            self._drop_idle(keep=self._active_max)
            path = self._store.segment_path(partition.feed_id, partition.id, pushed.id)
            segment = IncomingSegment(self._disk, path, partition, pushed)
        segment.is_active = True
        self._segments[partition] = segment
        return segment

    def interrupt(self, partition: Partition) -> None:
        """Notes that the transfer has broken. The half file stays, to be continued."""
        segment = self._segments.get(partition)
        if segment is not None:
            segment.is_active = False
            if partition.is_dropped:
                self.end(partition)

    def end(self, partition: Partition) -> None:
        """Forgets the transfer, and removes a file that was not given its name."""
        segment = self._segments.pop(partition, None)
        if segment is not None:
            segment.abandon()

    def forget(self, partition: Partition) -> None:
        """Forgets a partition whose feed was dropped, or that is led here.

        An active transfer is ended by its receiver.
        """
        segment = self._segments.get(partition)
        if segment is not None and not segment.is_active:
            self.end(partition)

    def close(self) -> None:
        """Removes all half files, when the node stops. Nothing is received any more."""
        for partition in list(self._segments):
            self.end(partition)

    def _drop_idle(self, keep: int) -> None:
        """Removes the oldest half files above ``keep``, so that broken transfers do not add up."""
        idle: Collection[Partition] = [p for p, segment in self._segments.items() if not segment.is_active]
        for partition in list(idle)[: max(len(idle) - keep, 0)]:
            self.end(partition)
