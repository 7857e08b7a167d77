"""One process per data directory."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from tailrace_server.host.disk import read_file
from tailrace_server.journal.errors import DirectoryInUse

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, Lock

LOCK_NAME = "LOCK"


def lock_directory(disk: Disk, directory: str) -> Lock:
    """Locks the data directory for this process, until ``close``. DirectoryInUse if another process has it.

    The file stays when the lock is released: removing it would let two processes lock two files of the same name.
    """
    path = os.path.join(directory, LOCK_NAME)
    try:
        return disk.lock(path)
    except BlockingIOError:
        holder = ""
        with contextlib.suppress(OSError):  # the message is complete enough without it
            holder = read_file(disk, path).decode("ascii", "replace").strip()
        by = f"process {holder}" if holder else "another process"
        raise DirectoryInUse(f"{directory} is in use by {by}; stop it, or take another directory") from None
