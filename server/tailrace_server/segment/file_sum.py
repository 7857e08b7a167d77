"""Compares a segment's file with the checksum at its end, piece by piece: what a client does that copies it."""

from __future__ import annotations

import xxhash

from tailrace.segment.ends import END_BYTES, is_end_of
from tailrace_server.segment.errors import SegmentDamaged
from tailrace_server.segment.reader import Segment


class FileSum:
    """One pass over the file of ``segment``. Wait for the disk in ``read``, so call it in a thread, in turns."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._offset = 0
        self._sum = xxhash.xxh3_128()

    @property
    def is_done(self) -> bool:
        """Whether the whole file was read."""
        return self._offset == self._segment.nbytes

    def read(self, nbytes: int) -> int:
        """Reads the next ``nbytes`` at most, and returns how many bytes it has read.

        Raises SegmentDamaged if the disk can't read them, or, with the last ones, if the file has not the bytes that
        its checksum is of; Overloaded if no descriptor is free.
        """
        segment, summed_bytes = self._segment, self._segment.nbytes - END_BYTES
        is_end = self._offset >= summed_bytes
        nbytes = min(nbytes, (segment.nbytes if is_end else summed_bytes) - self._offset)
        data = segment.read_part(self._offset, nbytes)
        self._offset += nbytes
        if not is_end:
            self._sum.update(data)
        elif not is_end_of(data, self._sum.intdigest()):
            why = f"its bytes have the checksum {self._sum.intdigest():032x}, and its end is {data.hex()}"
            raise SegmentDamaged(segment.path, 0, why)
        return nbytes
