"""Keeps the blocks of large tasks in files, in a folder of the driver that tasks on the same machine see.

    restage_dir/tailrace-restage-UID/   of all drivers of this user
        machine                         random: a task whose folder has another one is on another machine
        QUERY-BATCH/                    made by the first task that needs it, removed after the publish
            ....blocks                  one for each stage

Spark makes the sink of a micro-batch several times, in processes of its own. So only names lead from a task to the
commit. The files need no fsync: they are for the loss of a node, and a loss of this machine ends the query anyway.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from tailrace.block import Block

log = logging.getLogger("tailrace.spark")

PREFIX = "tailrace-restage-"
MACHINE = "machine"
# A driver that was killed leaves files. A later one removes them at this age: no micro-batch takes as long.
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
    """The folder for the copies of all drivers of this user. ``path`` "": there is none."""

    path: str = ""
    machine: str = ""

    @classmethod
    def find(cls, parent: str) -> KeptFolder:
        """Returns the folder in ``parent``, which is made if it is not there; "": in the folder for temporary files.

        Returns none, with a warning in the log, if that fails.
        """
        path = os.path.join(parent or tempfile.gettempdir(), f"{PREFIX}{os.getuid()}")
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise PermissionError(errno.EPERM, "it is no folder of this user", path)
            return cls(path, _read_machine(path) or _make_machine(path))
        except OSError as error:
            log.warning("tailrace: large tasks keep no copy of their rows in files, but on other nodes: %s", error)
            return cls()

    def folder_of(self, batch: str) -> str | None:
        """Makes the folder of a batch. Returns None if this process is on another machine. Raises OSError."""
        if not self.path or _read_machine(self.path) != self.machine:
            return None
        path = os.path.join(self.path, batch)
        os.makedirs(path, exist_ok=True)
        return path

    def remove_up_to(self, query: str, number: int) -> None:
        """Removes the files of a query's micro-batch and of its earlier ones, and those that drivers left a day ago."""
        if not self.path:
            return
        before = time.time() - STALE_SECONDS
        with contextlib.suppress(OSError), os.scandir(self.path) as entries:
            for entry in entries:
                name, _, batch = entry.name.rpartition("-")
                is_done = name == query and batch.isdigit() and int(batch) <= number
                if entry.is_dir(follow_symlinks=False) and (is_done or entry.stat().st_mtime < before):
                    shutil.rmtree(entry.path, ignore_errors=True)


def _read_machine(path: str) -> str:
    """Returns the content of the file ``machine``; "" if there is none."""
    with contextlib.suppress(OSError), open(os.path.join(path, MACHINE)) as file:
        return file.read()
    return ""


def _make_machine(path: str) -> str:
    """Makes the file ``machine`` in one step, unless another driver makes it first. Returns its content. OSError."""
    number, own = tempfile.mkstemp(dir=path)
    with os.fdopen(number, "w") as file:
        file.write(secrets.token_hex(16))
    try:
        with contextlib.suppress(FileExistsError):
            os.link(own, os.path.join(path, MACHINE))
    finally:
        os.unlink(own)
    return _read_machine(path)
