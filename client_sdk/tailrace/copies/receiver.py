"""Receives one segment's file: writes it from its first byte to its last, verifies it, and gives it its name.

    <id>.seg.new ── all bytes, checksum, header, fsync ──> <id>.seg

A half file stays if a fetch ends early, and the next one goes on behind its last byte.
"""

from __future__ import annotations

import contextlib
import os

import xxhash

from tailrace.copies.layout import TEMPORARY_SUFFIX, SegmentCopy
from tailrace.errors import BadSegment
from tailrace.segment.ends import END_BYTES, HEADER_BYTES, SegmentHeader, is_end_of
from tailrace.segment.errors import SegmentFormatError

_READ_BYTES = 1024 * 1024
# The disk begins to write after this many bytes, so that the fsync at the end has little left.
_WRITE_OUT_BYTES = 4 * 1024 * 1024


def with_path(error: OSError, path: str) -> OSError:
    """Returns the same error with the path of the file, which errors of writes and fsyncs lack."""
    return OSError(error.errno, error.strerror, path)


class SegmentReceiver:
    """The file of ``segment`` in ``folder``. Its methods wait for the disk, and are called one at a time.

    ``offset`` is the count of bytes that the file has; the next ones begin there.
    """

    def __init__(self, folder: str, feed_id: bytes, partition: int, segment: SegmentCopy) -> None:
        """Opens the half file that an earlier fetch left, or a new one. OSError."""
        self.segment = segment
        self.path = os.path.join(folder, segment.file_name)
        self.offset = 0
        self._header = SegmentHeader(feed_id, partition, segment.id)
        self._sum = xxhash.xxh3_128()
        self._summed_bytes = segment.nbytes - END_BYTES
        self._written_out = 0  # the bytes whose writing to the disk has begun
        self._fd = os.open(self.path + TEMPORARY_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._resume()
        except BaseException:
            self.close()
            raise

    def _resume(self) -> None:
        """Reads the bytes that are there, for their checksum; drops them if they are too many."""
        if os.fstat(self._fd).st_size > self.segment.nbytes:
            os.ftruncate(self._fd, 0)
        while data := os.pread(self._fd, _READ_BYTES, self.offset):
            self._add_to_sum(data)
        self._written_out = self.offset

    def add(self, data: bytes | memoryview) -> None:
        """Writes the next bytes. OSError: the file ends somewhere in them, and a later receiver goes on from there."""
        view = memoryview(data)
        place = self.offset
        while view:
            try:
                written = os.pwrite(self._fd, view, place)
            except OSError as error:
                raise with_path(error, self.path) from None
            view, place = view[written:], place + written
        self._add_to_sum(data)
        if self.offset - self._written_out >= _WRITE_OUT_BYTES:
            self._begin_write_out()

    def _begin_write_out(self) -> None:
        """Has the system write what is new to the disk, without waiting for it: it does so to dirty pages on Linux."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):  # not every file system takes advice
                os.posix_fadvise(self._fd, self._written_out, self.offset - self._written_out, os.POSIX_FADV_DONTNEED)
        self._written_out = self.offset

    def _add_to_sum(self, data: bytes | memoryview) -> None:
        left = max(self._summed_bytes - self.offset, 0)
        self._sum.update(memoryview(data)[:left])
        self.offset += len(data)

    def finish(self) -> None:
        """Verifies the file, makes it durable, and gives it its name. The name is durable once the directory is.

        Raises BadSegment if the bytes are not those of the segment; the file is removed.
        """
        try:
            wrong = self._why_wrong()
            if wrong:
                os.unlink(self.path + TEMPORARY_SUFFIX)
                raise BadSegment(f"the file of segment {self.segment.id.hex()} is not as the node told: {wrong}")
            self._sync()
        except OSError as error:
            raise with_path(error, self.path) from None
        finally:
            self.close()
        os.replace(self.path + TEMPORARY_SUFFIX, self.path)

    def _sync(self) -> None:
        """Makes the file durable. OSError: it is removed, since a later fsync would not tell of bytes that are lost."""
        try:
            os.fsync(self._fd)
        except OSError:
            os.unlink(self.path + TEMPORARY_SUFFIX)
            raise

    def _why_wrong(self) -> str:
        if self.offset != self.segment.nbytes:
            return f"it has {self.offset} bytes of {self.segment.nbytes}"
        first, last = os.pread(self._fd, HEADER_BYTES, 0), os.pread(self._fd, END_BYTES, self._summed_bytes)
        return why_wrong(self.segment, self._header, self.offset, self._sum.intdigest(), first, last)

    def close(self) -> None:
        """Closes the file; a half one stays. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def why_wrong(segment: SegmentCopy, expected: SegmentHeader, nbytes: int, found: int, first: bytes, last: bytes) -> str:
    """Returns why a received file is not ``segment``; "" if it is. Pure.

    Args:
        segment: The segment as the node has told it.
        expected: Its header.
        nbytes: The size of the file, that of the segment.
        found: The XXH3-128 of all bytes but the last END_BYTES.
        first: The first HEADER_BYTES of the file.
        last: Its last END_BYTES, which have the checksum.
    """
    if nbytes != segment.nbytes:
        return f"it has {nbytes} bytes of {segment.nbytes}"
    if nbytes < HEADER_BYTES + END_BYTES:
        return f"its {nbytes} bytes are too few for a segment"
    if found != int.from_bytes(segment.checksum, "big"):
        return f"its checksum is {found:032x}, not {segment.checksum.hex()}"
    if not is_end_of(last, found):
        return "it does not end as a segment with this checksum does"
    try:
        header = SegmentHeader.unpack(first)
    except SegmentFormatError as error:
        return str(error)
    if header != expected:
        return (
            f"it is segment {header.segment_id.hex()} of partition {header.partition} of the feed "
            f"{header.feed_id.hex()}"
        )
    return ""
