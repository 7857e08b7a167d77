"""The bytes of a journal file. Pure: bytes in, values out. docs/formats/journal.md describes them one by one.

    file    header (64 bytes), then records, each at a multiple of 8
    record  header (96 bytes), payload, zeros up to a multiple of 8

A record's checksum covers its header and the first ``covered`` bytes of its payload: all of a control record, and of a
block the block's header, because the block's body has a sum of its own, made by the producer. So writing a block costs
one checksum over 184 bytes, whatever its size.

A record names its file by a random 64-bit key, new for each file, and its place in the file. So neither the rest of
another file on the same disk sectors nor a value of a producer can be taken for a record.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

import xxhash

from tailrace.block import BODY_BYTES_MAX, HEADER_BYTES
from tailrace.model import BRANCH_BYTES

FILE_MAGIC = b"TRJL"
VERSION = 2  # the newest that this program knows
VERSION_PLAIN = 1  # of a file without a block of version 2
FILE_HEADER_BYTES = 64
RECORD_HEADER_BYTES = 96

# The largest block, or a control record that is twice as large as any block. A greater length is damage, found before
# anything is read or allocated for it.
PAYLOAD_BYTES_MAX = 64 << 20

# Offsets in a file are 32-bit numbers. A file is full at a size far below, so that the last record always fits.
FILE_BYTES_MAX = 1 << 32

NO_BRANCH = bytes(BRANCH_BYTES)

_FILE = struct.Struct("<4sHHIIQI28xQ")
_RECORD = struct.Struct("<QIIIIIHHII16s16sQQ")
_SUM = struct.Struct("<Q")
_FILE_SUM_OFFSET = FILE_HEADER_BYTES - _SUM.size
_RECORD_SUM_OFFSET = RECORD_HEADER_BYTES - _SUM.size

assert _FILE.size == FILE_HEADER_BYTES
assert _RECORD.size == _RECORD_SUM_OFFSET
assert PAYLOAD_BYTES_MAX >= HEADER_BYTES + BODY_BYTES_MAX


class RecordKind(enum.IntEnum):
    """The kind of a record. The numbers are the format's; a number is never given to another kind."""

    FEED_CREATED = 1
    FEED_DROPPED = 2
    BLOCK = 3
    FAILOVER_ENTRY = 4
    FLUSHED = 5
    ROLLED_BACK = 6
    TERM_PROMISED = 7
    PUBLISHED = 8
    PRODUCERS_TOLD = 9


KINDS = frozenset(int(kind) for kind in RecordKind)


class JournalFormatError(ValueError):
    """Bytes that are no valid part of a journal; the message says why."""


class JournalHeader(NamedTuple):
    """The first 64 bytes of a file; durable, like all below ``synced``, before the file has its name.

    ``key`` is the random number that all its records repeat, never 0. ``previous_end`` is the length of the file before
    this one (0 for the first file); bytes of that file beyond it do not count. ``synced`` is the offset up to which
    this file was durable when it got its name. ``version`` is VERSION if blocks of version 2 may be in it.
    """

    number: int
    key: int
    previous_end: int
    synced: int
    version: int = VERSION_PLAIN

    def pack(self) -> bytes:
        """Returns the 64 bytes, with their checksum."""
        number, key, previous_end, synced, version = self
        data = _FILE.pack(FILE_MAGIC, version, FILE_HEADER_BYTES, number, previous_end, key, synced, 0)
        body = data[:_FILE_SUM_OFFSET]
        return body + _SUM.pack(xxhash.xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes) -> JournalHeader:
        """Parses bytes of ``pack``. Raises JournalFormatError for others, and for another version, which it names."""
        if len(data) < FILE_HEADER_BYTES:
            raise JournalFormatError(f"the file's header has {len(data)} of {FILE_HEADER_BYTES} bytes")
        magic, version, header_bytes, number, previous_end, key, synced, told = _FILE.unpack_from(data)
        if magic != FILE_MAGIC:
            raise JournalFormatError(f"the file begins with {magic!r}, a journal with {FILE_MAGIC!r}")
        if not VERSION_PLAIN <= version <= VERSION:
            raise JournalFormatError(
                f"the file has version {version} of the journal; this Tailrace knows versions up to {VERSION}"
            )
        found = xxhash.xxh3_64_intdigest(data[:_FILE_SUM_OFFSET])
        if told != found:
            raise JournalFormatError(f"the file header's checksum is {told:016x}, its bytes have {found:016x}")
        header = cls(number, key, previous_end, synced, version)
        if header_bytes != FILE_HEADER_BYTES or header.pack() != data[:FILE_HEADER_BYTES]:
            raise JournalFormatError("the file's header has something in a reserved field")
        least_end = 0 if number == 1 else FILE_HEADER_BYTES
        if synced < FILE_HEADER_BYTES or previous_end < least_end or (number == 1 and previous_end):
            raise JournalFormatError(f"the header of file {number} has ends that can't be: {previous_end} and {synced}")
        return header


