"""The files of a journal that take no more records: their sizes, and their removal.

Files are removed oldest first. The removal of a file is durable before the next file is removed, so that no crash
leaves a gap in the numbers: recovery would take a gap for damage.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.journal.format import file_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tailrace_server.host.disk import Directory, Disk


class OlderFile(NamedTuple):
    """The number, bytes and records of a file; ``surplus_ns`` is the sum over its records (replay_cost.py)."""

    number: int
    nbytes: int
    records: int
    surplus_ns: int


class OlderFiles:
    """All files but the newest one, oldest first.

    The owner holds ``lock`` around every use but ``trim``. The lock is held for no system call.
    """

    def __init__(
        self, disk: Disk, path: str, directory: Directory, files: Iterable[OlderFile], lock: threading.Lock
    ) -> None:
        """``directory`` is the open directory at ``path`` that holds the files."""
        self._disk = disk
        self._path = path
        self._directory = directory
        self._files = collections.deque(files)
        self._lock = lock
        self._trim_lock = threading.Lock()
        self._removal_is_durable = True

    def __len__(self) -> int:
        return len(self._files)

    def add(self, file: OlderFile) -> None:
        """Adds a file, which is younger than all others."""
        self._files.append(file)

    def totals(self) -> tuple[int, int, int]:
        """Returns the bytes, records and ``surplus_ns`` of all files together."""
        files = self._files
        return sum(f.nbytes for f in files), sum(f.records for f in files), sum(f.surplus_ns for f in files)

    @property
    def newest_bytes(self) -> int:
        """The size of the youngest file; 0 if there is no file."""
        return self._files[-1].nbytes if self._files else 0

    def cut(self) -> None:
        """Cuts each file at its end, durably: copies of a rotation go (rotation.py). OSError.

        For a clean stop. After any other stop, the next start does it.
        """
        for each in self._files:
            path = os.path.join(self._path, file_name(each.number))
            with contextlib.closing(self._disk.open(path, writable=True)) as file:
                if file.size() > each.nbytes:
                    file.truncate(each.nbytes)
                    file.sync()

    def trim(self, before_number: int, check: Callable[[], None]) -> int:
        """Removes the files with smaller numbers; returns how many. May run in any thread.

        Calls ``check`` before each removal: it may raise. OSError: the files that were removed so far are counted no
        more, and the next call continues.
        """
        removed = 0
        with self._trim_lock:
            self._sync_removal()
            while (oldest := self._oldest()) is not None and oldest < before_number:
                check()
                self._disk.remove_large(os.path.join(self._path, file_name(oldest)))
                self._removal_is_durable = False
                with self._lock:
                    self._files.popleft()
                removed += 1
                self._sync_removal()
        return removed

    def _oldest(self) -> int | None:
        with self._lock:
            return self._files[0].number if self._files else None

    def _sync_removal(self) -> None:
        """Makes the last removal durable, if that is not done yet."""
        if not self._removal_is_durable:
            self._directory.sync()
            self._removal_is_durable = True
