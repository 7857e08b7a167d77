"""A disk in memory that loses what was not synced, tears writes, fills up, rots, and fails when it is told to.

What a power cut leaves (``cut_power``) is chosen from everything that a journaling file system may leave:

1. **Content.** Every change of a file since its last sync is there or not, each on its own: a write by sectors of 64
   bytes (far below a real one, so that small records are torn at every place), the last write up to any byte, a
   truncation or allocation as a whole. A file's new size may be there without the data, which reads as zeros then.
2. **Names.** Every creation, link, rename and removal of a name since the last sync of its directory is there or not,
   each on its own, with one rule: none is there without the earlier ones of the same names, and a directory is not
   removed without what was removed or moved out of it. A rename is there for both of its names, or for neither.
3. Content and names know nothing of each other: a name may be durable and its file empty, and the other way round.

So ext4's and XFS's behaviour (the journal is replayed in order, hence a beginning of all changes of names) is one of
many, and so is that of file systems which commit one directory or one file before the others. ``survivals`` lists all
choices of the second kind, for tests that try every one. What no file system with a journal does is left out: half a
rename, a name of a file that never was, two files in one.

A process that is killed (``kill``) loses nothing, but the rest of a write that it was in (``torn_bytes``).
"""

from __future__ import annotations

import copy
import errno
import functools
import itertools
import os
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SECTOR_BYTES = 64
# Disks and tables of descriptors of at least these sizes never fill up: what takes room on them is not added up.
BOUNDLESS_BYTES = 1 << 40
BOUNDLESS_FILES = 1 << 20

# Calls that change nothing; of these a crash test need not try each.
READING = frozenset({"read_at", "names", "open", "free_bytes"})


class Crashed(BaseException):
    """The machine stops here: no handler of the code under test may go on."""


class Fate(random.Random):
    """Chance that always decides alike: of what was not synced everything is there, or nothing."""

    def __init__(self, *, keeps: bool) -> None:
        super().__init__(0)
        self._keeps = keeps

    def random(self) -> float:
        return 0.0 if self._keeps else 1.0

    def randint(self, a: int, b: int) -> int:
        return b if self._keeps else a


KEEP = Fate(keeps=True)
LOSE = Fate(keeps=False)


class Content:
    """The bytes of a file. Zeros at its end are only counted: the journal allocates far more than a test writes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._zeros = 0

    @property
    def size(self) -> int:
        return len(self._data) + self._zeros

    def change(self, offset: int, data: bytes | None) -> None:
        """Writes ``data`` at ``offset``. If it is None, cuts or extends the file to ``offset`` bytes."""
        if data is None:
            del self._data[offset:]
            self._zeros = offset - len(self._data)
            return
        size = self.size
        if offset >= len(self._data) and data.count(0) == len(data):
            self._zeros = max(size, offset + len(data)) - len(self._data)
            return
        self._data.extend(bytes(max(0, offset - len(self._data))))
        self._data[offset : offset + len(data)] = data
        self._zeros = max(0, size - len(self._data))

    def read(self, offset: int, nbytes: int) -> bytes:
        nbytes = max(0, min(nbytes, self.size - offset))
        return bytes(self._data[offset : offset + nbytes]).ljust(nbytes, b"\0")

    def whole(self) -> bytearray:
        """Returns all bytes, to look at or to change."""
        self._data.extend(bytes(self._zeros))
        self._zeros = 0
        return self._data

    def copy(self) -> Content:
        copied = Content()
        copied._data, copied._zeros = bytearray(self._data), self._zeros
        return copied


class Inode:
    """A file: what is on the platter, what the page cache shows, and the changes between the two."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened = 0
        self.durable = Content()
        self.content = Content()
        self.pending: list[tuple[int, bytes | None]] = []  # (offset, data) of a write, (size, None) of a truncation

    def copy(self) -> Inode:
        copied = Inode(self.number)
        copied.opened = self.opened
        copied.content = self.content.copy()
        # `MemoryDisk.content` makes them one object.
        copied.durable = copied.content if self.durable is self.content else self.durable.copy()
        copied.pending = self.pending.copy()
        return copied

    def change(self, offset: int, data: bytes | None) -> None:
        self.content.change(offset, data)
        self.pending.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.pending:
            self.durable.change(offset, data)
        self.pending.clear()

    def survive(self, rnd: random.Random) -> None:
        """Power fails: rule 1 of the module."""
        length = self.content.size
        if self.pending and self.pending[-1][1]:
            offset, data = self.pending.pop()
            self.pending.append((offset, data[: rnd.randint(0, len(data))]))
        for offset, data in self.pending:
            if data is None:
                if rnd.random() < 0.5:
                    self.durable.change(offset, None)
                continue
            for begin in range(0, len(data), SECTOR_BYTES):
                if rnd.random() < 0.7:
                    self.durable.change(offset + begin, data[begin : begin + SECTOR_BYTES])
        if self.durable.size < length and rnd.random() < 0.5:  # the size was written, and the data was not
            self.durable.change(length, None)
        self.pending.clear()
        self.content = self.durable.copy()