class RecordHeader(NamedTuple):
    """The 96 bytes in front of a record's payload, without their checksum.

    ``offset`` is the record's own place in the file. ``synced`` is the offset up to which the file was known to be
    durable when the record was written. ``length`` is the payload's bytes; the checksum covers the first ``covered``.
    ``branch`` (that of the last seq) and the bounds of the snapshot (0, 0 but on a replica) are for blocks.
    """

    file_key: int
    file_number: int
    offset: int
    synced: int
    length: int
    covered: int
    kind: int
    partition: int
    feed_id: bytes
    branch: bytes
    snapshot_first: int
    snapshot_last: int

    @classmethod
    def read(cls, data: bytes, at: int) -> RecordHeader:
        """Returns the header at byte ``at`` of ``data``, which was checked before."""
        key, number, offset, synced, length, covered, kind, _, partition, _, *rest = _RECORD.unpack_from(data, at)
        return cls(key, number, offset, synced, length, covered, kind, partition, *rest)

    @property
    def end(self) -> int:
        """The offset of the next record: behind the payload, at a multiple of 8."""
        return self.offset + RECORD_HEADER_BYTES + padded(self.length)


def padded(nbytes: int) -> int:
    """Returns ``nbytes``, rounded up to a multiple of 8."""
    return (nbytes + 7) & ~7


def pack_record(
    file_key: int,
    file_number: int,
    offset: int,
    synced: int,
    length: int,
    kind: int,
    partition: int,
    feed_id: bytes,
    branch: bytes,
    snapshot: tuple[int, int],
    covered: bytes,
) -> bytes:
    """Returns the 96 bytes in front of a payload, which has ``length`` bytes and begins with those of ``covered``.

    Every write calls this, so it checks nothing: its caller has.
    """
    fields = _RECORD.pack(
        file_key,
        file_number,
        offset,
        synced,
        length,
        len(covered),
        kind,
        0,
        partition,
        0,
        feed_id,
        branch,
        snapshot[0],
        snapshot[1],
    )
    return fields + _SUM.pack(xxhash.xxh3_64_intdigest(fields + covered))


def unpack_record(data: bytes, file: JournalHeader, offset: int) -> RecordHeader:
    """Parses the header at ``offset`` of ``file``, and checks its bounds. ``check_sum`` checks its sum afterwards.

    Raises JournalFormatError if these bytes can't be a record of this file and place.
    """
    if len(data) < RECORD_HEADER_BYTES:
        raise JournalFormatError(
            f"the file ends inside a record's header, after {len(data)} of {RECORD_HEADER_BYTES} bytes"
        )
    fields = _RECORD.unpack_from(data)
    key, number, own_offset, synced, length, covered, kind, reserved, partition, more_reserved, *rest = fields
    if key != file.key or number != file.number or own_offset != offset:
        raise JournalFormatError("no record of this file begins here")
    if reserved or more_reserved:
        raise JournalFormatError("the record has something in a reserved field")
    if not FILE_HEADER_BYTES <= synced <= offset:
        raise JournalFormatError(f"the record says that the file was synced up to {synced}, and stands at {offset}")
    if not covered <= length <= PAYLOAD_BYTES_MAX:
        raise JournalFormatError(
            f"a payload of {length} bytes with {covered} covered is out of bounds ({PAYLOAD_BYTES_MAX})"
        )
    return RecordHeader(key, number, own_offset, synced, length, covered, kind, partition, *rest)


def check_sum(data: bytes, covered: bytes) -> None:
    """Raises JournalFormatError unless the header ``data`` (96 bytes) has the checksum of itself and ``covered``."""
    (told,) = _SUM.unpack_from(data, _RECORD_SUM_OFFSET)
    found = xxhash.xxh3_64_intdigest(data[:_RECORD_SUM_OFFSET] + covered)
    if told != found:
        raise JournalFormatError(f"the record's checksum is {told:016x}, its bytes have {found:016x}")


def file_name(number: int) -> str:
    """Returns ``00000001.log`` for file 1."""
    return f"{number:08d}.log"


def file_number(name: str) -> int | None:
    """Returns the number of a journal file by its name; None for any other name."""
    digits = name.removesuffix(".log")
    if digits == name or not digits.isdecimal() or not digits.isascii() or file_name(int(digits)) != name:
        return None
    return int(digits)


def lsn(number: int, offset: int) -> int:
    """Returns one number for a place in the journal: it grows over all files."""
    return number * FILE_BYTES_MAX + offset


def split_lsn(place: int) -> tuple[int, int]:
    """Returns file number and offset of an lsn."""
    return divmod(place, FILE_BYTES_MAX)
