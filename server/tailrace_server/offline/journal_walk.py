"""Reads the journal's files from front to back, and continues after damage.

    record | record | Bad: no record can be read here | record | Bad | ...

After a bad stretch it searches for the next record: each record begins with the file's key, at a multiple of 8. If only
the payload of a record is damaged, its header still tells which rows are lost, and how long the record is.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from tailrace_server.journal.file_case import FileCase, FileFacts, decide
from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    RecordHeader,
    RecordKind,
    file_name,
    file_number,
)
from tailrace_server.journal.reader import (
    BadRecord,
    RawRecord,
    Window,
    bytes_before_zeros,
    read_file_header,
    read_head,
    read_record,
)
from tailrace_server.journal.replay_cost import surplus_ns
from tailrace_server.offline.data_directory import JOURNAL_NAME, size_of

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk, File

# Unreadable parts of a disk are skipped in steps of this size.
SECTOR_BYTES = 4_096
SCAN_BYTES = 1 << 20


class Bad(NamedTuple):
    """A stretch from ``offset`` to ``end`` without a readable record.

    ``head`` and ``payload`` are those of a damaged record with a good header. ``newer``: the record is good, but of an
    unknown kind.
    """

    offset: int
    end: int
    why: str
    head: RecordHeader | None = None
    payload: bytes = b""
    newer: bool = False


Item: TypeAlias = RawRecord | Bad


def end_of(item: Item) -> int:
    """Returns the offset of the next item."""
    return item.end if isinstance(item, Bad) else item.header.end


class TolerantFile:
    """A file for reading that returns zeros for unreadable sectors; ``unread`` has their offsets."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.unread: set[int] = set()

    def read_at(self, offset: int, nbytes: int) -> bytes:
        """Reads as a File does, but never raises OSError."""
        try:
            return self._file.read_at(offset, nbytes)
        except OSError:
            return b"".join(self._sector(begin, nbytes) for begin in range(offset, offset + nbytes, SECTOR_BYTES))

    def size(self) -> int:
        """Returns the file's size in bytes."""
        return self._file.size()

    def _sector(self, begin: int, nbytes: int) -> bytes:
        size = max(0, min(SECTOR_BYTES, self._file.size() - begin))
        try:
            return self._file.read_at(begin, size)
        except OSError:
            self.unread.add(begin)
            return bytes(size)


class JournalFile:
    """A file of the journal. ``header`` is None if it cannot be read.

    After all ``items``, ``facts`` are the findings of a start, and ``case`` its reaction.
    """

    def __init__(self, disk: Disk, path: str, number: int, successor_says: int | None) -> None:
        """``successor_says`` is the end of this file as noted in the next one; None for the newest file."""
        self.path = path
        self.number = number
        self.nbytes = 0
        self.header: JournalHeader | None = None
        self.bad_header = ""
        self.is_missing = not disk.exists(path)
        self.unread: set[int] = set()
        self._disk = disk
        self._successor_says = successor_says
        self.facts = FileFacts(0)

    @property
    def case(self) -> FileCase:
        """The reaction of a start to the file."""
        return decide(None if self.is_missing else self.facts, self._successor_says)

    def items(self) -> Iterator[Item]:
        """Yields every record, and every stretch without one."""
        if self.is_missing:
            return
        with contextlib.closing(self._disk.open(self.path)) as file:
            self.nbytes = file.size()
            readable = TolerantFile(file)
            self.unread = readable.unread
            window = Window(cast("File", readable), self.path)
            header = self._read_header(window)
            if header is None:
                self.facts = FileFacts(self.nbytes, bad=self.bad_header)
                yield Bad(0, self.nbytes, self.bad_header)
                return
            limit = self.nbytes if self._successor_says is None else min(self.nbytes, self._successor_says)
            yield from self._walk(window, header, limit)

    def _read_header(self, window: Window) -> JournalHeader | None:
        """Returns the header, or one with the key of the first record if the header is damaged; None without either."""
        try:
            header = read_file_header(window)
            if header.number != self.number:
                raise JournalFormatError(f"the file says that it is number {header.number} of the journal")
            self.header = header
            return header
        except JournalFormatError as error:
            self.bad_header = str(error)
        key = int.from_bytes(window.take(FILE_HEADER_BYTES, 8), "little")
        header = JournalHeader(self.number, key, FILE_HEADER_BYTES, FILE_HEADER_BYTES)
        try:
            read_head(window, header, FILE_HEADER_BYTES)
        except JournalFormatError:
            return None
        return header

    def _walk(self, window: Window, header: JournalHeader, limit: int) -> Iterator[Item]:
        first_bad: Bad | None = None
        synced, witness, rolled_back, records, surplus = header.synced, 0, False, 0, 0
        for item in walk(window, header, FILE_HEADER_BYTES, limit):
            head = item.header if isinstance(item, RawRecord) else item.head
            if isinstance(item, Bad) and first_bad is None:
                first_bad = item
            if head is not None and first_bad is None:
                synced = max(synced, head.synced)
                rolled_back |= head.kind == RecordKind.ROLLED_BACK
                records, surplus = records + 1, surplus + surplus_ns(head.kind, head.length, head.covered)
            elif head is not None:
                witness = max(witness, head.synced)
            is_newest = self._successor_says is None
            if isinstance(item, Bad) and is_newest and item.end == window.size and not used_bytes(window, item.offset):
                break  # allocated, but never written
            yield item
        if self._successor_says is not None and self.nbytes < self._successor_says:
            yield Bad(self.nbytes, self._successor_says, "the file ends here, but was longer by the next file's header")
        end = limit if first_bad is None else first_bad.offset
        if self.bad_header:
            self.facts = FileFacts(self.nbytes, bad=self.bad_header)
            return
        tail_bytes = 0 if self._successor_says is not None else used_bytes(window, end)
        why, newer = (first_bad.why, first_bad.newer) if first_bad is not None else ("", False)
        found = (tail_bytes, synced, witness, rolled_back, records, surplus)
        self.facts = FileFacts(self.nbytes, end, why, newer, *found)


