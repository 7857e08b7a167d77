"""RESERVE: space that is kept so that a full disk can be emptied.

    no space ── release ──> flush: segment, manifest ──> trim: journal files go ── make ──> the reserve is there again

A journal file can be removed only when its rows are in a segment, and a segment needs space. So a file of a fixed size
is allocated while there is room, and released when a flush finds none.

A small file without which a member cannot promise or follow gets its room from the reserve, a piece at a time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from tailrace_server.host.disk import is_no_space, write_atomically

if TYPE_CHECKING:
    from tailrace_server.host.disk import Buffer, Disk, File

RESERVE_NAME = "RESERVE"

# One flush of a segment, and the manifests.
RESERVE_BYTES_DEFAULT = 64 << 20
# A small file takes some kilobytes. A piece is larger, since another program may fill the disk meanwhile.
PIECE_BYTES = 1 << 20


class Reserve:
    """The reserve of a data directory. Calls block, one at a time; any thread may call.

    ``held_bytes`` is the size of the reserve now: all of it, less after pieces were released, or 0.
    """

    def __init__(self, disk: Disk, directory: str, nbytes: int = RESERVE_BYTES_DEFAULT) -> None:
        """For ``directory``, which exists; does nothing yet. With ``nbytes`` 0 there is no reserve."""
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, RESERVE_NAME)
        self._nbytes = nbytes
        self.held_bytes = 0
        self._using = threading.Lock()

    def make(self, *, free_bytes_min: int = 0) -> bool:
        """Makes the reserve, if it is not there. Returns True if it is there now.

        Only if at least ``free_bytes_min`` stay free besides, so that the reserve does not fill the disk. Without room
        nothing is taken, and a later call may succeed. OSError for other failures of the disk.
        """
        if self.held_bytes == self._nbytes:
            return True
        try:
            with self._using, contextlib.closing(self._open()) as file:
                missing = max(0, self._nbytes - file.size())
                if missing and self._disk.free_bytes(self._directory) < missing + free_bytes_min:
                    return False
                if not file.allocate(0, self._nbytes):
                    file.truncate(self.held_bytes)
                    return False
                file.truncate(self._nbytes)  # it was made for a larger reserve
                file.sync()
                self.held_bytes = self._nbytes
        except OSError as error:
            if is_no_space(error):
                return False
            raise
        return True

    def release(self) -> bool:
        """Releases the space, so that a flush can free more. Returns False if there was no reserve. OSError."""
        return self._shrink(None)

    def write_small(self, path: str, data: Buffer) -> None:
        """Replaces a small file, as `write_atomically`. A full disk gets room by a piece of the reserve. OSError."""
        try:
            write_atomically(self._disk, path, data)
        except OSError as error:
            if not is_no_space(error) or not self._shrink(PIECE_BYTES):
                raise
            write_atomically(self._disk, path, data)

    def _shrink(self, nbytes: int | None) -> bool:
        """Releases ``nbytes`` of the reserve, or all if that is None. Returns False if it had none. OSError."""
        if not self._disk.exists(self._path):
            return False
        with self._using, contextlib.closing(self._disk.open(self._path, writable=True)) as file:
            had = file.size()
            left = 0 if nbytes is None else max(0, had - nbytes)
            self.held_bytes = min(self.held_bytes, left)
            file.truncate(left)
            file.sync()  # a file system may give space to others only when the change is durable
        return had > 0

    def _open(self) -> File:
        if self._disk.exists(self._path):
            return self._disk.open(self._path, writable=True)
        return self._disk.create(self._path)
