"""The two ends of a segment's file, which identify it: the header and the checksum. Pure, and without numpy."""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from tailrace.segment.errors import SegmentFormatError, UnknownSegmentVersion

MAGIC = b"TRSG"
VERSION = 2  # the newest that this program knows
VERSION_PLAIN = 1  # of a segment without a block of version 2
HEADER_BYTES = 64
TRAILER_BYTES = 96
FILE_SUM_BYTES = 16
# The version, the bytes of the trailer and the magic: the last bytes of the file.
END = struct.Struct("<HH4s")
# The checksum covers everything before these bytes, which begin with it.
END_BYTES = FILE_SUM_BYTES + END.size

_HEADER = struct.Struct("<4sHHI4x16s16s8x")
_SUM = struct.Struct("<Q")

assert _HEADER.size + _SUM.size == HEADER_BYTES


class SegmentHeader(NamedTuple):
    """The first 64 bytes: the partition and the segment of the file. Ids have 16 bytes."""

    feed_id: bytes
    partition: int
    segment_id: bytes

    def pack(self, version: int = VERSION_PLAIN) -> bytes:
        """Returns the 64 bytes of a file of ``version``, with their checksum."""
        fields = _HEADER.pack(MAGIC, version, HEADER_BYTES, self.partition, self.feed_id, self.segment_id)
        return fields + _SUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def unpack(cls, data: bytes) -> SegmentHeader:
        """Parses bytes of ``pack``. Raises SegmentFormatError for others, and for another version, which it names."""
        magic, version, _, partition, feed_id, segment_id = _HEADER.unpack_from(data)
        if magic != MAGIC:
            raise SegmentFormatError(f"the file begins with {magic!r}, a segment with {MAGIC!r}")
        check_version(version)
        header = cls(feed_id, partition, segment_id)
        if header.pack(version) != data:
            raise SegmentFormatError("the file's header has a wrong checksum, or something in a reserved field")
        return header


def end_of(file_sum: int, version: int = VERSION_PLAIN) -> bytes:
    """Returns the end of the trailer: the checksum of everything before it, XXH3-128, version and magic."""
    return file_sum.to_bytes(FILE_SUM_BYTES, "little") + END.pack(version, TRAILER_BYTES, MAGIC)


def is_end_of(end: bytes, file_sum: int) -> bool:
    """Returns whether ``end`` is the end of a file with this checksum, of any version that this program knows."""
    return any(end == end_of(file_sum, version) for version in range(VERSION_PLAIN, VERSION + 1))


def file_sum_in(end: bytes) -> int:
    """Returns the checksum that ``end_of`` was given."""
    return int.from_bytes(end[:FILE_SUM_BYTES], "little")


def check_version(version: int) -> None:
    """Raises UnknownSegmentVersion for another version than this program knows."""
    if not VERSION_PLAIN <= version <= VERSION:
        raise UnknownSegmentVersion(
            f"the file has version {version} of the segment; this Tailrace knows versions up to {VERSION}"
        )