@functools.lru_cache(maxsize=4_096)
def folder_of(path: str) -> str:
    """The directory that a name is in."""
    return os.path.dirname(path)


class NameChange(NamedTuple):
    """A change of names that is not durable yet: the name that goes, the one that comes, and the file that it is of.

    ``inode`` is None where a name only goes; ``is_directory`` where it is that of a directory.
    """

    gone: str | None
    come: str | None
    inode: Inode | None
    is_directory: bool = False

    @property
    def names(self) -> set[str]:
        return {name for name in (self.gone, self.come) if name is not None}

    def needs(self, earlier: NameChange) -> bool:
        """Rule 2 of the module: this one is there only where ``earlier``, which came before it, is."""
        if self.names & earlier.names:
            return True
        return self.is_directory and any(folder_of(name) == self.gone for name in earlier.names)

    def touches(self, directory: str) -> bool:
        return any(name is not None and folder_of(name) == directory for name in (self.gone, self.come))


def failure(code: int, path: str) -> OSError:
    """What the system would raise."""
    return OSError(code, os.strerror(code), path)


class MemoryFile:
    """A ``tailrace_server.host.disk.File``; dead as soon as the machine or the process is."""

    def __init__(self, disk: MemoryDisk, path: str, inode: Inode) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._open = True
        inode.opened += 1

    def _call(self, name: str) -> None:
        assert self._open
        assert self._life == self._disk.life
        self._disk.call(name, self._path)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        self._call("read_at")
        return self._inode.content.read(offset, nbytes)

    def read_cached(self, offset: int, nbytes: int) -> bytes | None:
        return None if self._disk.misses() else self.read_at(offset, nbytes)

    def write_at(self, offset: int, buffers, nbytes: int) -> None:
        data = b"".join(buffers)
        assert len(data) == nbytes
        try:
            self._call("write_at")
        except BaseException:
            self._write_part(offset, data[: self._disk.torn_bytes])
            raise
        missing = 0 if self._disk.is_boundless else self._growth(offset + nbytes) - self._disk.free
        if missing > 0:
            self._write_part(offset, data[: max(0, nbytes - missing)])
            raise failure(errno.ENOSPC, self._path)
        self._inode.change(offset, data)

    def _write_part(self, offset: int, data: bytes) -> None:
        if data:
            self._inode.change(offset, data)

    def _growth(self, end: int) -> int:
        return max(0, end - self._inode.content.size)

    def allocate(self, offset: int, nbytes: int) -> bool:
        try:
            self._call("allocate")
        except OSError:
            return False
        growth = self._growth(offset + nbytes)
        if not self._disk.is_boundless and growth > self._disk.free:
            return False
        if growth > 0:
            self._inode.change(offset + nbytes, None)
        return True

    def begin_sync(self, offset: int, nbytes: int) -> None:
        """Does nothing: a power failure may leave any part of what was not synced in any case."""
        assert self._open
        assert self._life == self._disk.life
        assert 0 < nbytes <= self._inode.content.size - offset

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
        return self._inode.content.size

    def identity(self) -> tuple[int, int]:
        return self._disk.device, self._inode.number

    def close(self) -> None:
        if self._open and self._life == self._disk.life:
            self._inode.opened -= 1
            self._disk.forget_unnamed()
        self._open = False


