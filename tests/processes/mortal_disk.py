"""A real disk at one of whose calls the process dies, and which can forget data that was not synced."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading

from tailrace_server.host.disk import RealDisk, RealFile


class Death:
    """Counts the calls of a disk, and ends the process at one of them."""

    def __init__(self, how: str, calls: str, dies_at: int) -> None:
        self._how = how
        self._calls = calls
        self._calls_left = dies_at
        self.forget = None  # called right before the end
        self.hangs = False
        self._lock = threading.Lock()

    def hang(self, *_) -> None:
        """No fsync comes back from now on."""
        self.hangs = True

    def count_anew(self, calls: int) -> None:
        with self._lock:
            self._calls_left = calls

    @contextlib.contextmanager
    def at_a_call(self, name, torn=None):
        """Around each call; ``torn`` makes half of it."""
        with self._lock:
            counts = self._calls in ("", name)
            self._calls_left -= counts
            now = counts and self._calls_left == 0
        if now and self._how != "after":
            if self._how == "torn" and torn is not None:
                torn()
            self._die()
        yield
        if now:
            self._die()

    def _die(self) -> None:
        if self.forget is not None:
            self.forget()
        os.kill(os.getpid(), signal.SIGKILL)


class MortalDirectory:
    """An open directory of a `MortalDisk`."""

    def __init__(self, disk, directory):
        self._disk = disk
        self._directory = directory
        self.close = directory.close

    def sync(self):
        with self._disk.death.at_a_call("sync_directory"):
            self._directory.sync()


class MortalDisk(RealDisk):
    """A real disk; ``forgets``: the process holds unsynced data of the files, as the machine holds it in memory.

    When the process ends at a call any part of that has reached the files, as at a power cut; when it is killed from
    outside, nothing. Names are durable at once.
    """

    def __init__(self, death: Death, *, forgets: bool) -> None:
        self.death = death
        self.forgets = forgets
        self.files: list[MortalFile] = []
        death.forget = self._cut_power

    def _cut_power(self) -> None:
        rnd = random.Random(os.getpid())
        for file in self.files:
            file.lose_some(rnd)

    def _wrap(self, file: RealFile) -> MortalFile:
        mortal = MortalFile(self, file)
        self.files.append(mortal)
        return mortal

    def make_directory(self, path):
        with self.death.at_a_call("make_directory"):
            super().make_directory(path)

    def make_directories(self, paths):
        with self.death.at_a_call("make_directory"):
            super().make_directories(paths)

    def create(self, path):
        with self.death.at_a_call("create"):
            return self._wrap(super().create(path))

    def open(self, path, *, writable=False):
        return self._wrap(super().open(path, writable=writable))

    def rename(self, source, target):
        with self.death.at_a_call("rename"):
            super().rename(source, target)

    def remove(self, path):
        with self.death.at_a_call("remove"):
            super().remove(path)

    def remove_large(self, path):
        with self.death.at_a_call("remove"):
            super().remove_large(path)

    def sync_directory(self, path):
        with self.death.at_a_call("sync_directory"):
            super().sync_directory(path)

    def open_directory(self, path):
        return MortalDirectory(self, super().open_directory(path))


class MortalFile:
    """A file of a ``MortalDisk``. ``_unsynced``: (offset, data) of writes, (size, None) of truncations, in order."""

    def __init__(self, disk: MortalDisk, file: RealFile) -> None:
        self._disk = disk
        self._file = file
        self._lock = threading.Lock()
        self._unsynced: list[tuple[int, bytes | None]] = []

    def _apply(self, offset: int, data: bytes | None) -> None:
        if data is None:
            self._file.truncate(offset)
        else:
            self._file.write_at(offset, (data,), len(data))

    def _change(self, offset: int, data: bytes | None) -> None:
        with self._lock:
            if self._disk.forgets:
                self._unsynced.append((offset, data))
            else:
                self._apply(offset, data)

    def lose_some(self, rnd: random.Random) -> None:
        for offset, data in self._unsynced:
            if rnd.random() < 0.5:
                self._apply(offset, data if data is None else data[: rnd.randint(0, len(data))])

    def write_at(self, offset, buffers, nbytes):
        data = b"".join(buffers)
        assert len(data) == nbytes
        with self._disk.death.at_a_call("write_at", lambda: self._change(offset, data[: nbytes // 2])):
            self._change(offset, data)

    def truncate(self, size):
        with self._disk.death.at_a_call("truncate"):
            self._change(size, None)

    def allocate(self, offset, nbytes):
        with self._disk.death.at_a_call("allocate"):
            return self._file.allocate(offset, nbytes)

    def begin_sync(self, offset, nbytes):
        self._file.begin_sync(offset, nbytes)

    def sync(self):
        with self._disk.death.at_a_call("sync"):
            if self._disk.death.hangs:
                threading.Event().wait()
            with self._lock:
                unsynced, self._unsynced = self._unsynced, []
                for offset, data in unsynced:
                    self._apply(offset, data)
            self._file.sync()

    def read_at(self, offset, nbytes):
        with self._lock:
            assert not self._unsynced, "nothing reads what it has just written"
        return self._file.read_at(offset, nbytes)

    def read_cached(self, offset, nbytes):
        with self._lock:
            assert not self._unsynced, "nothing reads what it has just written"
        return self._file.read_cached(offset, nbytes)

    def size(self):
        with self._lock:
            assert not self._unsynced, "nothing measures what it has just written"
        return self._file.size()

    def identity(self):
        return self._file.identity()

    def close(self):
        # Unsynced data is kept as the machine's cache would keep it: it survives the file, and not the machine.
        if not self._unsynced:
            self._file.close()
