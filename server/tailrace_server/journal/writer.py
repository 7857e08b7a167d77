"""The journal as the node writes it.

Appending costs a block nothing per byte but the system's own copy: one ``pwritev`` of the record's header and the
block's two parts. ``sync`` makes durable what was written before it was called, and may run in a thread of its own
while the loop's thread goes on appending; everything else belongs to that one thread.

1. A record is in the journal once ``append`` returned; what ``append`` refuses has left nothing behind.
2. ``synced`` only grows, and only after an fsync of everything below it has succeeded.
3. After a failed fsync, and after a failed write that could not be taken back, nothing is appended or synced any more:
   Linux marks the pages of a failed fsync clean, so that a second one would succeed without having written anything.
4. A file is durable as a whole before its successor is created; the successor and its name are before it is used.
   Without a descriptor for that a record is refused, and the next one tries again: descriptors are kept for it.
5. A file is removed only once the removal of all older ones is durable, so that no crash leaves a gap.

Space is allocated ahead: fdatasync then has no new size to commit. Measured on ext4 (a small append and its fdatasync,
medians): 235 µs without, 160 µs with; for records of 116 KB no difference. What is allocated and not used are zeros,
which no record begins with, and it is cut off when the file is finished.
"""

from __future__ import annotations

import collections
import os
import threading
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from tailrace.errors import Overloaded
from tailrace_server.host.disk import TEMPORARY, is_out_of_descriptors, raise_if_no_space
from tailrace_server.host.open_files import SpareFiles
from tailrace_server.journal.errors import JournalFailed
from tailrace_server.journal.format import (
    FILE_BYTES_MAX,
    FILE_HEADER_BYTES,
    NO_BRANCH,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    FileHeader,
    RecordKind,
    file_name,
    lsn,
    pack_record,
    padded,
    split_lsn,
)
from tailrace_server.journal.replay_cost import replay_ns, surplus_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.block import Block
    from tailrace_server.host.disk import Buffer, Disk, File

# Large enough that reading one back is not about opening files; small enough that trimming frees space soon.
FILE_BYTES_DEFAULT = 256 << 20

# Allocating costs some 10 µs and one commit of metadata: with 4 MiB that is nothing per write, and little space.
ALLOCATE_BYTES = 4 << 20

# The next file takes two descriptors, its own and its directory's. Each of the node's threads may be quicker with one
# of those that are given up for it.
SPARE_DESCRIPTORS = 8

# A file ends here too: 20,000 publishes. 64 MiB of small ones would cost a start three times what all of the journal
# may, and only whole files are let go of.
FILE_SURPLUS_NS_MAX = 500_000_000

_PADDING = tuple(bytes(count) for count in range(8))


class JournalStatistics(NamedTuple):
    """``bytes`` and ``records`` in ``files`` files, the newest of which is number ``file``; fsyncs since the start, the
    last one's time. ``replay_seconds`` is about how long a start takes to read them (replay_cost.py)."""

    file: int
    files: int
    bytes: int
    records: int
    replay_seconds: float
    unsynced_bytes: int
    syncs: int
    last_sync_seconds: float


class OlderFile(NamedTuple):
    """A file that is not written to any more; ``surplus_ns`` is of its records (replay_cost.py)."""

    number: int
    nbytes: int
    records: int
    surplus_ns: int


def file_key(token: Callable[[int], bytes]) -> int:
    """A key for a new file: 64 random bits, not all of them zero."""
    return int.from_bytes(token(8), "little") or 1


