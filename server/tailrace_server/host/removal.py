"""Removes a large file so that the fsyncs of others hardly wait for it.

A file system gives the space of a removed file back in one transaction, and with the mount option ``discard`` tells the
disk of it then. Every fsync waits for that: 16 to 27 ms beside the removal of 160 MiB on ext4, 2 to 8 ms if the file is
shortened in small steps, STEP_BYTES each.

    unlink ── the name is gone ──> shorten, pause, shorten, ... ──> close

The name goes first, so after a crash the file is there as a whole or not at all; the file system frees the rest of a
file without a name itself. A file is only shortened if it has no other name, which a backup or a copy may have made,
and if it is open nowhere else: close it before.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

# The bytes that are given back at a time. Smaller files are removed at once.
STEP_BYTES = 4 << 20
# Other programs' fsyncs come in between.
PAUSE_SECONDS = 0.002


def remove_in_steps(path: str) -> None:
    """Removes a file's name, and gives its space back in steps. For a thread: takes about 1 s for a GiB.

    Raises FileNotFoundError, or another OSError, if the name cannot be removed. The space is the file system's matter.
    """
    if os.stat(path, follow_symlinks=False).st_size <= STEP_BYTES:
        os.unlink(path)
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # without a free descriptor, or without permission to write
        os.unlink(path)
        return
    try:
        os.unlink(path)
        with contextlib.suppress(OSError):
            if is_alone(fd):
                _shorten(fd)
    finally:
        os.close(fd)


def is_alone(fd: int) -> bool:
    """Tells whether a file has no name, and is open by this descriptor only; False if the system cannot tell."""
    if os.fstat(fd).st_nlink or not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # Linux grants this lease only for a file that is open nowhere else, and this one cannot be opened again.
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return False
    return True


def _shorten(fd: int) -> None:
    size = os.fstat(fd).st_size
    while size > STEP_BYTES:
        size -= STEP_BYTES
        os.ftruncate(fd, size)
        time.sleep(PAUSE_SECONDS)
