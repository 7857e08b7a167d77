"""A segment's file: reads that fail name the file and the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.segment.errors import SegmentDamaged

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class SegmentFile:
    """An open file of ``nbytes`` bytes (as it was when it was opened) at ``path``. Reads may come from any thread."""

    def __init__(self, disk: Disk, path: str) -> None:
        """OSError where the file can't be opened; that says nothing about its bytes."""
        self.path = path
        self._file = disk.open(path)
        self.nbytes = self._file.size()

    def read(self, offset: int, nbytes: int) -> bytes:
        """``nbytes`` bytes from ``offset`` on. SegmentDamaged where they are not there, or the disk can't read them."""
        try:
            data = self._file.read_at(offset, nbytes)
        except OSError as error:  # EIO: the disk itself says that it lost something
            raise self.damaged(offset, f"the disk can't read it: {error.strerror}") from error
        if len(data) != nbytes:
            raise self.damaged(offset, f"{nbytes} bytes were expected here, the file ends after {len(data)}")
        return data

    def damaged(self, offset: int, why: object) -> SegmentDamaged:
        """The error that says ``why`` about what begins at ``offset``."""
        return SegmentDamaged(self.path, offset, str(why))

    def close(self) -> None:
        """Close. May be called again."""
        self._file.close()
