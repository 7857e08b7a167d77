"""Files that are read again and again through a bounded number of descriptors.

    OpenFiles.open(path) ──> PooledFile     read_at ── borrow ──> a descriptor, opened again if it was given up
                                                   └─ give back ──> idle: [least recently used ... most recently used]

A node has many more segments than a process may have files open: one feed of 4,096 partitions has 12,288 of them before
any is compacted. So a descriptor belongs to its file only while a read is under way. An idle one is closed when there
are more than ``open_max``, or when the system has none left for something else.

A file keeps its path while it is pooled: before a file is removed it is closed. If another file was put in its place
meanwhile, its size and its first bytes tell.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tailrace_server.host.disk import RealFile, is_out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tailrace_server.host.disk import Disk, File

# The first bytes that tell a file from another one of its size: more than the header of a segment has.
_HEAD_BYTES = 64


class LentFile(NamedTuple):
    """A descriptor that stays open until ``give_back``, which is called once."""

    fileno: int
    give_back: Callable[[], None]


class ReadableFile(Protocol):
    """The methods that `tailrace_server.host.disk.File` and `PooledFile` share."""

    def read_at(self, offset: int, nbytes: int) -> bytes: ...

    def read_cached(self, offset: int, nbytes: int) -> bytes | memoryview | None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Opener(Protocol):
    """A disk, or `OpenFiles` over one."""

    def open(self, path: str, /) -> ReadableFile: ...


class OpenFiles:
    """At most ``open_max`` idle descriptors, of any number of files. Any thread may use it, and its files.

    Descriptors that are being read from come on top: as many as there are threads.
    """

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._lock = threading.Lock()  # held for no system call
        self._idle: dict[PooledFile, None] = {}  # open, and not being read; the least recently used one first

    @property
    def idle(self) -> int:
        """How many descriptors are open without a reader."""
        return len(self._idle)

    def open(self, path: str, /) -> PooledFile:
        """Open the file at ``path`` for reading; the caller closes it.

        Raises:
            OSError: it cannot be opened. EMFILE only if no idle descriptor could be closed for it.
        """
        return PooledFile(self, path)

    def close_idle(self) -> bool:
        """Close every descriptor that is not being read from; they are opened again when they are needed.

        Returns:
            True if any was closed.
        """
        with self._lock:
            files = [file for file in map(PooledFile._detach, self._idle) if file is not None]
            self._idle.clear()
        for file in files:
            file.close()
        return bool(files)

    def _open(self, path: str) -> File:
        """Open the file; if there is no descriptor for it, those that are idle go first."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if not is_out_of_descriptors(error) or not self.close_idle():
                raise
        return self._disk.open(path)


class PooledFile:
    """A file of `OpenFiles`: reads of it may come from any thread, and open it again when they have to."""

    __slots__ = ("_file", "_head", "_is_closed", "_nbytes", "_path", "_pool", "_readers")

    def __init__(self, pool: OpenFiles, path: str) -> None:
        """For `OpenFiles.open`."""
        self._pool = pool
        self._path = path
        self._readers = 1
        self._is_closed = False
        file = pool._open(path)
        try:
            self._nbytes = file.size()
            self._head = file.read_at(0, _HEAD_BYTES)
        except BaseException:
            file.close()
            raise
        self._file: File | None = file
        self._give_back()

    def size(self) -> int:
        """Return the size as it was when the file was opened first."""
        return self._nbytes

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Read as `File.read_at`. OSError also if the file cannot be opened again, or another one has its name."""
        file = self._borrow() or self._open_again()
        try:
            return file.read_at(offset, nbytes)
        finally:
            self._give_back()

    def read_cached(self, offset: int, nbytes: int) -> bytes | memoryview | None:
        """Read as `File.read_cached`; None also if the file would have to be opened, which may wait for the disk."""
        file = self._borrow()
        try:
            return None if file is None else file.read_cached(offset, nbytes)
        finally:
            self._give_back()

    def load(self, offset: int, nbytes: int) -> None:
        """Bring a part of the file into memory, if the file is one of the system. OSError as for ``read_at``."""
        file = self._borrow() or self._open_again()
        try:
            if isinstance(file, RealFile):
                file.load(offset, nbytes)
        finally:
            self._give_back()

    def lend_cached(self, offset: int, nbytes: int) -> LentFile | None:
        """Lend the descriptor for a part of the file, which is sent by it.

        None if the file would have to be opened, if the part is not in memory, or if the file is not one of the system.
        """
        file = self._borrow()
        if isinstance(file, RealFile) and file.is_cached(offset, nbytes):
            return LentFile(file.fileno(), self._give_back)
        self._give_back()
        return None

    def close(self) -> None:
        """Close the file, as soon as no read of it is under way. May be called again."""
        with self._pool._lock:
            self._is_closed = True
            self._pool._idle.pop(self, None)
            file = self._detach() if not self._readers else None
        if file is not None:
            file.close()

    def _borrow(self) -> File | None:
        """Count a reader, who calls ``_give_back``; return the open file, None if it has to be opened."""
        with self._pool._lock:
            self._readers += 1
            self._pool._idle.pop(self, None)
            return self._file

    def _open_again(self) -> File:
        """Open the file for a reader that is counted already."""
        try:
            if self._is_closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
            file = self._pool._open(self._path)
            try:
                if file.size() != self._nbytes or file.read_at(0, _HEAD_BYTES) != self._head:
                    raise OSError(errno.ESTALE, "another file has been put in its place", self._path)
            except BaseException:
                file.close()
                raise
            with self._pool._lock:
                if self._file is None:
                    self._file = file
                    return file
                faster = self._file  # another thread has opened it meanwhile
        except BaseException:
            self._give_back()
            raise
        file.close()
        return faster

    def _give_back(self) -> None:
        """Uncount a reader; after the last one the descriptor is idle, or closed if there are too many."""
        pool, surplus = self._pool, None
        with pool._lock:
            self._readers -= 1
            if self._readers or self._file is None:
                return
            if self._is_closed:
                surplus = self._detach()
            else:
                pool._idle[self] = None
                if len(pool._idle) > pool._open_max:
                    oldest = next(iter(pool._idle))
                    del pool._idle[oldest]
                    surplus = oldest._detach()
        if surplus is not None:
            surplus.close()

    def _detach(self) -> File | None:
        """Take the descriptor away, to be closed by the caller, who holds the lock."""
        file, self._file = self._file, None
        return file


class SpareFiles:
    """Descriptors that are kept open unused, to be closed when no others are free."""

    def __init__(self, disk: Disk, count: int) -> None:
        self._disk = disk
        self._count = count
        self._files: list[File] = []

    def keep(self, path: str) -> None:
        """Holds ``count`` descriptors of the file at ``path``, and none of another file any more.

        Holds fewer if no more are free; the next call tries again.
        """
        self.release()
        with contextlib.suppress(OSError):
            while len(self._files) < self._count:
                self._files.append(self._disk.open(path))

    def release(self) -> bool:
        """Closes them; returns True if there were any."""
        files, self._files = self._files, []
        for file in files:
            file.close()
        return bool(files)
