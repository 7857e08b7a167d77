"""``tailrace backup``: copies a data directory while a node writes to it. The copy is a state that it was in.

    1. journal    opens every file, so that it can be read to its end even if the node removes it
    2. feeds      reads FEED and MANIFEST, and links each segment; if a segment is gone, reads MANIFEST again
    3. journal    opens new files, and reads the newest one up to its last complete record
    4. copy       copies the journal's files, the newest up to that record, and segments that could not be linked

The node takes no part. Why that is enough: take a record of the journal that was durable when the backup began. The
node removes a file of the journal only when a FEED or a MANIFEST has all of its records, durably. If the record's file
was gone at 1, that FEED or MANIFEST existed before 2, and is in the backup. Otherwise the file is open. A file that
came and went between 1 and 3 leaves a gap in the numbers, and the backup starts again. It also starts again if a
restart of the node has replaced a file.

So the backup has all that was acknowledged before it began, and its journal is a prefix of the writes. The older files
are read completely at 3: this detects replaced files, and damage is not copied.

Linked segments take no space and no time; they share the disk's blocks with the original. If the target is out of the
reach of links, segments are linked in a directory beside the data, so that 2 is short, and copied from there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import TailraceError
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory import uptime_file
from tailrace_server.directory.copying import (
    Shrunk,
    can_link,
    check_target,
    copy_bytes,
    copy_file,
    make_durable,
    remove_below,
)
from tailrace_server.directory.identity import FILE_NAME, load
from tailrace_server.directory.sealed import seal
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.host.disk import read_file, write_atomically
from tailrace_server.journal.errors import JournalDamaged
from tailrace_server.journal.format import FILE_HEADER_BYTES, JournalFormatError, JournalHeader, file_name
from tailrace_server.journal.reader import RawRecord, Window
from tailrace_server.manifest import FeedFile, ManifestDamaged, codec, segment_name
from tailrace_server.manifest.store import FEED_NAME, FEEDS_NAME, MANIFEST_NAME
from tailrace_server.offline.data_directory import JOURNAL_NAME, check_data_directory
from tailrace_server.offline.format_versions import check_versions
from tailrace_server.offline.journal_walk import Bad, numbers_in, walk
from tailrace_server.replication.membership import was_of_set

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, File

STAGING_NAME = "backup.new"
STAGING_LOCK_NAME = "backup.lock"
_FORMAT = "tailrace backup"

# With links a try takes milliseconds: all tries fail only if the node keeps restarting.
TRIES_MAX = 20


class BackupFailed(TailraceError):
    """No backup could be taken. The data directory was not changed."""


class _Moved(Exception):
    """The node has changed files during a try; a new try can succeed."""


class Backup(NamedTuple):
    """A backup that was taken: the number of ``segments`` and of ``linked`` ones, and the bytes of both parts."""

    segments: int
    linked: int
    segment_bytes: int
    journal_bytes: int
    tries: int


class _OpenFile(NamedTuple):
    """An open file of the journal, with its header."""

    file: File
    header: JournalHeader


def backup(
    disk: Disk,
    directory: str,
    target: str,
    wall_us: int,
    *,
    copies: bool = False,
    watcher: Watcher | None = None,
    between: Callable[[str], None] = lambda _: None,
) -> Backup:
    """Takes a backup of a directory, with or without a running node, into ``target``, which is empty or missing.

    It does not take the directory's lock, so that a node can start during a long copy. ``copies``: segments are copied
    even if they could be linked. ``between`` is called with the name of each stage that begins, for tests that keep
    writing. Raises BackupFailed, BadDirectory, OSError: then ``target`` has no BACKUP, so it is not taken for a backup.
    """
    check_data_directory(disk, directory)
    check_versions(disk, directory)
    marks.check_usable(disk, directory)
    check_target(disk, directory, target)
    load(disk, directory)
    disk.make_directory(target)
    return _Backup(disk, directory, target, watcher or Unwatched(), between, copies=copies).run(wall_us)


class _Backup:
    def __init__(
        self, disk: Disk, data: str, target: str, watcher: Watcher, between: Callable[[str], None], *, copies: bool
    ) -> None:
        self._disk = disk
        self._data = data
        self._target = target
        self._watcher = watcher
        self._between = between
        self._held: dict[int, _OpenFile] = {}
        self._end = 0
        self._suspects: set[tuple[int, int]] = set()  # identities of journal files with a bad record
        self._files: dict[str, bytes] = {}  # small files, by their path below the directory
        self._segments: dict[str, int] = {}  # paths below the directory, and sizes
        self._staging, self._is_linked = target, not copies

    def run(self, wall_us: int) -> Backup:
        with self._staging_beside(), contextlib.ExitStack() as stack:
            stack.callback(self._let_go)
            tries = self._hold()
            self._between("copy")
            ends = self._ends()
            self._copy(ends)
        self._finish(wall_us, max(ends.items(), default=(0, 0)))
        linked = len(self._segments) if self._is_linked else 0
        return Backup(len(self._segments), linked, sum(self._segments.values()), sum(ends.values()), tries)

    # Links and open files

    @contextlib.contextmanager
    def _staging_beside(self) -> Iterator[None]:
        """Provides a directory beside the data for links, if the target cannot have them or should not."""
        probe = os.path.join(self._target, FILE_NAME)
        if self._is_linked and can_link(self._disk, os.path.join(self._data, FILE_NAME), probe):
            self._disk.remove(probe)
            yield
            return
        self._is_linked = False
        try:
            lock = self._disk.lock(os.path.join(self._data, STAGING_LOCK_NAME))
        except BlockingIOError:
            raise BackupFailed(f"another backup of {self._data} is being taken: wait for its end") from None
        self._staging = os.path.join(self._data, STAGING_NAME)
        try:
            remove_below(self._disk, self._staging)  # left by an interrupted backup
            self._disk.make_directory(self._staging)
            yield
        finally:
            remove_below(self._disk, self._staging)
            lock.close()

    def _hold(self) -> int:
        """Repeats steps 1 to 3 until they succeed. Returns the number of tries."""
        for number in range(1, TRIES_MAX + 1):
            try:
                self._let_go()
                was_restored = self._check_marks()
                self._between("journal")
                self._hold_journal()
                self._between("feeds")
                self._hold_feeds()
                self._between("journal again")
                self._hold_journal()
                self._end = self._last_record()
                self._check_older()
                if self._check_marks() and not was_restored:
                    raise _Moved  # a repair has run meanwhile
                return number
            except (_Moved, FileNotFoundError):
                continue
        raise BackupFailed(
            f"the node changed {self._data} during each of {TRIES_MAX} tries: take the backup at a quieter time, or "
            "stop the node"
        )

    def _check_marks(self) -> bool:
        """Returns whether the directory was restored or repaired. Raises BadDirectory during a restore or repair."""
        marks.check_usable(self._disk, self._data)
        return marks.is_restored(self._disk, self._data)

    def _let_go(self) -> None:
        for held in self._held.values():
            held.file.close()
        self._held.clear()

    # Journal

    def _hold_journal(self) -> None:
        """Opens every file that is not open yet. Raises _Moved if a file was replaced, or is missing between others."""
        directory = os.path.join(self._data, JOURNAL_NAME)
        for number in numbers_in(self._disk, directory):
            file = self._disk.open(os.path.join(directory, file_name(number)))
            known = self._held.get(number)
            if known is not None:
                same = known.file.identity() == file.identity()
                file.close()
                if not same:
                    raise _Moved
                continue
            try:
                header = JournalHeader.unpack(file.read_at(0, FILE_HEADER_BYTES))
            except JournalFormatError as error:
                file.close()
                raise _damaged(os.path.join(directory, file_name(number)), 0, str(error)) from None
            self._held[number] = _OpenFile(file, header)
        numbers = sorted(self._held)
        if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise _Moved
        self._ends()

    def _ends(self) -> dict[int, int]:
        """Returns the end of each open file, as noted in the next one; ``_end`` for the newest. Raises _Moved."""
        ends = {number - 1: held.header.previous_end for number, held in self._held.items() if number - 1 in self._held}
        for number, end in ends.items():
            if self._held[number].file.size() < end:
                raise _Moved
        if self._held:
            ends[max(self._held)] = self._end
        return ends

    def _last_record(self) -> int:
        """Returns the end of the last complete record of the newest file.

        The node keeps writing. An incomplete record may be complete when later ones are read, so it is read again. A
        record that stays bad before good records is damaged.
        """
        if not self._held:
            return 0
        number = max(self._held)
        held = self._held[number]
        path = os.path.join(self._data, JOURNAL_NAME, file_name(number))
        end, looked_at = FILE_HEADER_BYTES, -1
        while True:
            bad: Bad | None = None
            window = Window(held.file, path)
            for item in walk(window, held.header, end, window.size):
                if isinstance(item, Bad) and bad is None:
                    bad = item
                elif isinstance(item, RawRecord) and bad is None:
                    end = item.header.end
                elif bad is not None and _synced_in(item) > bad.offset:
                    if bad.offset == looked_at:
                        raise _damaged(path, bad.offset, bad.why)
                    looked_at = bad.offset
                    break
            else:
                if end < held.header.synced:
                    raise _damaged(path, end, "this was durable")
                return end

    def _check_older(self) -> None:
        """Checks that every older file has good records up to its end. Raises JournalDamaged, _Moved.

        A bad file may be one that a restart of the node has replaced: then a new try does not find it again.
        """
        for number, end in self._ends().items():
            held = self._held[number]
            path = os.path.join(self._data, JOURNAL_NAME, file_name(number))
            if number == max(self._held):
                continue
            for item in walk(Window(held.file, path), held.header, FILE_HEADER_BYTES, end):
                if isinstance(item, Bad):
                    if held.file.identity() in self._suspects:
                        raise _damaged(path, item.offset, item.why)
                    self._suspects.add(held.file.identity())
                    raise _Moved

    # Feeds

    def _hold_feeds(self) -> None:
        self._files.clear()
        self._segments.clear()
        for name in (FILE_NAME, uptime_file.FILE_NAME):
            if self._disk.exists(os.path.join(self._data, name)):
                self._keep(name)
        root = os.path.join(self._data, FEEDS_NAME)
        for name in self._disk.names(root) if self._disk.exists(root) else []:
            if name == SYSTEM_FEED_ID.hex():  # every directory has it, without a FEED
                self._hold_partition(os.path.join(FEEDS_NAME, name, "0"))
                continue
            path = os.path.join(FEEDS_NAME, name, FEED_NAME)
            if self._disk.exists(os.path.join(self._data, path)):
                self._keep(path)
                feed = FeedFile.decode(self._files[path], path)
                for number in range(feed.info.partitions):
                    self._hold_partition(os.path.join(FEEDS_NAME, name, str(number)))
                if not self._disk.exists(os.path.join(self._data, path)):
                    raise _Moved  # dropped, perhaps in the middle of it

    def _keep(self, path: str) -> None:
        self._files[path] = read_file(self._disk, os.path.join(self._data, path))

    def _hold_partition(self, directory: str) -> None:
        """Keeps a manifest and all its segments. If a segment is gone meanwhile, there is a newer manifest."""
        path = os.path.join(directory, MANIFEST_NAME)
        before = b""
        while self._disk.exists(os.path.join(self._data, path)):
            self._keep(path)
            manifest = codec.decode(self._files[path], path)
            held: dict[str, int] = {}
            try:
                for entry in manifest.segments:
                    segment = os.path.join(directory, segment_name(entry.id))
                    self._hold_segment(segment)
                    held[segment] = entry.nbytes
            except FileNotFoundError as error:
                if self._files[path] == before:
                    raise ManifestDamaged(path, f"{error.filename} is missing", "verify the directory") from None
                before = self._files[path]
                continue
            self._segments.update(held)
            return

    def _hold_segment(self, path: str) -> None:
        source, target = os.path.join(self._data, path), os.path.join(self._staging, path)
        if self._disk.exists(target):
            return
        self._disk.make_directory(os.path.dirname(target))
        if not can_link(self._disk, source, target):
            copy_file(self._disk, source, target, Unwatched())  # a file system without links: slow, but correct

    # Copying

    def _copy(self, ends: dict[int, int]) -> None:
        """Copies everything except the mark BACKUP. Removes links of earlier tries that are no longer needed."""
        disk, target = self._disk, self._target
        sizes = 0 if self._is_linked else sum(self._segments.values())
        self._watcher.expect(sizes + sum(ends.values()))
        for path, data in self._files.items():
            disk.make_directory(os.path.dirname(os.path.join(target, path)))
            write_atomically(disk, os.path.join(target, path), data)
        for path in self._segments:
            self._watcher.begin(path)
            if not self._is_linked:
                disk.make_directory(os.path.dirname(os.path.join(target, path)))
                copy_file(disk, os.path.join(self._staging, path), os.path.join(target, path), self._watcher)
        self._remove_unwanted()
        disk.make_directory(os.path.join(target, JOURNAL_NAME))
        for number, end in sorted(ends.items()):
            name = os.path.join(JOURNAL_NAME, file_name(number))
            self._watcher.begin(name)
            try:
                copy_bytes(disk, self._held[number].file, end, os.path.join(target, name), self._watcher)
            except Shrunk as error:
                raise BackupFailed(
                    f"{name} changed during the backup ({error}): the node was restarted; try again"
                ) from None

    def _remove_unwanted(self) -> None:
        root = os.path.join(self._target, FEEDS_NAME)
        for feed in self._disk.names(root) if self._is_linked and self._disk.exists(root) else []:
            for number in self._disk.names(os.path.join(root, feed)):
                directory = os.path.join(FEEDS_NAME, feed, number)
                if not number.isdecimal():
                    continue
                for name in self._disk.names(os.path.join(self._target, directory)):
                    path = os.path.join(directory, name)
                    if path not in self._segments and path not in self._files:
                        self._disk.remove(os.path.join(self._target, path))

    def _finish(self, wall_us: int, journal_end: tuple[int, int]) -> None:
        make_durable(self._disk, self._target)
        identity = load(self._disk, self._target)
        members = {
            "cluster_id": identity.cluster_id.hex(),
            "node_id": identity.node_id.hex(),
            "taken_us": wall_us,
            "journal_end": journal_end,
        }
        if was_of_set(self._disk, self._data) or marks.is_marked(self._disk, self._data, marks.OF_SET_NAME):
            marks.mark(self._disk, self._target, marks.OF_SET_NAME)
        write_atomically(
            self._disk, os.path.join(self._target, marks.BACKUP_NAME), seal(_FORMAT, marks.BACKUP_VERSION, members)
        )


def _damaged(path: str, offset: int, why: str) -> JournalDamaged:
    return JournalDamaged(path, offset, f"{why}; run `tailrace verify` before the backup")


def _synced_in(item: RawRecord | Bad) -> int:
    head = item.header if isinstance(item, RawRecord) else item.head
    return 0 if head is None else head.synced
