"""The file system as the server sees it: every file of a node is read and written through a ``Disk``.

Nothing here is buffered, and nothing becomes durable by itself. ``File.sync`` makes the content of a file durable, and
``Disk.sync_directory`` the names in a directory. So a disk made for tests can lose all that was not synced.

All calls are synchronous, and all failures are ``OSError`` with the errno of the system.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, TypeAlias

from tailrace.errors import NoSpace
from tailrace_server.host.removal import remove_in_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

# The end of the name of a file that is being written. After a crash the file is of no use, and may be removed.
TEMPORARY = ".new"

_MACHINE_ID_FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")

# Linux since 4.14. Elsewhere such a read waits.
_NO_WAIT = getattr(os, "RWF_NOWAIT", 0)

# The distance of the bytes by which a part of a file is looked for in memory: a read-ahead brings at least this much.
_PROBE_BYTES = 64 * 1024

# Before pages leave memory, Linux begins to write those that have changed. Parts of pages stay in memory, and so do
# pages that are being written. sync_file_range would say it directly, but Python has no function for it.
_NOT_NEEDED = getattr(os, "POSIX_FADV_DONTNEED", 0)
_begin_to_write = getattr(os, "posix_fadvise", lambda *_: None)

# The bytes that are read at a time to bring a part of a file into memory: they fit into a processor's cache.
_LOAD_BYTES = 256 * 1024

# The number of directories that are synced at a time: the disk then flushes its cache once for several. On ext4 with
# 1,024 directories that have no news: 0.23 to 0.37 s in turn, 0.06 to 0.11 s by 16 threads, no less by 32.
_SYNC_THREADS = 16

# The disk is full, or the quota of the node's user. Both end when space is freed.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

# This process, or the whole system, has as many files open as it may have. The call did nothing; descriptors get free.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


def is_no_space(error: OSError) -> bool:
    """Returns True if ``error`` means that the disk, or the quota on it, is full."""
    return error.errno in _NO_SPACE


def is_out_of_descriptors(error: OSError) -> bool:
    """Returns True if ``error`` means that no more files can be opened for now."""
    return error.errno in _NO_DESCRIPTOR


def raise_if_no_space(error: OSError, what: str) -> None:
    """Raises NoSpace if ``error`` means a full disk. ``what`` completes the sentence "no space is left"."""
    if is_no_space(error):
        raise NoSpace(f"no space is left {what} ({error.strerror}); free some") from error


class Lock(Protocol):
    """An exclusive lock that is held until ``close``, or until the process ends, however it ends."""

    def close(self) -> None:
        """Releases the lock. May be called again."""


class File(Protocol):
    """An open file. Offsets and sizes are in bytes; there is no current position."""

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes from ``offset`` on; fewer only if the file ends."""

    def read_cached(self, offset: int, nbytes: int) -> bytes | memoryview | None:
        """Reads as ``read_at``, without waiting for the disk. Returns None if not all bytes are in memory.

        If the system cannot tell, the bytes are read all the same.
        """

    def write_at(self, offset: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        """Writes ``buffers``, which together hold ``nbytes``, one after the other at ``offset``, without joining them.

        All of it, or OSError: then any part of the region may hold anything.
        """

    def allocate(self, offset: int, nbytes: int) -> bool:
        """Reserves space for the region, so that writes into it change no metadata; new bytes of the file are zeros.

        Returns False, and raises no OSError, if there is no space or the file system can't do it.
        """

    def begin_sync(self, offset: int, nbytes: int) -> None:
        """Has the system begin to write the region to the disk, without waiting. ``sync`` waits for less then."""

    def truncate(self, size: int) -> None:
        """Makes the file ``size`` bytes long."""

    def sync(self) -> None:
        """Makes the content and the size durable. After an OSError either may be lost; a second call proves nothing."""

    def size(self) -> int:
        """Returns the file's size in bytes."""

    def identity(self) -> tuple[int, int]:
        """Returns device and inode: a copy of a file has another inode, a renamed file keeps its own."""

    def close(self) -> None:
        """Close. May be called again."""


class Directory(Protocol):
    """An open directory, whose names can be made durable without another descriptor."""

    def sync(self) -> None:
        """Makes durable which names the directory holds."""

    def close(self) -> None:
        """Closes the directory. May be called again."""


class Disk(Protocol):
    """The file system, as the server uses it. Paths are strings, with the system's separator."""

    def make_directory(self, path: str) -> None:
        """Makes a directory and its parents, unless they exist. They are durable when this returns."""

    def make_directories(self, paths: Sequence[str]) -> None:
        """Calls ``make_directory`` for each path. Those of one parent are made durable together."""

    def names(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""

    def exists(self, path: str) -> bool:
        """Returns True if there is a file or a directory of this name."""

    def create(self, path: str) -> File:
        """Creates an empty file, for reading and writing. An existing file is emptied."""

    def open(self, path: str, *, writable: bool = False) -> File:
        """Opens an existing file; FileNotFoundError otherwise."""

    def rename(self, source: str, target: str) -> None:
        """Gives a file another name, atomically; the file that had that name is gone."""

    def link(self, source: str, target: str) -> None:
        """Gives a file a second name; FileExistsError if the name is taken.

        PermissionError or another OSError if the file system has no links, or if the two are on different ones.
        """

    def remove(self, path: str) -> None:
        """Removes a file's name; FileNotFoundError if there is no such file. An open file keeps its space."""

    def remove_large(self, path: str) -> None:
        """Removes a file as ``remove``, and gives its space back in steps: fsyncs hardly wait for it. For a thread."""

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory; OSError (ENOTEMPTY) if it is not empty, FileNotFoundError if it is missing."""

    def sync_directory(self, path: str) -> None:
        """Makes durable which names the directory holds."""

    def open_directory(self, path: str) -> Directory:
        """Opens a directory that is there, for ``Directory.sync``."""

    def sync_directories(self, paths: Sequence[str]) -> None:
        """Calls ``sync_directory`` for each path, several at a time. Raises the first OSError, after all have ended."""

    def free_bytes(self, path: str) -> int:
        """Returns the bytes that this process may still write to the file system of ``path``."""

    def lock(self, path: str) -> Lock:
        """Locks a file, created if missing, against all other processes and calls; BlockingIOError if it is locked.

        Child processes don't inherit the lock. The file holds the process id in decimal, for people.
        """

    def machine_id(self) -> str:
        """Returns a string that is the same at each start on this host, and hardly ever on another one."""

    def real_path(self, path: str) -> str:
        """Returns the absolute path, without symbolic links."""

    def size_of(self, path: str) -> int:
        """Returns the length of a file in bytes. Raises OSError, FileNotFoundError if there is none."""

    def changed_ns(self, path: str) -> int:
        """Returns when the system last changed a file (ctime, ns since 1970), or 0. A copy has another time."""


def write_atomically(disk: Disk, path: str, data: Buffer) -> None:
    """Replaces the file by one that holds ``data``: after a crash either the old or the new file is there, whole.

    The new file is durable when this returns. OSError: the old file is still there, or (if the directory's sync failed)
    either one.
    """
    replace_file(disk, path, data)
    disk.sync_directory(os.path.dirname(path))


def replace_file(disk: Disk, path: str, data: Buffer) -> None:
    """Replaces the file as ``write_atomically``, but the new one is durable once its directory was synced."""
    temporary = path + TEMPORARY
    file = disk.create(temporary)
    try:
        file.write_at(0, (data,), len(data))
        file.sync()
    except OSError:
        with contextlib.suppress(OSError):  # a full disk should not keep the rest
            disk.remove(temporary)
        raise
    finally:
        file.close()
    disk.rename(temporary, path)


def read_file(disk: Disk, path: str) -> bytes:
    """Returns the whole content of a (small) file; FileNotFoundError if there is no such file."""
    with contextlib.closing(disk.open(path)) as file:
        return file.read_at(0, file.size())


def _open_regular(path: str, flags: int) -> int:
    """Opens a regular file and returns its descriptor. A pipe would wait for its other end, for ever."""
    fd = os.open(path, flags | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "this is no regular file; move it away, or put the file in its place", path)
    return fd


class RealFile:
    """A ``File`` on a file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Returns the descriptor."""
        return self._fd

    def is_cached(self, offset: int, nbytes: int) -> bool:
        """Tells whether a part of the file is in memory, by one byte of each `_PROBE_BYTES`; False if not known."""
        byte = bytearray(1)
        try:
            for place in (*range(offset, offset + nbytes, _PROBE_BYTES), offset + nbytes - 1):
                if os.preadv(self._fd, (byte,), place, _NO_WAIT) != 1:
                    return False
        except OSError:
            return False
        return bool(_NO_WAIT)

    def load(self, offset: int, nbytes: int) -> None:
        """Brings a part of the file into memory, for as long as the disk takes."""
        # Reads in sequence make the system read ahead in large pieces. After POSIX_FADV_WILLNEED it does so by pages,
        # which takes more processor time than this copy.
        buffer = memoryview(bytearray(_LOAD_BYTES))
        end = offset + nbytes
        for place in range(offset, end, _LOAD_BYTES):
            os.preadv(self._fd, (buffer[: end - place],), place)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        return os.pread(self._fd, nbytes, offset)

    def read_cached(self, offset: int, nbytes: int) -> bytes | memoryview | None:
        buffer = bytearray(nbytes)
        try:
            count = os.preadv(self._fd, (buffer,), offset, _NO_WAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            return self.read_at(offset, nbytes)
        if count == nbytes:
            return memoryview(buffer)
        # Either the rest is not in memory, or the file ends.
        return self.read_at(offset, nbytes) if offset + nbytes > self.size() else None

    def write_at(self, offset: int, buffers: Sequence[Buffer], nbytes: int) -> None:
        written = os.pwritev(self._fd, buffers, offset)
        if written != nbytes:
            self._write_rest(offset + written, memoryview(b"".join(buffers))[written:])

    def _write_rest(self, offset: int, rest: memoryview) -> None:
        """Writes the rest after a short write, as on a disk that fills up: the next call raises, or succeeds."""
        while rest:
            written = os.pwrite(self._fd, rest, offset)
            offset += written
            rest = rest[written:]

    def allocate(self, offset: int, nbytes: int) -> bool:
        try:
            os.posix_fallocate(self._fd, offset, nbytes)
        except OSError:  # ENOSPC, EOPNOTSUPP, EINVAL, ... : the writes themselves will tell what matters
            return False
        return True

    def begin_sync(self, offset: int, nbytes: int) -> None:
        with contextlib.suppress(OSError):  # ``sync`` will tell what matters
            _begin_to_write(self._fd, offset, nbytes, _NOT_NEEDED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def identity(self) -> tuple[int, int]:
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDirectory:
    """A ``Directory`` on a file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, path: str) -> None:
        self._fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealLock:
    """An flock on an open file.

    A record lock of fcntl would be dropped as soon as anything in this process closes the same file, and would not keep
    two nodes in one process apart. A forked child shares an flock, so it closes its copy at once.
    """

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, path: str) -> None:
        self._fd = _open_regular(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            self.close()
            raise
        _locks.add(self)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


_locks: weakref.WeakSet[RealLock] = weakref.WeakSet()


def _leave_locks_to_the_parent() -> None:
    for lock in list(_locks):
        with contextlib.suppress(OSError):  # EBADF: a child that closed all its files first
            lock.close()


os.register_at_fork(after_in_child=_leave_locks_to_the_parent)


def _make(path: str) -> None:
    """Makes a directory, unless it is there."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


class RealDisk:
    """The file system of this host. Files are made readable and writable for their owner, readable for others."""

    def make_directory(self, path: str) -> None:
        path = os.path.abspath(path)
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        # A process that was killed may have made the last existing directory, so that it is not durable. (If its parent
        # cannot be read, no process of this user has made it.) If nothing is pending, the fsync costs next to nothing.
        with contextlib.suppress(PermissionError):
            self.sync_directory(os.path.dirname(path))
        for directory in reversed(missing):
            _make(directory)  # another thread may be faster; it is durable for both when either returns
            self.sync_directory(os.path.dirname(directory))

    def make_directories(self, paths: Sequence[str]) -> None:
        parents = dict.fromkeys(os.path.dirname(os.path.abspath(path)) for path in paths)
        for parent in parents:
            self.make_directory(parent)
        for path in paths:
            _make(path)
        for parent in parents:  # also if all are there: a process that was killed may have made them
            self.sync_directory(parent)

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def create(self, path: str) -> RealFile:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644))

    def open(self, path: str, *, writable: bool = False) -> RealFile:
        return RealFile(_open_regular(path, os.O_RDWR if writable else os.O_RDONLY))

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_large(self, path: str) -> None:
        remove_in_steps(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with contextlib.closing(RealDirectory(path)) as directory:
            directory.sync()

    def open_directory(self, path: str) -> RealDirectory:
        return RealDirectory(path)

    def sync_directories(self, paths: Sequence[str]) -> None:
        if len(paths) <= 1:
            for path in paths:
                self.sync_directory(path)
            return
        with ThreadPoolExecutor(min(len(paths), _SYNC_THREADS)) as threads:
            for done in [threads.submit(self.sync_directory, path) for path in paths]:
                done.result()

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def lock(self, path: str) -> RealLock:
        return RealLock(path)

    def machine_id(self) -> str:
        """Returns systemd's or D-Bus's machine id; without either (a bare container), the host's name."""
        for path in _MACHINE_ID_FILES:
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                machine_id = file.read().strip()
                if machine_id:
                    return machine_id
        return "host " + os.uname().nodename

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def size_of(self, path: str) -> int:
        return os.stat(path).st_size

    def changed_ns(self, path: str) -> int:
        try:
            return os.stat(path).st_ctime_ns
        except FileNotFoundError:
            return 0
