"""The disks of machines that fetch copies: what `tailrace.copies` finds in place of `os`, `fcntl` and `open`.

A path begins with the name of its machine: /fetcher-1/copy. Each machine has a `MemoryDisk`, which loses in a power cut
what was not synced, fills up, and fails. A process that has died has no effect on its disk any more.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from typing import NamedTuple
from unittest import mock

from tests.memory_disk import READING, Crashed, MemoryDisk, failure

from tailrace.copies import directory, receiver

LARGE_DISK_BYTES = 1 << 40
# What `os` has that needs no disk.
_PURE = ("fspath", "getpid", "strerror", "PathLike", "fsencode", "fsdecode")
_FIRST_DESCRIPTOR = 1_000


class ProgramDisk:
    """The disk of one machine. Processes come and go on it: ``die`` ends one, ``boot`` lets the next one begin.

    Attributes:
        disk: The `MemoryDisk`.
        is_dead: The process has died, and nothing that its tasks still do has an effect.
        failures: How many calls have failed because of a fault.
    """

    def __init__(self, name):
        self.root = f"/{name}"
        self.disk = MemoryDisk()
        self.disk.make_directory(self.root)
        self.is_dead = False
        self.failures = 0

    def die(self):
        """Ends the process."""
        self.is_dead = True

    def boot(self, rnd=None):
        """Lets the next process begin. ``rnd``: the power was cut, and it decides what is left of unsynced changes."""
        if rnd is None:
            self.disk.kill()
        else:
            self.disk.cut_power(rnd)
        self.disk.torn_bytes = 0
        self.is_dead = False

    def after_calls(self, count, action, where=""):
        """Calls ``action(path)`` before the changing call that comes after ``count`` others, once; it may raise.

        ``where``: only calls with this in their path count.
        """
        left = itertools.count(count, -1)

        def before(name, path):
            if name not in READING and where in path and next(left) == 0:
                self.disk.before = None
                action(path)

        self.disk.before = before

    def fill(self, free_bytes):
        """Leaves ``free_bytes`` on the disk, until ``mend``."""
        self.disk.size_bytes -= self.disk.free - free_bytes

    def mend(self):
        """Ends all faults."""
        self.disk.before = None
        self.disk.size_bytes = LARGE_DISK_BYTES

    @property
    def is_full(self):
        """Whether the disk has a fault of its size."""
        return self.disk.size_bytes < LARGE_DISK_BYTES

    def check(self):
        """Raises Crashed if the process has died."""
        if self.is_dead:
            raise Crashed

    def files(self, folder):
        """Returns {path in ``folder``: its bytes} of all files below it."""
        inside = folder + "/"
        names = {path: inode for path, inode in self.disk.names_now.items() if path.startswith(inside)}
        return {path.removeprefix(inside): inode.content.read(0, inode.content.size) for path, inode in names.items()}


class _Descriptor(NamedTuple):
    """An open file, or an open directory without ``file``."""

    machine: ProgramDisk
    path: str
    life: int
    file: object


class _Status(NamedTuple):
    st_size: int


class _Room(NamedTuple):
    f_bavail: int
    f_frsize: int


class _Entry(NamedTuple):
    name: str
    size: int

    def stat(self):
        return _Status(self.size)

    def is_file(self):
        return True


class _OpenFile:
    """What ``open(fd, "rb")`` and ``open(fd, "wb")`` return."""

    def __init__(self, system, fd):
        self._system = system
        self._fd = fd
        self._place = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def read(self, nbytes=-1):
        nbytes = self._system.fstat(self._fd).st_size if nbytes < 0 else nbytes
        data = self._system.pread(self._fd, nbytes, self._place)
        self._place += len(data)
        return data

    def write(self, data):
        view = memoryview(data)
        while view:
            written = self._system.pwrite(self._fd, view, self._place)
            view, self._place = view[written:], self._place + written
        return len(data)

    def flush(self):
        """Does nothing: nothing is held back."""

    def fileno(self):
        return self._fd

    def close(self):
        self._system.close(self._fd)


class _Paths:
    """``os.path`` with the questions about files answered by the disks."""

    def __init__(self, system):
        self._system = system

    def __getattr__(self, name):
        if name not in ("join", "dirname", "basename", "abspath"):
            raise AttributeError(f"os.path.{name}: add it to tests/simulation/program_disk.py")
        return getattr(os.path, name)

    def exists(self, path):
        return self._system.at(path).disk.exists(path)

    def lexists(self, path):
        return self.exists(path) or self.isdir(path)

    def isdir(self, path):
        return path in self._system.at(path).disk.directories


class ProgramSystem:
    """The functions of ``os``, ``fcntl`` and ``open`` that a fetch uses, for the disks of all machines."""

    LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8

    def __init__(self):
        self._machines = {}
        self._open = {}
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self.path = _Paths(self)

    def add(self, name):
        """Returns the disk of a new machine."""
        machine = self._machines[name] = ProgramDisk(name)
        return machine

    def at(self, path):
        """Returns the machine of a path. Raises Crashed if its process has died."""
        machine = self._machines[path.split("/")[1]]
        machine.check()
        return machine

    def __getattr__(self, name):
        if name in _PURE or name.startswith("O_"):
            return getattr(os, name)
        raise AttributeError(f"os.{name}: add it to tests/simulation/program_disk.py")

    @contextlib.contextmanager
    def in_place(self):
        """Returns a context in which fetches use these disks."""
        with contextlib.ExitStack() as stack:
            for module in (directory, receiver):
                stack.enter_context(mock.patch.object(module, "os", self))
            stack.enter_context(mock.patch.object(directory, "fcntl", self))
            stack.enter_context(mock.patch.object(directory, "open_regular", self.open))
            stack.enter_context(mock.patch.object(directory, "open", self.open_file, create=True))
            yield

    # Descriptors

    def open(self, path, flags=os.O_RDONLY, mode=0o777):
        machine = self.at(path)
        if flags & os.O_DIRECTORY:
            if path not in machine.disk.directories:
                raise failure(errno.ENOENT, path)
            file = None
        elif flags & os.O_CREAT and not machine.disk.exists(path):
            file = machine.disk.create(path)
        else:
            file = machine.disk.open(path)
        fd = next(self._numbers)
        self._open[fd] = _Descriptor(machine, path, machine.disk.life, file)
        if flags & os.O_TRUNC:
            self.ftruncate(fd, 0)
        return fd

    def open_file(self, fd, mode="r"):
        assert mode in ("rb", "wb"), mode
        return _OpenFile(self, fd)

    def _of(self, fd):
        found = self._open[fd]
        found.machine.check()
        if found.life != found.machine.disk.life:
            raise Crashed
        return found

    def close(self, fd):
        machine, path, life, file = self._open.pop(fd)
        if machine.is_dead or life != machine.disk.life:
            return  # its kernel has closed it
        if machine.disk.locks and (path, fd) in machine.disk.locks:
            machine.disk.locks.discard((path, fd))
        if file is not None:
            file.close()

    def flock(self, fd, operation):
        machine, path, life, _ = self._open[fd]
        if machine.is_dead or life != machine.disk.life:
            return
        locks = machine.disk.locks
        if operation & self.LOCK_UN:
            locks.discard((path, fd))
            return
        if any(held == path for held, _ in locks):
            raise failure(errno.EAGAIN, path)
        locks.add((path, fd))

    def fstat(self, fd):
        return _Status(self._of(fd).file.size())

    def pread(self, fd, nbytes, offset):
        return self._of(fd).file.read_at(offset, nbytes)

    def pwrite(self, fd, data, offset):
        """Writes as much as the disk has room for. Raises OSError if it has none."""
        machine, path, _, file = self._of(fd)
        room = max(machine.disk.free, 0) + max(file.size() - offset, 0)
        nbytes = min(len(data), room)
        if not nbytes and len(data):
            raise failure(errno.ENOSPC, path)
        file.write_at(offset, [bytes(data[:nbytes])], nbytes)
        return nbytes

    def ftruncate(self, fd, nbytes):
        self._of(fd).file.truncate(nbytes)

    def fsync(self, fd):
        machine, path, _, file = self._of(fd)
        if file is not None:
            file.sync()
        else:
            handle = machine.disk.open_directory(path)
            handle.sync()
            handle.close()

    # Names

    def makedirs(self, path, *, exist_ok=False):
        self.at(path).disk.make_directory(path)

    def mkdir(self, path):
        self.at(path).disk.make_directory(path)

    def listdir(self, path):
        return self.at(path).disk.names(path)

    @contextlib.contextmanager
    def scandir(self, path):
        disk = self.at(path).disk
        sizes = {name: disk.names_now.get(f"{path}/{name}") for name in disk.names(path)}
        yield [_Entry(name, 0 if inode is None else inode.content.size) for name, inode in sizes.items()]

    def statvfs(self, path):
        return _Room(max(self.at(path).disk.free, 0), 1)

    def replace(self, source, target):
        self.at(source).disk.rename(source, target)

    def unlink(self, path):
        self.at(path).disk.remove(path)
