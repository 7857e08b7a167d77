"""A disk in memory that loses what was not synced, tears writes, fills up, and fails when it is told to."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

SECTOR_BYTES = 64  # far below a real one, so that small records are torn at every place


class Crashed(BaseException):
    """The machine stops here: no handler of the code under test may go on."""


class Inode:
    """A file: what is on the platter, what the page cache shows, and the changes between the two."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.durable = bytearray()
        self.content = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []  # (offset, data) of a write, (size, None) of a truncation

    def change(self, offset: int, data: bytes | None) -> None:
        apply_change(self.content, offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            apply_change(self.durable, offset, data)
        self.pending.clear()

    def survive(self, rnd: random.Random) -> None:
        """Power fails: any of the pending changes have been made, writes sector by sector, the last one to any byte."""
        length = len(self.content)
        if self.pending and self.pending[-1][1]:
            offset, data = self.pending.pop()
            self.pending.append((offset, data[: rnd.randint(0, len(data))]))
        for offset, data in self.pending:
            if data is None:
                if rnd.random() < 0.5:
                    apply_change(self.durable, offset, None)
                continue
            for begin in range(0, len(data), SECTOR_BYTES):
                if rnd.random() < 0.7:
                    apply_change(self.durable, offset + begin, data[begin : begin + SECTOR_BYTES])
        if len(self.durable) < length and rnd.random() < 0.5:  # the size was written, and the data was not
            apply_change(self.durable, length, None)
        self.pending.clear()
        self.content = bytearray(self.durable)


def apply_change(target: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del target[offset:]
        target.extend(bytes(offset - len(target)))
        return
    target.extend(bytes(max(0, offset - len(target))))
    target[offset : offset + len(data)] = data


class MemoryFile:
    """A ``tailrace_server.host.disk.File``; dead as soon as the machine or the process is."""

    def __init__(self, disk: MemoryDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._open = True

    def _call(self, name: str) -> None:
        assert self._open
        assert self._life == self._disk.life
        self._disk.call(name, self._path)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        self._call("read_at")
        return bytes(self._inode.content[offset : offset + nbytes])

    def write_at(self, offset: int, buffers, nbytes: int) -> None:
        data = b"".join(buffers)
        assert len(data) == nbytes
        self._call("write_at")
        growth = max(0, offset + nbytes - len(self._inode.content))
        missing = growth - self._disk.free_bytes
        if missing > 0:
            self._inode.change(offset, data[: max(0, nbytes - missing)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._inode.change(offset, data)

    def allocate(self, offset: int, nbytes: int) -> bool:
        self._call("allocate")
        growth = offset + nbytes - len(self._inode.content)
        if growth > self._disk.free_bytes:
            return False
        if growth > 0:
            self._inode.change(offset + nbytes, None)
        return True

    def truncate(self, size: int) -> None:
        self._call("truncate")
        self._inode.change(size, None)

    def sync(self) -> None:
        try:
            self._call("sync")
        except OSError:  # as Linux does: the pages count as clean, a second fsync has nothing to write
            self._inode.pending.clear()
            raise
        self._inode.sync()

    def size(self) -> int:
        return len(self._inode.content)

    def identity(self) -> tuple[int, int]:
        return self._disk.device, self._inode.number

    def close(self) -> None:
        self._open = False


class MemoryLock:
    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def close(self) -> None:
        self._disk.locks.discard(self._path)


class MemoryDisk:
    """A ``tailrace_server.host.disk.Disk``.

    ``before`` is called with the name and path of each call before it has an effect: it may raise OSError to make the
    call fail, or ``Crashed``. ``changes`` counts the calls that change something, ``free_bytes`` is the space left.
    """

    Crashed = Crashed

    def __init__(self, *, size_bytes: int = 1 << 40) -> None:
        self.size_bytes = size_bytes
        self.device = 7
        self.machine = "a machine"
        self.life = 0
        self.changes = 0
        self.before: Callable[[str, str], None] | None = None
        self.locks: set[str] = set()
        self.names_now: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.pending: list[tuple[str, str | None, Inode | None]] = []  # (name that goes, name that comes, its file)
        self.directories = {"/"}
        self._inodes = 100

    @property
    def free_bytes(self) -> int:
        return self.size_bytes - sum(len(inode.content) for inode in self.names_now.values())

    def call(self, name: str, path: str) -> None:
        if self.before is not None:
            self.before(name, path)
        if name != "read_at":
            self.changes += 1

    def kill(self) -> None:
        """The process dies; all that it wrote is there."""
        self.life += 1
        self.locks.clear()
        self.before = None

    def cut_power(self, rnd: random.Random) -> None:
        """The machine dies; of what was not synced any part is there."""
        self.kill()
        for gone, come, inode in self.pending:
            if rnd.random() < 0.5:
                self._apply(self.names_durable, gone, come, inode)
        self.pending.clear()
        self.names_now = dict(self.names_durable)
        for inode in self.names_now.values():
            inode.survive(rnd)

    def _apply(self, names: dict[str, Inode], gone: str, come: str | None, inode: Inode | None) -> None:
        names.pop(gone, None)
        if come is not None and inode is not None:
            names[come] = inode

    def _change_name(self, gone: str, come: str | None, inode: Inode | None) -> None:
        self._apply(self.names_now, gone, come, inode)
        self.pending.append((gone, come, inode))

    def content(self, path: str) -> bytearray:
        """A file's bytes, to look at, and to damage on the platter and in the cache (they are made the same)."""
        inode = self.names_now[path]
        inode.sync()
        inode.durable = inode.content
        return inode.content

    def make_directory(self, path: str) -> None:
        self.call("make_directory", path)
        while path not in self.directories:
            self.directories.add(path)
            path = os.path.dirname(path)

    def names(self, path: str) -> list[str]:
        if path not in self.directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return sorted(os.path.basename(name) for name in self.names_now if os.path.dirname(name) == path)

    def exists(self, path: str) -> bool:
        return path in self.names_now or path in self.directories

    def create(self, path: str) -> MemoryFile:
        self.call("create", path)
        if path in self.names_now:
            self.names_now[path].change(0, None)
        else:
            self._inodes += 1
            self._change_name(path, path, Inode(self._inodes))
        return MemoryFile(self, path, self.names_now[path])

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return MemoryFile(self, path, self.names_now[path])

    def rename(self, source: str, target: str) -> None:
        self.call("rename", source)
        self._change_name(source, target, self.names_now[source])

    def remove(self, path: str) -> None:
        if path not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.call("remove", path)
        self._change_name(path, None, None)

    def sync_directory(self, path: str) -> None:
        self.call("sync_directory", path)
        rest = []
        for gone, come, inode in self.pending:
            if os.path.dirname(gone) == path:
                self._apply(self.names_durable, gone, come, inode)
            else:
                rest.append((gone, come, inode))
        self.pending = rest

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        file = self.create(path)
        file.write_at(0, (b"4711\n",), 5)
        self.locks.add(path)
        return MemoryLock(self, path)

    def machine_id(self) -> str:
        return self.machine

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)


@pytest.fixture(scope="session")
def memory_disk() -> type[MemoryDisk]:
    """The class, so that property tests make a new disk for each example."""
    return MemoryDisk
