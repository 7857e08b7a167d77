"""RESERVE, space that is kept so that a full disk can be emptied.

    no space ── release ──> flush: segment, manifest ──> trim: journal files go ── make ──> the reserve is there again

A journal file can go only when what it holds is in a segment, and a segment needs space. So a file of a fixed size is
allocated while there is room, and given back when a flush found none.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tailrace_server.host.disk import is_no_space

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, File

RESERVE_NAME = "RESERVE"

# One flush of a segment, and the manifests.
RESERVE_BYTES_DEFAULT = 64 << 20


class Reserve:
    """The reserve of a data directory. Calls block, and come one at a time; any thread may make them.

    ``held_bytes`` is how much is kept: all of it or 0.
    """

    def __init__(self, disk: Disk, directory: str, nbytes: int = RESERVE_BYTES_DEFAULT) -> None:
        """For ``directory``, which is there; nothing is done yet. ``nbytes`` 0: there is none."""
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, RESERVE_NAME)
        self._nbytes = nbytes
        self.held_bytes = 0

    def make(self, *, free_bytes_min: int = 0) -> bool:
        """Keep the space; True where it is kept now.

        Only where at least ``free_bytes_min`` would stay free besides, so that the reserve is not what fills the disk.
        Where there is no room nothing is taken, and a later call may succeed. OSError where the disk fails otherwise.
        """
        if self.held_bytes == self._nbytes:
            return True
        try:
            with contextlib.closing(self._open()) as file:
                missing = max(0, self._nbytes - file.size())
                if missing and self._disk.free_bytes(self._directory) < missing + free_bytes_min:
                    return False
                if not file.allocate(0, self._nbytes):
                    file.truncate(0)
                    return False
                file.truncate(self._nbytes)  # where it was made for a larger reserve
                file.sync()
        except OSError as error:
            if is_no_space(error):
                return False
            raise
        self.held_bytes = self._nbytes
        return True

    def release(self) -> bool:
        """Give the space back, for a flush and what it allows to remove; False where none was kept. Raises OSError."""
        if not self._disk.exists(self._path):
            return False
        with contextlib.closing(self._disk.open(self._path, writable=True)) as file:
            had = file.size() > 0
            self.held_bytes = 0
            file.truncate(0)
            file.sync()  # a file system may give space to others only when the change is durable
        return had

    def _open(self) -> File:
        if self._disk.exists(self._path):
            return self._disk.open(self._path, writable=True)
        return self._disk.create(self._path)