class MemoryDirectory:
    """A ``tailrace_server.host.disk.Directory``; dead as soon as the machine or the process is."""

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._life = disk.life
        self._open = True

    def sync(self) -> None:
        assert self._open
        assert self._life == self._disk.life
        self._disk.call("sync_directory", self._path)
        self._disk.make_names_durable(self._path)

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

    ``before`` is called with the name and path of each call that can fail, before it has an effect: it may raise
    OSError to make the call fail, or ``Crashed``. ``calls`` counts them all, ``changes`` those that change something.
    Of a write that is stopped so, the first ``torn_bytes`` are written. ``size_bytes`` is the size of the disk, and
    ``free`` what is left of it: files count while they have a name or are open, once however many names they have.
    The process may have ``files_max`` files open. With ``misses_every``, the system has to read the bytes of each
    so-many-th ``read_cached`` from the platter first.
    """

    Crashed = Crashed

    def __init__(self, *, size_bytes: int = BOUNDLESS_BYTES) -> None:
        self.size_bytes = size_bytes
        self.files_max = BOUNDLESS_FILES
        self.device = 7
        self.machine = "a machine"
        self.life = 0
        self.calls = 0
        self.changes = 0
        self.torn_bytes = 0
        self.before: Callable[[str, str], None] | None = None
        self.locks: set[str] = set()
        self.names_now: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.directories = {"/"}
        self.directories_durable = {"/"}
        self.pending: list[NameChange] = []
        self._unnamed: list[Inode] = []  # removed, and still open
        self.flips = 0  # how many bits were changed
        self._inodes = 100
        self.misses_every = 0
        self._cached_reads = 0

    # What goes wrong.

    def misses(self) -> bool:
        """Tells whether the next bytes are not in memory."""
        self._cached_reads += 1
        return self.misses_every > 0 and self._cached_reads % self.misses_every == 0

    def call(self, name: str, path: str) -> None:
        if self.before is not None:
            self.before(name, path)
        self.calls += 1
        self.changes += name not in READING

    def fail(self, name: str, code: int = errno.EIO, where: str = "") -> None:
        """Let every call ``name`` on a path with ``where`` in it fail, until ``before`` is None again."""

        def before(called: str, path: str) -> None:
            if called == name and where in path:
                raise failure(code, path)

        self.before = before

    def fail_at(self, number: int, code: int) -> None:
        """Let one call fail with this errno: that before which ``number`` others succeed, whatever it is."""
        self._stop_at("calls", number, lambda path: failure(code, path))

    def crash_at(self, number: int) -> None:
        """Stop at a call: that before which ``number`` others have changed something. All later ones stop as well."""
        self._stop_at("changes", number, lambda path: Crashed())

    def _stop_at(self, counter: str, number: int, error: Callable[[str], BaseException]) -> None:
        place = getattr(self, counter) + number

        def before(name: str, path: str) -> None:
            if getattr(self, counter) < place or (counter == "changes" and name in READING):
                return
            if counter == "calls":
                self.before = None
            raise error(path)

        self.before = before

    def kill(self) -> None:
        """The process dies; all that it wrote is there."""
        self.life += 1
        self.locks.clear()
        self.before = None
        for inode in (*self.names_now.values(), *self._unnamed):
            inode.opened = 0
        self._unnamed.clear()

    def cut_power(self, rnd: random.Random, names: Iterable[int] | None = None) -> None:
        """The machine dies; of what was not synced any part is there, as the module says and ``rnd`` decides.

        ``names``, one of ``survivals``, are the changes of names that are there.
        """
        self.kill()
        kept = set(self._choose(rnd) if names is None else names)
        for index, change in enumerate(self.pending):
            if index in kept:
                self._apply(self.names_durable, self.directories_durable, change)
        self.pending.clear()
        self.names_now = dict(self.names_durable)
        self.directories = set(self.directories_durable)
        for inode in self._inodes_now():
            inode.survive(rnd)

    def survivals(self) -> Iterator[frozenset[int]]:
        """Every set of changes of names that a power cut may leave, as places in ``pending``."""
        for count in range(len(self.pending) + 1):
            for chosen in itertools.combinations(range(len(self.pending)), count):
                if self._closure(chosen) == frozenset(chosen):
                    yield frozenset(chosen)

    def _choose(self, rnd: random.Random) -> frozenset[int]:
        """Half of the time a beginning, as ext4 leaves it, and otherwise any set that may be left."""
        count = len(self.pending)
        if rnd.random() < 0.5:
            return frozenset(range(rnd.randint(0, count)))
        dropped = {index for index in range(count) if rnd.random() >= 0.5}
        return frozenset(index for index in range(count) if not self._closure((index,)) & dropped)

    def _closure(self, chosen: Iterable[int]) -> frozenset[int]:
        """These changes, and all that they need."""
        closed = set(chosen)
        for index in range(len(self.pending) - 1, -1, -1):
            if index in closed:
                closed.update(i for i in range(index) if self.pending[index].needs(self.pending[i]))
        return frozenset(closed)

    def fork(self) -> MemoryDisk:
        """A disk in the same state, that goes its own way from here on; nothing is planned to go wrong on it."""
        inodes: dict[int, Inode] = {}  # a file has one copy, however many names it has

        def copied(inode: Inode) -> Inode:
            if inode.number not in inodes:
                inodes[inode.number] = inode.copy()
            return inodes[inode.number]

        disk = copy.copy(self)
        disk.before = None
        disk.locks = self.locks.copy()
        disk.names_now = {name: copied(inode) for name, inode in self.names_now.items()}
        disk.names_durable = {name: copied(inode) for name, inode in self.names_durable.items()}
        disk.directories = self.directories.copy()
        disk.directories_durable = self.directories_durable.copy()
        disk.pending = [
            change if change.inode is None else change._replace(inode=copied(change.inode)) for change in self.pending
        ]
        disk._unnamed = [copied(inode) for inode in self._unnamed]
        return disk

    def content(self, path: str) -> bytearray:
        """A file's bytes, to look at, and to damage on the platter and in the cache (they are made the same)."""
        inode = self.names_now[path]
        inode.sync()
        inode.durable = inode.content
        return inode.content.whole()

    def flip(self, path: str, bit: int) -> None:
        """Change a bit of a file, counted from its first byte's least one."""
        self.flips += 1
        self.content(path)[bit >> 3] ^= 1 << (bit & 7)

    @property
    def is_boundless(self) -> bool:
        """Whether the disk is so large that no test can fill it."""
        return self.size_bytes >= BOUNDLESS_BYTES

    @property
    def free(self) -> int:
        """Bytes that are left; negative where ``size_bytes`` was made smaller than what is there."""
        return self.size_bytes - sum(inode.content.size for inode in self._inodes_now())

    def _inodes_now(self) -> list[Inode]:
        """Every file that has a name or is open, once."""
        return list({inode.number: inode for inode in (*self.names_now.values(), *self._unnamed)}.values())

    @property
    def files(self) -> int:
        """How many files are open."""
        return sum(inode.opened for inode in self._inodes_now())

    def _take_descriptor(self, path: str) -> None:
        if self.files_max < BOUNDLESS_FILES and self.files >= self.files_max:
            raise failure(errno.EMFILE, path)

    def forget_unnamed(self) -> None:
        """A file that has no name ends when nobody has it open."""
        self._unnamed = [inode for inode in self._unnamed if inode.opened]

    # Names.

    @staticmethod
    def _apply(names: dict[str, Inode], directories: set[str], change: NameChange) -> None:
        if change.is_directory:
            directories.discard(change.gone or "")
            return
        if change.gone is not None:
            names.pop(change.gone, None)
        if change.come is not None and change.inode is not None:
            names[change.come] = change.inode

    def _change_name(self, change: NameChange) -> None:
        replaced = [self.names_now[name] for name in (change.gone, change.come) if name in self.names_now]
        self._apply(self.names_now, self.directories, change)
        self.pending.append(change)
        for inode in replaced:
            if inode.opened and not any(inode is named for named in self.names_now.values()):
                self._unnamed.append(inode)

    def _make_durable(self, chosen: Iterable[int]) -> None:
        chosen = list(chosen)
        closed = self._closure(chosen) if len(chosen) < len(self.pending) else frozenset(chosen)
        for index, change in enumerate(self.pending):
            if index in closed:
                self._apply(self.names_durable, self.directories_durable, change)
        self.pending = [change for index, change in enumerate(self.pending) if index not in closed]

    def _inode(self, path: str) -> Inode:
        if path in self.directories:
            raise failure(errno.EISDIR, path)
        if path not in self.names_now:
            raise failure(errno.ENOENT, path)
        return self.names_now[path]

    def _check_place(self, path: str) -> None:
        """A name can be made only in a directory that is there."""
        if path in self.directories:
            raise failure(errno.EISDIR, path)
        if folder_of(path) not in self.directories:
            raise failure(errno.ENOENT, path)

    def make_directory(self, path: str) -> None:
        missing = []
        while path not in self.directories:
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            self.call("make_directory", directory)
            self._make_durable(index for index, change in enumerate(self.pending) if directory in change.names)
            self.directories.add(directory)
            self.directories_durable.add(directory)

    def make_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.make_directory(path)

    def names(self, path: str) -> list[str]:
        self.call("names", path)
        if path not in self.directories:
            raise failure(errno.ENOTDIR if path in self.names_now else errno.ENOENT, path)
        there = (*self.names_now, *(self.directories - {"/"}))
        return sorted(os.path.basename(name) for name in there if folder_of(name) == path)

    def exists(self, path: str) -> bool:
        return path in self.names_now or path in self.directories

    def create(self, path: str) -> MemoryFile:
        self._check_place(path)
        self._take_descriptor(path)
        self.call("create", path)
        if path in self.names_now:
            self.names_now[path].change(0, None)
        else:
            self._inodes += 1
            self._change_name(NameChange(None, path, Inode(self._inodes)))
        return MemoryFile(self, path, self.names_now[path])

    def open(self, path: str, *, writable: bool = False) -> MemoryFile:
        self._take_descriptor(path)
        self.call("open", path)
        return MemoryFile(self, path, self._inode(path))

    def rename(self, source: str, target: str) -> None:
        inode = self._inode(source)
        self._check_place(target)
        self.call("rename", source)
        if self.names_now.get(target) is not inode:  # two names of one file: the system does nothing then
            self._change_name(NameChange(source, target, inode))

    def link(self, source: str, target: str) -> None:
        inode = self._inode(source)
        if self.exists(target):
            raise failure(errno.EEXIST, target)
        self._check_place(target)
        self.call("link", target)
        self._change_name(NameChange(None, target, inode))

    def remove(self, path: str) -> None:
        self._inode(path)
        self.call("remove", path)
        self._change_name(NameChange(path, None, None))

    def remove_large(self, path: str) -> None:
        self.remove(path)

    def remove_directory(self, path: str) -> None:
        if path not in self.directories:
            raise failure(errno.ENOTDIR if path in self.names_now else errno.ENOENT, path)
        self.call("remove_directory", path)
        if any(os.path.dirname(name) == path for name in (*self.names_now, *self.directories)):
            raise failure(errno.ENOTEMPTY, path)
        self._change_name(NameChange(path, None, None, is_directory=True))

    def sync_directory(self, path: str) -> None:
        if path not in self.directories:
            raise failure(errno.ENOENT, path)
        self._take_descriptor(path)
        self.call("sync_directory", path)
        self.make_names_durable(path)

    def make_names_durable(self, path: str) -> None:
        """All changes of names in a directory are on the platter."""
        self._make_durable(index for index, change in enumerate(self.pending) if change.touches(path))

    def open_directory(self, path: str) -> MemoryDirectory:
        if path not in self.directories:
            raise failure(errno.ENOENT, path)
        self._take_descriptor(path)
        return MemoryDirectory(self, path)

    def sync_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.sync_directory(path)

    def free_bytes(self, path: str) -> int:
        self.call("free_bytes", path)
        return max(0, self.free)

    def lock(self, path: str) -> MemoryLock:
        if path in self.locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        file = self.create(path)
        file.write_at(0, (b"4711\n",), 5)
        file.close()
        self.locks.add(path)
        return MemoryLock(self, path)

    def machine_id(self) -> str:
        return self.machine

    def real_path(self, path: str) -> str:
        return os.path.normpath(path)

    def size_of(self, path: str) -> int:
        inode = self.names_now.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return inode.content.size

    def changed_ns(self, path: str) -> int:
        inode = self.names_now.get(path)
        return 0 if inode is None else inode.number