def journal_files(disk: Disk, directory: str) -> list[JournalFile]:
    """Returns the files of a journal by number, with missing files between others."""
    numbers = numbers_in(disk, directory)
    if not numbers:
        return []
    wanted = range(numbers[0], numbers[-1] + 1)
    paths = {number: os.path.join(directory, file_name(number)) for number in wanted}
    says = {number - 1: previous_end_in(disk, path) for number, path in paths.items()}
    return [JournalFile(disk, path, number, says.get(number)) for number, path in paths.items()]


def numbers_in(disk: Disk, directory: str) -> list[int]:
    """Returns the sorted numbers of the journal's files in a directory; empty without the directory."""
    names = disk.names(directory) if disk.exists(directory) else []
    return sorted(number for name in names if (number := file_number(name)) is not None)


def bytes_of_journal(disk: Disk, data: str) -> int:
    """Returns the bytes of a data directory's journal."""
    directory = os.path.join(data, JOURNAL_NAME)
    return sum(size_of(disk, os.path.join(directory, file_name(number))) for number in numbers_in(disk, directory))


def previous_end_in(disk: Disk, path: str) -> int | None:
    """Returns the end of the file before, as noted in this file's header; None if the header cannot be read."""
    if not disk.exists(path):
        return None
    with contextlib.closing(disk.open(path)) as file:
        try:
            return JournalHeader.unpack(TolerantFile(file).read_at(0, FILE_HEADER_BYTES)).previous_end
        except JournalFormatError:
            return None


def walk(window: Window, header: JournalHeader, begin: int, limit: int) -> Iterator[Item]:
    """Yields records and bad stretches from ``begin``, the offset of a record, to ``limit``."""
    offset = begin
    while offset < limit:
        try:
            record = read_record(window, header, offset, limit)
        except BadRecord as error:
            bad = _bad(window, header, offset, limit, error)
            yield bad
            offset = bad.end
        else:
            yield record
            offset = record.header.end


def _bad(window: Window, header: JournalHeader, offset: int, limit: int, error: BadRecord) -> Bad:
    try:
        head, _ = read_head(window, header, offset)
    except JournalFormatError:
        return Bad(offset, _next_record(window, header, offset + 8, limit), str(error))
    payload = window.take(offset + RECORD_HEADER_BYTES, min(head.length, limit - offset - RECORD_HEADER_BYTES))
    return Bad(offset, min(head.end, limit), str(error), head, payload, error.newer)


def _next_record(window: Window, header: JournalHeader, begin: int, limit: int) -> int:
    """Returns the offset of the next record's header, or ``limit`` if no record follows."""
    needle = header.key.to_bytes(8, "little")
    for chunk in range(begin, limit, SCAN_BYTES):
        # Chunks and records begin at multiples of 8, so the end of a chunk never cuts a key.
        data = window.take(chunk, min(SCAN_BYTES, limit - chunk))
        place = data.find(needle)
        while place >= 0:
            if place % 8 == 0:
                with contextlib.suppress(JournalFormatError):
                    read_head(window, header, chunk + place)
                    return chunk + place
            place = data.find(needle, place + 1)
    return limit


def used_bytes(window: Window, end: int) -> int:
    """Returns the number of bytes from ``end`` to the last byte that is not zero."""
    last = end
    for offset in range(end, window.size, SCAN_BYTES):
        data = window.take(offset, SCAN_BYTES)
        if used := bytes_before_zeros(data):
            last = offset + used
    return last - end
