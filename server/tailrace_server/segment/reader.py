"""A segment of the server: opened through its disk, looked up without waiting for it, and verified whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.segment.footer import Footer
from tailrace.segment.format import FILE_SUM_BYTES, FILE_SUM_OFFSET, TRAILER_BYTES, file_sum_in
from tailrace.segment.open_segment import OpenSegment
from tailrace_server.segment.file import NotCached, Read, SegmentFile
from tailrace_server.segment.verify import Problem, verify_segment

if TYPE_CHECKING:
    from tailrace.block.arrays import U64
    from tailrace.block.found import FoundRow, FoundRows
    from tailrace.segment.file import Kept
    from tailrace_server.host.open_files import LentFile, Opener


class Segment(OpenSegment[SegmentFile]):
    """An immutable segment. Its methods may be called by several threads at once; all that read raise SegmentDamaged.

    A removed file can be read until ``close``, unless its descriptor is shared: then it is closed before it is removed.
    """

    @classmethod
    def open(cls, files: Opener, path: str) -> Segment:
        """Opens the segment at ``path``; the caller closes it. SegmentDamaged; OSError if it can't be opened.

        ``files`` is a disk, or descriptors that are shared with other segments.
        """
        file = SegmentFile(files, path)
        try:
            return cls(file, Footer.read(file))
        except BaseException:
            file.close()
            raise

    def find(self, key: bytes, hash_: int, read: Read = SegmentFile.read, kept: Kept | None = None) -> FoundRow | None:
        """Returns the newest row of ``key``, whose hash is ``hash_``; None if there is no row of it. SegmentDamaged.

        Reads pages and blocks by ``read``; that of a `Reads` does not wait for the disk, and raises NotCached instead.
        Those in ``kept`` are not read again.
        """
        try:
            return super().find(key, hash_, read, kept)
        except NotCached as missing:
            missing.segment = self
            raise

    def find_all(
        self,
        keys: Sequence[bytes],
        hashes: Sequence[int] | U64,
        room: Callable[[], int],
        read: Read = SegmentFile.read,
        kept: Kept | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[list[int], FoundRows]]:
        """Yields the newest rows of ``keys``, as `OpenSegment.find_all`; reads as ``find``. SegmentDamaged."""
        try:
            yield from super().find_all(keys, hashes, room, read, kept, out_of_time)
        except NotCached as missing:
            missing.segment = self
            raise

    def read_checksum(self) -> bytes:
        """Returns the XXH3-128 of the file that its trailer has, 16 bytes, the highest first."""
        end = self.nbytes - TRAILER_BYTES + FILE_SUM_OFFSET
        return file_sum_in(self._file.read(end, self.nbytes - end)).to_bytes(FILE_SUM_BYTES, "big")

    def lend_cached(self, offset: int, nbytes: int) -> LentFile | None:
        """Lends the descriptor for a part of the file, which is sent by it. None if that would wait for the disk."""
        return self._file.lend_cached(offset, nbytes)

    def load(self, offset: int, nbytes: int) -> None:
        """Brings a part of the file into memory, unverified. Overloaded if no descriptor is free."""
        self._file.load(offset, nbytes)

    def read_part(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes of the file from ``offset`` on, unverified. Overloaded if no descriptor is free."""
        return self._file.read(offset, nbytes)

    def verify(self, progress: Callable[[int], None] | None = None) -> list[Problem]:
        """Reads everything, and compares it with itself. Returns the problems that it found.

        ``progress`` is called with the count of bytes after each read, of a block or less. Reads the whole file, so not
        on the loop. Takes 9 bytes of memory a row.
        """
        return verify_segment(self._file, progress)
