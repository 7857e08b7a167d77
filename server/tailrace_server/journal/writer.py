"""The journal's writer: appends records, makes them durable, and begins a new file when one is full.

Appending costs a block nothing per byte but the system's own copy: one ``pwritev`` of the record's header and the
block's two parts. ``sync`` makes durable all that was written before its call. It may run in another thread while the
loop's thread appends.

1. A record is in the journal once ``append`` returned. A record that ``append`` refused left nothing behind.
2. ``synced`` only grows, and only after an fsync of everything below it has succeeded.
3. After a failed fsync, and after a failed write that could not be cut off, the journal appends and syncs nothing more.
   Linux marks the pages of a failed fsync clean, so a second fsync would succeed without having written anything.
4. A file is durable as a whole before its successor has its name (rotation.py). Beginning a file needs one descriptor.
   Without one a record is refused, and the next record tries again; some descriptors are kept for this.
5. The removal of a file is durable before the next one is removed (older_files.py).

Space is allocated ahead (space.py). Unused space is zeros, which no record begins with. It is cut off when the file is
finished.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, NoReturn

from tailrace.block.header import VERSION as BLOCK_VERSION
from tailrace.errors import Overloaded
from tailrace_server.host.disk import is_out_of_descriptors, raise_if_no_space
from tailrace_server.journal.errors import JournalFailed
from tailrace_server.journal.format import (
    FILE_BYTES_MAX,
    FILE_HEADER_BYTES,
    NO_BRANCH,
    PAYLOAD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    VERSION,
    VERSION_PLAIN,
    JournalHeader,
    RecordKind,
    file_name,
    lsn,
    pack_record,
    split_lsn,
)
from tailrace_server.journal.next_file import NextFile
from tailrace_server.journal.older_files import OlderFile, OlderFiles
from tailrace_server.journal.replay_cost import replay_ns, surplus_ns
from tailrace_server.journal.rotation import Rotation, name_file
from tailrace_server.journal.space import Space
from tailrace_server.journal.statistics import JournalStatistics
from tailrace_server.state.durations import Durations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tailrace.block import Block
    from tailrace_server.host.disk import Buffer, Directory, Disk, File

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_BLOCK = RecordKind.BLOCK

# Large enough that a start does not spend its time on opening files; small enough that trimming frees space soon.
FILE_BYTES_DEFAULT = 256 << 20

# A file ends at this surplus, too: 20,000 publishes. Small publishes of 64 MiB would cost a start three times the bound
# of the whole journal, and only whole files are removed.
FILE_SURPLUS_NS_MAX = 500_000_000

# The lower byte of the version in a block's header.
_BLOCK_VERSION_AT = 4

_PADDING = tuple(bytes(count) for count in range(8))


def file_key(token: Callable[[int], bytes]) -> int:
    """Returns a key for a new file: 64 random bits, not all of them zero."""
    return int.from_bytes(token(8), "little") or 1


class Journal:
    """The node's write-ahead log, as ``open_journal`` gives it. One thread appends; another one may call ``sync``.

    ``written`` and ``synced`` are lsns: numbers that grow over all files, each the end of a record. A record is durable
    once ``synced`` has reached the lsn that its ``append`` returned. ``failed`` is the error that ended the journal, or
    None. ``refusal`` is why the last record was refused, "" if it was written.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        open_directory: Directory,
        file: File,
        header: JournalHeader,
        offset: int,
        *,
        older: Iterable[OlderFile],
        records: int = 0,
        surplus_ns: int = 0,
        file_bytes_max: int,
        token: Callable[[int], bytes],
        clock: Callable[[], float],
    ) -> None:
        """For ``open_journal``: ``file`` is the newest file, and durable up to ``offset``.

        ``older`` are the other files, oldest first. ``records`` and ``surplus_ns`` (replay_cost.py) are those of
        ``file``. ``open_directory`` is ``directory``, open.
        """
        assert FILE_HEADER_BYTES < file_bytes_max <= FILE_BYTES_MAX - 2 * PAYLOAD_BYTES_MAX
        self._disk = disk
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._token = token
        self._clock = clock
        self._open_directory = open_directory  # so that a name is made durable without another descriptor
        self._lock = threading.Lock()  # held while anything is fsynced, and while the next file is created ahead
        self._files_lock = threading.Lock()  # held for no system call: guards _older, _rotation and the fields of _use
        self._older = OlderFiles(disk, directory, open_directory, older, self._files_lock)
        self._next = NextFile(disk, directory)
        self._space = Space(disk, file_bytes_max)
        self._rotation: Rotation | None = None  # the loop's thread sets it, and removes it some time after its end
        self._stopped = ""
        self.failed: JournalFailed | None = None
        self.refusal = ""
        self._finished_ns = 0  # the cost to a start of all files that were finished since the journal was opened
        self._syncs = 0
        self._last_sync_seconds = 0.0
        self.sync_durations = Durations()
        self._use(file, header, offset, offset, records, surplus_ns)
        self._next.keep_descriptors(self._path(header.number))
        self.synced = self.written

    def _use(
        self, file: File, header: JournalHeader, offset: int, allocated: int, records: int, surplus_ns: int
    ) -> None:
        self._file = file
        self._header = header
        self._rotate_at = self._file_bytes_max  # 0: before the next record
        self._create_ahead_at = self._file_bytes_max // 2
        self._key = header.key
        self._number = header.number
        self._has_ttls = False  # blocks of version 2 were written to it since it was begun, or opened
        self._base = lsn(header.number, 0)
        self._offset = offset
        self._space.use(file, offset, allocated, self._syncs)
        self._records = records
        self._surplus_ns = surplus_ns
        self.written = self._base + offset

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, file_name(number))

    @property
    def end(self) -> tuple[int, int]:
        """The number of the newest file, and the offset in it at which the next record will begin."""
        return self._number, self._offset

    @property
    def synced_end(self) -> tuple[int, int]:
        """The number and offset up to which all is durable. Any thread may ask."""
        return split_lsn(self.synced)

    @property
    def file_numbers(self) -> range:
        """The numbers of all files, without a gap."""
        with self._files_lock:
            return range(self._number - len(self._older), self._number + 1)

    @property
    def oldest_number(self) -> int:
        """The number of the oldest file."""
        return self.file_numbers[0]

    @staticmethod
    def file_of(place: int) -> int:
        """Returns the number of the file that holds the record whose end is the lsn ``place``."""
        return place // FILE_BYTES_MAX

    def statistics(self) -> JournalStatistics:
        """Returns sizes and times for status."""
        with self._files_lock:
            files = len(self._older) + 1
            nbytes, records, surplus = self._older.totals()
            number, synced = split_lsn(self.synced)
            unsynced = self._offset - synced
            if number != self._number:  # a rotation is not durable yet
                unsynced += self._older.newest_bytes - FILE_HEADER_BYTES
            nbytes, records, surplus = nbytes + self._offset, records + self._records, surplus + self._surplus_ns
        seconds = replay_ns(nbytes, records, surplus) / 1e9
        return JournalStatistics(
            self._number, files, nbytes, records, seconds, unsynced, self._syncs, self._last_sync_seconds
        )

    @property
    def written_ns(self) -> int:
        """The cost to a start of all files since the journal was opened, removed files included: it only grows."""
        return self._finished_ns + replay_ns(self._offset, self._records, self._surplus_ns)

    def append_block(
        self, feed_id: bytes, partition: int, branch: bytes, block: Block, snapshot: tuple[int, int] = (0, 0)
    ) -> int:
        """Writes a block, without copying or summing its body. Returns the lsn of the record's end.

        The record is not durable before ``sync``.

        Args:
            feed_id: The feed's id, 16 bytes.
            partition: The number of the partition.
            branch: The branch of the block's last seq, 16 bytes.
            block: The block.
            snapshot: First and last seq of the snapshot in which a replica got the block; (0, 0) otherwise.

        Raises:
            NoSpace: The disk is full. Nothing was kept of the record, and the next append may succeed.
            Overloaded: No descriptor is free for the next file. Likewise.
            JournalFailed: No later append succeeds either.
        """
        head = block.head
        if head[_BLOCK_VERSION_AT] != BLOCK_VERSION and not self._has_ttls:
            self._take_ttls()
        return self._append(_BLOCK, feed_id, partition, branch, snapshot, head, (head, block.body), block.nbytes)

    def append(self, kind: RecordKind, feed_id: bytes, partition: int, payload: bytes) -> int:
        """Writes a control record. Returns and raises as ``append_block``; ValueError for a payload over 64 MiB."""
        assert kind not in (_BLOCK, RecordKind.PUBLISHED)
        nbytes = len(payload)
        if nbytes > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a {kind.name} record of {nbytes} bytes; the journal takes at most {PAYLOAD_BYTES_MAX}")
        place = self._append(kind, feed_id, partition, NO_BRANCH, (0, 0), payload, (payload,), nbytes)
        self._add_surplus(surplus_ns(kind, nbytes, nbytes))
        return place

    def append_published(
        self, feed_id: bytes, partition: int, branch: bytes, covered: bytes, bodies: Sequence[Buffer]
    ) -> int:
        """Writes the record of a publish (published_record.py). Returns and raises as ``append_block``."""
        nbytes = len(covered) + sum(map(len, bodies))
        assert nbytes <= PAYLOAD_BYTES_MAX, "a publish is bounded before it is written"
        place = self._append(
            RecordKind.PUBLISHED, feed_id, partition, branch, (0, 0), covered, (covered, *bodies), nbytes
        )
        self._add_surplus(surplus_ns(RecordKind.PUBLISHED, nbytes, len(covered)))
        return place

    def _add_surplus(self, surplus: int) -> None:
        """Adds the last record's cost to a start. A file with a high cost takes no more records."""
        self._surplus_ns += surplus
        if self._surplus_ns > FILE_SURPLUS_NS_MAX // 2:
            self._create_ahead_at = 0
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
        padding = _PADDING[-nbytes & 7]
        size = RECORD_HEADER_BYTES + nbytes + len(padding)
        if self._offset + size > self._rotate_at and self._offset > FILE_HEADER_BYTES:
            self._rotate()
        offset = self._offset
        end = offset + size
        if end > self._space.limit:
            self._space.reserve(offset, end, self._syncs)
        if self._rotation is not None and self._rotation.is_named:
            self._rotation = None
        synced = self.synced - self._base if self._rotation is None else FILE_HEADER_BYTES
        header = pack_record(
            self._key, self._number, offset, synced, nbytes, kind, partition, feed_id, branch, snapshot, covered
        )
        try:
            self._file.write_at(offset, (header, *payload, padding), size)
        except OSError as error:
            self._take_back(error)
        if self._rotation is not None:
            rest = *payload, padding
            self._copy(self._rotation, kind, feed_id, partition, branch, snapshot, covered, rest, nbytes, size)
        self._offset = end
        self._records += 1
        self.refusal = ""
        self.written = self._base + end
        return self.written

    def _take_back(self, error: OSError) -> NoReturn:
        """Cuts off a record that was written in part. Raises NoSpace, JournalFailed."""
        try:
            self._space.cut(self._offset)
        except OSError as second:
            raise self._fail(f"a write failed ({error.strerror}) and could not be taken back", second) from error
        self._refuse(error)

    def _refuse(self, error: OSError) -> NoReturn:
        """Raises NoSpace, Overloaded or JournalFailed for a write that left nothing behind."""
        self.refusal = f"the journal in {self._directory} takes no record: {error.strerror}"
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

    def _copy(self, rotation: Rotation, *record: Any) -> None:
        """Writes a record of a file that has no name yet to the file before it as well. JournalFailed."""
        try:
            if not rotation.copy(self.synced - rotation.base, *record):
                self._rotation = None
        except OSError:  # no copy, no record: the file gets its name now
            self._end_rotation()

    @property
    def is_next_due(self) -> bool:
        """The next call of ``sync`` creates the next file, which takes longer than an fsync of a few records."""
        return self._offset >= self._create_ahead_at and self._next.can_be_created

    def begin_zeros(self) -> bool:
        """Returns whether small records will soon need space with zeros: call ``write_zeros`` in a thread then."""
        return not self._stopped and self._space.begin_zeros(self._offset, self._syncs)

    def write_zeros(self) -> bool:
        """Writes a piece of zeros ahead of the records (space.py). Returns False if it wrote none. JournalFailed."""
        with self._files_lock:
            rotation, file, number = self._rotation, self._file, self._number
        if self._stopped or (rotation is not None and not rotation.is_named):
            return False  # the path is another file's until the newest one has its name
        try:
            return self._space.write_zeros(self._path(number), file)
        except OSError as error:
            raise self._fail("an fsync failed", error) from error

    def begin_sync(self) -> None:
        """Has the system begin to write all that is not durable yet, if it is in one file: ``sync`` waits for less."""
        if self._rotation is None:
            synced = self.synced - self._base
            self._file.begin_sync(synced, self._offset - synced)

    def sync(self) -> None:
        """Makes durable everything that was written before the call, and raises ``synced`` to it.

        Blocks for as long as the disk takes. May run in any thread; calls take turns, and a call does nothing if all is
        durable. Ends a rotation, and creates the next file if it is due. JournalFailed if an fsync fails, and for every
        later call.
        """
        with self._lock:
            if self._stopped:
                self._require_running()
            with self._files_lock:
                rotation, file, number, written = self._rotation, self._file, self._number, self.written
            if self.synced != written:
                begin = self._clock()
                if rotation is None or rotation.is_named:
                    self._sync_file(file)
                else:
                    self._make_rotation_durable(rotation, file, number, written)
                self._last_sync_seconds = self._clock() - begin
                self.sync_durations.add(self._last_sync_seconds)
                self._syncs += 1
                self.synced = written
            if self._offset >= self._create_ahead_at:
                self._create_next()

    def _sync_file(self, file: File) -> None:
        try:
            file.sync()
        except OSError as error:
            raise self._fail("an fsync failed", error) from error

    def _make_rotation_durable(self, rotation: Rotation, file: File, number: int, written: int) -> None:
        """Makes durable a finished file, then its successor ``file``, then the successor's name. JournalFailed.

        Raises ``synced`` to ``written`` before the loop's thread may append without copies: its records then tell how
        far their file is durable.
        """
        try:
            rotation.make_durable()
        except OSError as error:
            raise self._fail("an fsync failed", error) from error
        try:
            name_file(self._disk, self._open_directory, file, rotation.successor_path, self._path(number))
        except OSError as error:
            raise self._fail("the next file could not be made durable", error) from error
        self._next.named()
        self.synced = written
        rotation.named()
        try:
            rotation.cut()
        except OSError as error:
            raise self._fail("a finished file could not be cut", error) from error

    def _create_next(self) -> None:
        """Creates the next file ahead, unless it is there. If that fails for now, a rotation creates it."""
        if not self._next.can_be_created:
            return
        try:
            self._next.create_ahead(self._space.ahead_bytes)
        except OSError:
            self._create_ahead_at = self._offset + self._space.ahead_bytes

    def _rotate(self, version: int | None = None) -> None:
        """Begins the next file. NoSpace, Overloaded: the next call tries again. JournalFailed."""
        self._end_rotation()
        if version is None:
            version = VERSION if self._has_ttls else VERSION_PLAIN
        header = JournalHeader(self._number + 1, file_key(self._token), self._offset, FILE_HEADER_BYTES, version)
        try:
            created = self._next.begin(header)
        except OSError as error:
            self._refuse(error)
        rotation = Rotation(self._file, self._header, self._offset, created.path)
        with self._files_lock:
            self._finished_ns = self.written_ns
            self._older.add(OlderFile(self._number, self._offset, self._records, self._surplus_ns))
            self._use(created.file, header, FILE_HEADER_BYTES, created.allocated, 0, 0)
            self._rotation = rotation

    def _take_ttls(self) -> None:
        """Begins a file of the version that has blocks of version 2, unless this one is. Raises as ``append``.

        It waits until the file has its name: no copy of such a block may be in a file of the earlier version.
        """
        if self._stopped:
            raise JournalFailed(self._stopped)
        if self._header.version < VERSION:
            self._rotate(VERSION)
            self._end_rotation()
        self._has_ttls = True

    def _end_rotation(self) -> None:
        """Waits until the newest file has its name. Blocks for as long as the disk takes. JournalFailed."""
        rotation = self._rotation
        if rotation is None:
            return
        if not rotation.is_named:
            with self._lock:
                if not rotation.is_named:
                    self._require_running()
                    self._make_rotation_durable(rotation, self._file, self._number, self.written)
        self._rotation = None

    def _finish(self) -> None:
        """Cuts off the space that was allocated and not used, and makes the newest file durable as a whole."""
        try:
            self._space.cut(self._offset)
        except OSError as error:
            raise self._fail("a finished file could not be cut", error) from error
        self._sync_file(self._file)
        self.synced = self.written

    def trim(self, before_number: int) -> int:
        """Removes all files with smaller numbers, oldest first, but not the newest named one; returns how many.

        The caller knows that all their records are durably covered elsewhere. Blocks for as long as the disk takes, and
        may run in any thread.

        OSError: the files that were removed so far are counted no more; the next call continues. JournalFailed after a
        failure of the journal, whose files are left as they are for the next start.
        """
        return self._older.trim(min(before_number, self.synced_end[0]), self._require_running)

    def _require_running(self) -> None:
        if self._stopped:
            raise JournalFailed(self._stopped)

    def close(self) -> None:
        """Makes everything durable and closes the files; after a failure only closes them. May be called again."""
        with self._lock:
            rotation = self._rotation
            try:
                if not self._stopped:
                    if rotation is not None and not rotation.is_named:
                        self._make_rotation_durable(rotation, self._file, self._number, self.written)
                    self._finish()
                    self._next.remove()
                    with contextlib.suppress(OSError):  # else the next start cuts the copies
                        self._older.cut()
                    self._stopped = "the journal is closed"
            finally:
                self._next.close()
                if rotation is not None:
                    rotation.close()
                self._file.close()
                self._open_directory.close()
