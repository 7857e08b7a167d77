"""The journal's next file: created ahead by the thread that syncs, or by the loop's thread when a rotation needs it.

The two may happen at the same time, so each has a temporary name of its own: ``next.log.new`` ahead, and otherwise
``00000002.log.new`` for file 2. A start removes both.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.host.disk import TEMPORARY, is_out_of_descriptors
from tailrace_server.host.open_files import SpareFiles
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalHeader, file_name

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, File

NEXT_NAME = "next.log" + TEMPORARY

# The next file takes one descriptor. When the spare ones are closed for it, each of the node's threads may take one
# first.
SPARE_DESCRIPTORS = 8


class UnnamedFile(NamedTuple):
    """A new file of the journal under its temporary ``path``; space is allocated up to ``allocated``."""

    file: File
    path: str
    allocated: int


def create_file(disk: Disk, path: str, header: JournalHeader) -> File:
    """Creates a journal file with nothing but its header, under a temporary name. OSError: a part may be left."""
    file = disk.create(path + TEMPORARY)
    try:
        file.write_at(0, (header.pack(),), FILE_HEADER_BYTES)
    except OSError:
        file.close()
        raise
    return file


class NextFile:
    """Creates the next file of the journal in a directory.

    The loop's thread calls ``begin``; the thread that holds the journal's lock calls the other methods.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._spares = SpareFiles(disk, SPARE_DESCRIPTORS)
        self._lock = threading.Lock()  # held for no system call
        self._created: UnnamedFile | None = None
        self._is_begun = False  # a file that was created ahead was begun, and still has its temporary name

    @property
    def can_be_created(self) -> bool:
        """No file has the temporary name of a file that is created ahead."""
        with self._lock:
            return self._created is None and not self._is_begun

    def keep_descriptors(self, path: str) -> None:
        """Keeps spare descriptors, of the file at ``path``."""
        self._spares.keep(path)

    def create_ahead(self, nbytes: int) -> None:
        """Creates the next file, and allocates ``nbytes`` for it if the file system can. OSError.

        The caller knows that it ``can_be_created``: otherwise this would empty a file with records.
        """
        path = os.path.join(self._directory, NEXT_NAME)
        file = self._disk.create(path)
        file.allocate(0, nbytes)
        with self._lock:
            self._created = UnnamedFile(file, path, nbytes)

    def begin(self, header: JournalHeader) -> UnnamedFile:
        """Returns the next file, with ``header`` written to it. OSError: the next call creates another file."""
        with self._lock:
            created, self._created = self._created, None
            self._is_begun = created is not None
        if created is None:
            created = self._create(header)
        else:
            try:
                created.file.write_at(0, (header.pack(),), FILE_HEADER_BYTES)
            except OSError:
                created.file.close()
                self._is_begun = False
                raise
        self._spares.keep(created.path)
        return created

    def named(self) -> None:
        """Notes that the file that was begun last has its own name, durably."""
        self._is_begun = False

    def _create(self, header: JournalHeader) -> UnnamedFile:
        path = os.path.join(self._directory, file_name(header.number))
        try:
            file = create_file(self._disk, path, header)
        except OSError as error:
            if not is_out_of_descriptors(error) or not self._spares.release():
                raise
            file = create_file(self._disk, path, header)
        return UnnamedFile(file, path + TEMPORARY, FILE_HEADER_BYTES)

    def remove(self) -> None:
        """Removes the file that was created ahead. If that fails, the next start does it."""
        if self._created is not None:
            with contextlib.suppress(OSError):
                self._disk.remove(self._created.path)

    def close(self) -> None:
        """Closes all descriptors. May be called again."""
        self._spares.release()
        if self._created is not None:
            self._created.file.close()
