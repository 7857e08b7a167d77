"""Keeps the blocks of large tasks in files, in a folder of the driver that tasks on the same machine see.

    driver   makes the folder ───────────── reads the files if stages were lost ── removes it after the batch
    tasks        is it here? a file for each stage

A cluster's executors see the folder only if it is on a file system that all of them mount. The files need no fsync:
they are for the loss of a node, and a loss of this machine ends the query anyway.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tailrace.block import Block

log = logging.getLogger("tailrace.spark")

PREFIX = "tailrace-restage-"
# A driver that was killed leaves its folder. A later one removes it at this age: no micro-batch takes as long.
STALE_SECONDS = 86_400.0
# Tasks leave this much of the disk free for others, and look at it again after so many bytes.
FREE_BYTES_MIN = 1024 * 1024 * 1024
LOOK_BYTES = 16 * 1024 * 1024

_ROW = struct.Struct("<QI")  # before each block: the digest of its rows, and its bytes


class KeptBlock(NamedTuple):
    """The bytes of a block, and the digest of its rows."""

    data: bytes
    digest: int


class KeptFile(NamedTuple):
    """A file with the blocks of one stage."""

    path: str
    blocks: int

    def read(self) -> Iterator[KeptBlock]:
        """Yields the blocks in their order. Raises OSError if the file is gone, or is shorter than it was."""
        with open(self.path, "rb") as file:
            for _ in range(self.blocks):
                digest, nbytes = _ROW.unpack(self._exactly(file, _ROW.size))
                yield KeptBlock(self._exactly(file, nbytes), digest)

    def _exactly(self, file: BinaryIO, nbytes: int) -> bytes:
        data = file.read(nbytes)
        if len(data) < nbytes:
            raise OSError(errno.EIO, f"the file {self.path} ends within a block")
        return data


class KeptFileWriter:
    """A file that takes the blocks of one stage. Every method raises OSError, also if the disk is nearly full."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._require_room()
        number, self._path = tempfile.mkstemp(suffix=".blocks", dir=folder)
        self._file = os.fdopen(number, "wb")
        self._blocks = 0
        self._unlooked_bytes = 0

    def add(self, block: Block, digest: int) -> None:
        """Writes a block behind the others."""
        self._unlooked_bytes += block.nbytes
        if self._unlooked_bytes >= LOOK_BYTES:
            self._require_room()
            self._unlooked_bytes = 0
        self._file.write(_ROW.pack(digest, block.nbytes))
        self._file.write(block.head)
        self._file.write(block.body)
        self._blocks += 1

    def kept(self) -> KeptFile:
        """Returns the file with the blocks so far."""
        self._file.flush()
        return KeptFile(self._path, self._blocks)

    def close(self) -> None:
        """Closes the file, which stays."""
        self._file.close()

    def remove(self) -> None:
        """Removes the file."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _require_room(self) -> None:
        disk = os.statvfs(self._folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < FREE_BYTES_MIN:
            text = f"{free_bytes} bytes are free, and {FREE_BYTES_MIN} have to stay so"
            raise OSError(errno.ENOSPC, text, self._folder)


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """The folder of one micro-batch or job. ``path`` "": there is none."""

    path: str = ""

    @classmethod
    def make(cls, parent: str) -> KeptFolder:
        """Makes a folder in ``parent``, or none if that fails; "": in the folder for temporary files.

        Removes those that drivers of this user have left there a day ago.
        """
        parent = parent or tempfile.gettempdir()
        try:
            _remove_stale(parent)
            return cls(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            log.warning("tailrace: large tasks keep no copy of their rows, in case the leader is lost: %s", error)
            return cls()

    @property
    def is_here(self) -> bool:
        """Whether this process sees the folder."""
        return bool(self.path) and os.path.isdir(self.path)

    def remove(self) -> None:
        """Removes the folder with its files."""
        if self.path:
            shutil.rmtree(self.path, ignore_errors=True)


def _remove_stale(parent: str) -> None:
    """Removes old folders of this user. Raises OSError if ``parent`` cannot be read."""
    before = time.time() - STALE_SECONDS
    with os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # another driver may remove it now
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.getuid() and found.st_mtime < before:
                    shutil.rmtree(entry.path, ignore_errors=True)
