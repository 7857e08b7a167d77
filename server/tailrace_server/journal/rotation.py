"""Rotation: the change from one file of the journal to the next, in which the loop's thread waits for no fsync.

    loop's thread   append | swap | append to the new file, copy to the old one       | append to the new file
    sync's thread          |      | fsync old, fsync new, give the new one its name   | close the old one

1. A file is durable as a whole before its successor has its name. So ``synced`` stays in the old file until then.
2. Until then a start finds only the old file. A copy of each record of the new file is therefore written to the old
   one too, behind its end: a process that is killed loses no record that ``append`` has returned.
3. Once the new file has its name durably, bytes behind the end of the old one do not count (LEFTOVER in file_case.py).
   The copies stay there until a clean stop or the next start, because a backup that runs may have taken them for the
   journal's end.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from tailrace_server.host.disk import TEMPORARY
from tailrace_server.journal.format import FILE_BYTES_MAX, JournalHeader, lsn, pack_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.host.disk import Buffer, Directory, Disk, File


def publish_file(disk: Disk, path: str, file: File) -> None:
    """Makes a file of ``next_file.create_file`` durable, gives it its name, and makes that durable too. OSError."""
    file.sync()
    disk.rename(path + TEMPORARY, path)
    disk.sync_directory(os.path.dirname(path))


def name_file(disk: Disk, directory: Directory, file: File, temporary: str, path: str) -> None:
    """Makes a file durable, renames it from ``temporary`` to ``path``, and makes that durable too. OSError.

    Needs no descriptor: ``directory`` is open.
    """
    file.sync()
    disk.rename(temporary, path)
    directory.sync()


class Rotation:
    """A file that takes no more records, until its successor has its name.

    Only the loop's thread calls ``copy``; the other methods are for the thread that syncs.
    """

    def __init__(self, file: File, header: JournalHeader, end: int, successor_path: str) -> None:
        """``file`` ends at the offset ``end``; its successor has the temporary name ``successor_path``."""
        self.is_named = False  # the successor has its name durably
        self.base = lsn(header.number, 0)
        self.end = end
        self.successor_path = successor_path
        self._file = file
        self._header = header
        self._copies_end = end
        self._copying = threading.Lock()  # held while a copy is written, and for no fsync

    def copy(
        self,
        synced: int,
        kind: int,
        feed_id: bytes,
        partition: int,
        branch: bytes,
        snapshot: tuple[int, int],
        covered: bytes,
        payload: Sequence[Buffer],
        nbytes: int,
        size: int,
    ) -> bool:
        """Writes a copy of a record of the successor: ``payload`` with its padding, ``size`` bytes with its header.

        ``synced`` is the offset up to which this file is durable; beyond its end if its successor is durable, too.
        Returns False if the successor has its name: there are no more copies. OSError: none may follow.
        """
        with self._copying:
            if self.is_named:
                return False
            offset = self._copies_end
            if offset + size > FILE_BYTES_MAX:
                raise OSError("the file would be too large")
            key, number = self._header.key, self._header.number
            record = pack_record(
                key, number, offset, min(synced, self.end), nbytes, kind, partition, feed_id, branch, snapshot, covered
            )
            self._file.write_at(offset, (record, *payload), size)
            self._copies_end = offset + size
            return True

    def make_durable(self) -> None:
        """Fsyncs the file. OSError."""
        self._file.sync()

    def named(self) -> None:
        """Notes that the successor has its name durably: no copy is written from now on."""
        with self._copying:
            self.is_named = True

    def cut(self) -> None:
        """Cuts off the space behind the copies, durably, and closes the file. OSError."""
        try:
            self._file.truncate(self._copies_end)
            self._file.sync()
        finally:
            self._file.close()

    def close(self) -> None:
        """Closes the file as it is. May be called again."""
        self._file.close()
