"""Reads journal files front to back, a record at a time.

Only a window of a file is in memory. Each record holds its own bytes, so that a small block does not keep the whole
buffer alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.block import Block
from tailrace.errors import BadBlock
from tailrace_server.journal.errors import JournalDamaged
from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    KINDS,
    RECORD_HEADER_BYTES,
    JournalFormatError,
    JournalHeader,
    RecordHeader,
    RecordKind,
    check_sum,
    lsn,
    padded,
    unpack_record,
)
from tailrace_server.journal.published_record import PublishedRecord, decode_published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.host.disk import File

# One system call for thousands of small records; a larger record is read by itself.
WINDOW_BYTES = 1 << 20

assert WINDOW_BYTES % 8 == 0

_ZEROS = bytes(WINDOW_BYTES)


class Window:
    """Reads a file through a buffer that moves forward. An error of the disk is JournalDamaged: the start ends."""

    def __init__(self, file: File, path: str) -> None:
        self._file = file
        self.path = path
        self.size = file.size()
        self._offset = 0
        self._data = b""

    def load(self, offset: int) -> bytes:
        """Moves the buffer to ``offset``. Returns its bytes: WINDOW_BYTES unless the file ends before."""
        if offset != self._offset or not self._data:
            self._data = self._read(offset, WINDOW_BYTES)
            self._offset = offset
        return self._data

    def take(self, offset: int, nbytes: int) -> bytes:
        """Returns a copy of ``nbytes`` bytes from ``offset`` on; fewer only if the file ends."""
        begin = offset - self._offset
        if begin < 0 or begin + nbytes > len(self._data):
            if nbytes >= WINDOW_BYTES:
                return self._read(offset, nbytes)
            self._data = self._read(offset, WINDOW_BYTES)
            self._offset, begin = offset, 0
        return self._data[begin : begin + nbytes]

    def _read(self, offset: int, nbytes: int) -> bytes:
        try:
            return self._file.read_at(offset, nbytes)
        except OSError as error:  # EIO: the disk itself says that it lost something
            raise JournalDamaged(self.path, offset, f"the disk can't read it: {error.strerror}") from error


def bytes_before_zeros(data: bytes) -> int:
    """Returns the length of ``data`` without the zeros at its end."""
    # A file is allocated long before it is full. To compare takes a tenth of the time that `rstrip` takes.
    if data == (_ZEROS if len(data) == WINDOW_BYTES else bytes(len(data))):
        return 0
    return len(data.rstrip(b"\0"))


class BadRecord(Exception):
    """There is no whole, valid record at ``offset``. ``newer``: it is valid, and of an unknown kind."""

    def __init__(self, offset: int, why: str, *, newer: bool = False) -> None:
        super().__init__(why)
        self.offset = offset
        self.newer = newer


class RawRecord(NamedTuple):
    """A record that has been checked, with its payload.

    ``block`` is the parsed payload of a BLOCK, ``published`` that of a PUBLISHED; None for other kinds.
    """

    header: RecordHeader
    payload: bytes
    block: Block | None
    published: PublishedRecord | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the record, which are applied together or not at all."""
        if self.published is not None:
            return self.published.blocks
        return () if self.block is None else (self.block,)


def read_file_header(window: Window) -> JournalHeader:
    """Reads the file's header. Raises JournalFormatError if it is not valid."""
    return JournalHeader.unpack(window.take(0, FILE_HEADER_BYTES))


def read_head(window: Window, file: JournalHeader, offset: int) -> tuple[RecordHeader, bytes]:
    """Reads and checks the header at ``offset``, and the payload's bytes that its sum covers. JournalFormatError."""
    data = window.take(offset, RECORD_HEADER_BYTES)
    header = unpack_record(data, file, offset)
    covered = window.take(offset + RECORD_HEADER_BYTES, header.covered)
    if len(covered) < header.covered:
        raise JournalFormatError("the file ends inside a record")
    check_sum(data, covered)
    return header, covered


def read_record(window: Window, file: JournalHeader, offset: int, end: int) -> RawRecord:
    """Reads the whole record at ``offset``, which has to end at or before ``end``. BadRecord."""
    try:
        header, _ = read_head(window, file, offset)
    except JournalFormatError as error:
        raise BadRecord(offset, str(error)) from None
    if header.kind not in KINDS:
        raise BadRecord(offset, f"a record of kind {header.kind}, written by a newer Tailrace", newer=True)
    if header.end > end:
        raise BadRecord(offset, f"a record of {header.end - offset} bytes, of which {end - offset} are there")
    payload_offset = offset + RECORD_HEADER_BYTES
    payload = window.take(payload_offset, header.length)
    if any(window.take(payload_offset + header.length, padded(header.length) - header.length)):
        raise BadRecord(offset, "the bytes behind the record are not zero")
    try:
        if header.kind == RecordKind.PUBLISHED:
            return RawRecord(header, payload, None, decode_published(payload, header.covered))
        return RawRecord(header, payload, Block.parse(payload) if header.kind == RecordKind.BLOCK else None)
    except BadBlock as error:
        raise BadRecord(offset, f"the block in the record: {error}") from None


def read_records(window: Window, file: JournalHeader, begin: int, end: int) -> Iterator[RawRecord]:
    """Yields all records from ``begin`` on; the last one has to end at ``end``. BadRecord."""
    offset = begin
    while offset < end:
        record = read_record(window, file, offset, end)
        yield record
        offset = record.header.end


class Record(NamedTuple):
    """A record as recovery hands it to the node.

    ``payload`` are the bytes of a control record (b"" for a block), ``block`` the block of a block record (None for
    others), with ``branch`` (16 bytes) of its last seq and ``snapshot``, its bounds (0, 0 without a snapshot). ``lsn``
    is the record's end, as ``Journal.append`` returned it, or would have if recovery copied the record. ``covered`` is
    the number of the payload's bytes that the record's own checksum covers.
    """

    kind: RecordKind
    feed_id: bytes
    partition: int
    branch: bytes
    snapshot: tuple[int, int]
    payload: bytes
    block: Block | None
    lsn: int
    covered: int = 0


def record_of(raw: RawRecord) -> Record:
    """Returns a record that has been read in the form for the node."""
    header = raw.header
    return Record(
        RecordKind(header.kind),
        header.feed_id,
        header.partition,
        header.branch,
        (header.snapshot_first, header.snapshot_last),
        b"" if raw.block is not None else raw.payload,
        raw.block,
        lsn(header.file_number, header.end),
        header.covered,
    )
