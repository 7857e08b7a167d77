"""A real disk that hangs, fails or is full while a file says so. Another process writes the word into that file.

hangs    no fsync returns, until the file is gone
fails    each fsync fails
full     no file grows, and no byte is free
low      little is free: less than writes need
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from tailrace_server.host.disk import RealDirectory, RealDisk, RealFile

TROUBLES = ("hangs", "fails", "full", "low")
# Far below the 128 MiB that writes need.
LOW_BYTES = 16 * 1024 * 1024
POLL_S = 0.02


class TroubledDisk(RealDisk):
    """A real disk with the trouble that the file at ``order`` names."""

    def __init__(self, order: str) -> None:
        self._order = Path(order)

    @property
    def trouble(self) -> str:
        """The trouble at this moment; "" for none."""
        try:
            return self._order.read_text()
        except FileNotFoundError:
            return ""

    def before_sync(self) -> None:
        """Waits while the disk hangs. Raises OSError if it fails."""
        while (trouble := self.trouble) == "hangs":
            time.sleep(POLL_S)
        if trouble == "fails":
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def before_growth(self) -> None:
        """Raises OSError if the disk is full."""
        if self.trouble == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: str) -> RealFile:
        return TroubledFile.over(self, super().create(path))

    def open(self, path: str, *, writable: bool = False) -> RealFile:
        return TroubledFile.over(self, super().open(path, writable=writable))

    def sync_directory(self, path: str) -> None:
        self.before_sync()
        super().sync_directory(path)

    def open_directory(self, path: str) -> RealDirectory:
        return TroubledDirectory(self, path)

    def free_bytes(self, path: str) -> int:
        free = super().free_bytes(path)
        return {"full": 0, "low": min(free, LOW_BYTES)}.get(self.trouble, free)


class TroubledFile(RealFile):
    """A file of a ``TroubledDisk``."""

    __slots__ = ("_disk",)

    _disk: TroubledDisk

    @classmethod
    def over(cls, disk: TroubledDisk, file: RealFile) -> TroubledFile:
        """Takes the descriptor of a real file."""
        made = cls(file.fileno())
        made._disk = disk
        return made

    def write_at(self, offset, buffers, nbytes):
        if offset + nbytes > self.size():
            self._disk.before_growth()
        super().write_at(offset, buffers, nbytes)

    def allocate(self, offset, nbytes):
        return self._disk.trouble != "full" and super().allocate(offset, nbytes)

    def sync(self):
        self._disk.before_sync()
        super().sync()


class TroubledDirectory(RealDirectory):
    """An open directory of a ``TroubledDisk``."""

    __slots__ = ("_disk",)

    def __init__(self, disk: TroubledDisk, path: str) -> None:
        super().__init__(path)
        self._disk = disk

    def sync(self) -> None:
        self._disk.before_sync()
        super().sync()