class Journal:
    """The node's write-ahead log, as ``open_journal`` gives it. Only one thread appends; ``sync`` may be another's.

    ``written`` and ``synced`` are lsns: numbers that grow over all files, each the end of a record. A record is durable
    once ``synced`` has reached the number that its ``append`` returned. ``failed`` is the error that ended it, or None.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        file: File,
        header: FileHeader,
        offset: int,
        *,
        older: Iterable[OlderFile],
        records: int = 0,
        surplus_ns: int = 0,
        file_bytes_max: int,
        token: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        """For ``open_journal``: ``file``, durable up to ``offset``, is the newest one.

        ``older`` are the others, oldest first; ``records`` and ``surplus_ns`` (replay_cost.py) are those of ``file``.
        """
        assert FILE_HEADER_BYTES < file_bytes_max <= FILE_BYTES_MAX - 2 * PAYLOAD_BYTES_MAX
        self._disk = disk
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._token = token
        self._clock = clock
        self._lock = threading.Lock()  # held by whoever fsyncs, and by whoever puts another file in this one's place
        self._older = collections.deque(older)
        self._files_lock = threading.Lock()  # held for no system call: the older files are counted, or change
        self._trim_lock = threading.Lock()
        self._removal_is_durable = True
        self._stopped = ""
        self.failed: JournalFailed | None = None
        self._finished_ns = 0  # what the files cost a start that were finished since this was opened
        self._syncs = 0
        self._last_sync_seconds = 0.0
        self._spares = SpareFiles(disk, SPARE_DESCRIPTORS)
        self._use(file, header, offset, records, surplus_ns)

    def _use(self, file: File, header: FileHeader, offset: int, records: int, surplus_ns: int) -> None:
        self._file = file
        self._rotate_at = self._file_bytes_max  # 0: with the next record, or when the successor's name is durable
        self._successor: tuple[File, FileHeader] | None = None
        self._spares.keep(os.path.join(self._directory, file_name(header.number)))
        self._key = header.key
        self._number = header.number
        self._base = lsn(header.number, 0)
        self._offset = self._allocated = offset
        self._records = records
        self._surplus_ns = surplus_ns
        self.written = self.synced = self._base + offset

    @property
    def end(self) -> tuple[int, int]:
        """Number of the newest file and where the next record will begin in it."""
        return self._number, self._offset

    @property
    def synced_end(self) -> tuple[int, int]:
        """Number and offset up to which all is durable. Any thread may ask."""
        return split_lsn(self.synced)

    @property
    def file_numbers(self) -> range:
        """The numbers of all files; there is no gap."""
        with self._files_lock:
            return range(self._number - len(self._older), self._number + 1)

    @property
    def oldest_number(self) -> int:
        """The number of the oldest file."""
        return self.file_numbers[0]

    @staticmethod
    def file_of(place: int) -> int:
        """The number of the file that holds the record whose end is the lsn ``place``."""
        return split_lsn(place)[0]

    def statistics(self) -> JournalStatistics:
        """Sizes and times for status."""
        with self._files_lock:
            files, nbytes, records, surplus = len(self._older) + 1, self._offset, self._records, self._surplus_ns
            for older in self._older:
                nbytes, records, surplus = nbytes + older.nbytes, records + older.records, surplus + older.surplus_ns
        return JournalStatistics(
            self._number,
            files,
            nbytes,
            records,
            replay_ns(nbytes, records, surplus) / 1e9,
            self.written - self.synced,
            self._syncs,
            self._last_sync_seconds,
        )

    @property
    def written_ns(self) -> int:
        """What all files since the journal was opened cost a start, removed ones too: it only grows."""
        return self._finished_ns + replay_ns(self._offset, self._records, self._surplus_ns)

    def append_block(
        self, feed_id: bytes, partition: int, branch: bytes, block: Block, snapshot: tuple[int, int] = (0, 0)
    ) -> int:
        """Write a block: its body as it is, without copying or summing it. Returns the lsn of the record's end.

        ``feed_id`` and ``branch``, that of the block's last seq, have 16 bytes each; ``snapshot`` is the first and last
        seq of the snapshot that a replica got it in. Not durable before ``sync``. NoSpace, Overloaded (no descriptor is
        free): nothing of it was kept, and the next append may succeed. JournalFailed: nothing will any more.
        """
        head = block.head
        return self._append(
            RecordKind.BLOCK, feed_id, partition, branch, snapshot, head, (head, block.body), block.nbytes
        )

    def append(self, kind: RecordKind, feed_id: bytes, partition: int, payload: bytes) -> int:
        """Write a control record. Returns and raises as ``append_block``; ValueError for a payload over 64 MiB."""
        assert kind not in (RecordKind.BLOCK, RecordKind.PUBLISHED)
        nbytes = len(payload)
        if nbytes > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a {kind.name} record of {nbytes} bytes; the journal takes at most {PAYLOAD_BYTES_MAX}")
        place = self._append(kind, feed_id, partition, NO_BRANCH, (0, 0), payload, (payload,), nbytes)
        self._add_surplus(surplus_ns(kind, nbytes, nbytes))
        return place

    def append_published(
        self, feed_id: bytes, partition: int, branch: bytes, covered: bytes, bodies: Sequence[Buffer]
    ) -> int:
        """Write what `published_record.encode_published` made. Returns and raises as ``append_block``."""
        nbytes = len(covered) + sum(map(len, bodies))
        assert nbytes <= PAYLOAD_BYTES_MAX, "a publish is bounded before it is written"
        place = self._append(
            RecordKind.PUBLISHED, feed_id, partition, branch, (0, 0), covered, (covered, *bodies), nbytes
        )
        self._add_surplus(surplus_ns(RecordKind.PUBLISHED, nbytes, len(covered)))
        return place

    def _add_surplus(self, surplus: int) -> None:
        """Notes what the last record costs a start; a file that costs much takes no more records."""
        self._surplus_ns += surplus
        if self._surplus_ns > FILE_SURPLUS_NS_MAX:
            self._rotate_at = 0

    def _append(
        self,
        kind: RecordKind,
        feed_id: bytes,
        partition: int,
        branch: bytes,
        snapshot: tuple[int, int],
        covered: bytes,
        payload: Sequence[Buffer],
        nbytes: int,
    ) -> int:
        if self._stopped:
            raise JournalFailed(self._stopped)
        assert len(feed_id) == 16
        assert len(branch) == 16
        size = RECORD_HEADER_BYTES + padded(nbytes)
        if self._offset + size > self._rotate_at and self._offset > FILE_HEADER_BYTES:
            self._rotate()
        offset = self._offset
        end = offset + size
        if end > self._allocated:
            self._allocate(end)
        synced = self.synced - self._base
        header = pack_record(
            self._key, self._number, offset, synced, nbytes, kind, partition, feed_id, branch, snapshot, covered
        )
        try:
            self._file.write_at(offset, (header, *payload, _PADDING[-nbytes & 7]), size)
        except OSError as error:
            self._take_back(error)
        self._offset = end
        self._records += 1
        self.written = self._base + end
        return self.written

    def _allocate(self, end: int) -> None:
        """Reserve space up to ``end`` and beyond. Where that fails the writes show it, and until then nobody asks."""
        nbytes = max(ALLOCATE_BYTES, end - self._allocated)
        self._file.allocate(self._allocated, nbytes)
        self._allocated += nbytes

    def _take_back(self, error: OSError) -> NoReturn:
        """Cut a record that was written in part. Raises NoSpace, JournalFailed."""
        try:
            self._file.truncate(self._offset)
        except OSError as second:
            raise self._fail(f"a write failed ({error.strerror}) and could not be taken back", second) from error
        self._allocated = self._offset
        self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        """Raises NoSpace, Overloaded, JournalFailed for a write that left nothing behind."""
        raise_if_no_space(error, f"for the journal in {self._directory}")
        if is_out_of_descriptors(error):
            raise Overloaded(
                f"no file descriptor is free for the next file of the journal in {self._directory}: close connections, "
                "or raise the limit of open files (ulimit -n) and restart the node"
            ) from error
        raise self._fail("a write failed", error) from error

    def _fail(self, what: str, error: OSError) -> JournalFailed:
        self._stopped = f"the journal in {self._directory} failed: {what}: {error.strerror}; see to the disk, restart"
        self.failed = JournalFailed(self._stopped)
        return self.failed

    def sync(self) -> None:
        """Make durable everything that was written when this was called, and raise ``synced`` to it.

        Blocks for as long as the disk takes. May run in any thread; calls take turns, and one that finds nothing left
        to do does nothing. JournalFailed if the fsync fails, and ever after.
        """
        with self._lock:
            if self._stopped:
                raise JournalFailed(self._stopped)
            written = self.written
            if self.synced != written:
                begin = self._clock()
                self._sync_file()
                self._last_sync_seconds = self._clock() - begin
                self._syncs += 1
                self.synced = written

    def _sync_file(self) -> None:
        try:
            self._file.sync()
        except OSError as error:
            raise self._fail("an fsync failed", error) from error

    def _rotate(self) -> None:
        """Finish the file and begin the next one. NoSpace, Overloaded: the next call goes on. JournalFailed."""
        with self._lock:
            is_new = self._successor is None
            file, header = self._successor = self._successor or self._make_successor()
            try:
                self._name_successor(file, header, is_new=is_new)
            except OSError as error:
                if is_out_of_descriptors(error):  # this file is finished, and takes no record any more
                    self._rotate_at = 0
                    self._refuse(error)
                raise self._fail("the next file could not be made durable", error) from error
            self._file.close()
            with self._files_lock:
                self._finished_ns = self.written_ns
                self._older.append(OlderFile(self._number, self._offset, self._records, self._surplus_ns))
                self._use(file, header, FILE_HEADER_BYTES, 0, 0)

    def _make_successor(self) -> tuple[File, FileHeader]:
        """Finish the file, and create the next one."""
        self._finish()
        header = FileHeader(self._number + 1, file_key(self._token), self._offset, FILE_HEADER_BYTES)
        path = os.path.join(self._directory, file_name(header.number))
        try:
            try:
                return create_file(self._disk, path, header), header
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._spares.release():
                    raise
                return create_file(self._disk, path, header), header
        except OSError as error:
            self._refuse(error)

    def _name_successor(self, file: File, header: FileHeader, *, is_new: bool) -> None:
        """Make the next file durable under its name. OSError; EMFILE and ENFILE: only the fsync of that is missing."""
        try:
            if is_new:
                publish_file(self._disk, os.path.join(self._directory, file_name(header.number)), file)
                return
        except OSError as error:
            if not is_out_of_descriptors(error):
                raise
        self._spares.release()
        self._disk.sync_directory(self._directory)

    def _finish(self) -> None:
        """Cut off what was allocated and not used, and make the file durable as a whole."""
        if self._allocated > self._offset:
            try:
                self._file.truncate(self._offset)
            except OSError as error:
                raise self._fail("a finished file could not be cut", error) from error
            self._allocated = self._offset
        self._sync_file()
        self.synced = self.written

    def trim(self, before_number: int) -> int:
        """Remove all files with smaller numbers, oldest first, but never the newest one; how many were removed.

        All that their records say has its home elsewhere, durably. Blocks for as long as the disk takes, and may run in
        any thread. The directory is fsynced after each removal: where several were under way, a crash could undo that
        of a file and keep that of its successor, and recovery takes a gap for damage.

        OSError: some may have been removed, and are counted no more; the next call goes on from there. JournalFailed
        after a failure of the journal, which is left for the next start as it is.
        """
        removed = 0
        with self._trim_lock:
            self._sync_removal()
            while (oldest := self.oldest_number) < min(before_number, self._number):
                if self._stopped:
                    raise JournalFailed(self._stopped)
                self._disk.remove(os.path.join(self._directory, file_name(oldest)))
                self._removal_is_durable = False
                with self._files_lock:
                    self._older.popleft()
                removed += 1
                self._sync_removal()
        return removed

    def _sync_removal(self) -> None:
        """Make the last removal durable, where it may not be."""
        if not self._removal_is_durable:
            self._disk.sync_directory(self._directory)
            self._removal_is_durable = True

    def close(self) -> None:
        """Make everything durable and close the file; after a failure only close it. May be called again."""
        with self._lock:
            try:
                if not self._stopped:
                    self._finish()
                    self._stopped = "the journal is closed"
            finally:
                self._spares.release()
                if self._successor is not None:
                    self._successor[0].close()
                self._file.close()


def create_file(disk: Disk, path: str, header: FileHeader) -> File:
    """A journal file with nothing but its header, under a temporary name. OSError: it does not matter what is left."""
    file = disk.create(path + TEMPORARY)
    try:
        file.write_at(0, (header.pack(),), FILE_HEADER_BYTES)
    except OSError:
        file.close()
        raise
    return file


def publish_file(disk: Disk, path: str, file: File) -> None:
    """Make a file of ``create_file`` durable, give it its name, and make that durable too."""
    file.sync()
    disk.rename(path + TEMPORARY, path)
    disk.sync_directory(os.path.dirname(path))
