"""The header and the trailer of a segment's file. Pure: bytes in, values out. docs/formats/segment.md has the whole.

    header       64 bytes
    blocks       back to back, each as on the wire
    zeros        up to a multiple of a page
    key table    pages (page.py)
    block index  32 bytes a block (block_index.py)
    identity     JSON (identity.py)
    trailer      96 bytes

The trailer's first checksum covers block index, identity and trailer: all that opening reads. Blocks and pages have
their own. The second checksum covers the file.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from tailrace.segment.block_index import ENTRY_BYTES
from tailrace.segment.ends import (
    END,
    END_BYTES,
    FILE_SUM_BYTES,
    HEADER_BYTES,
    MAGIC,
    TRAILER_BYTES,
    VERSION,
    VERSION_PLAIN,
    SegmentHeader,
    check_version,
    end_of,
    file_sum_in,
    is_end_of,
)
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.identity import IDENTITY_BYTES_MAX
from tailrace.segment.page import table_begin, table_bytes

_SUM = struct.Struct("<Q")
_FIELDS = struct.Struct("<QQQQIIIIQQ")

__all__ = [
    "FILE_SUM_BYTES",
    "FILE_SUM_OFFSET",
    "FOOTER_SUM_OFFSET",
    "HEADER_BYTES",
    "MAGIC",
    "TRAILER_BYTES",
    "VERSION",
    "VERSION_PLAIN",
    "SegmentHeader",
    "Trailer",
    "check_footer_sum",
    "end_of",
    "file_sum_in",
    "is_end_of",
]

# The offsets of the trailer's parts: the sum of footer and fields, the sum of the file, and the trailer's end.
FOOTER_SUM_OFFSET = _FIELDS.size
FILE_SUM_OFFSET = FOOTER_SUM_OFFSET + _SUM.size
_END_OFFSET = FILE_SUM_OFFSET + FILE_SUM_BYTES

assert FILE_SUM_OFFSET + END_BYTES == TRAILER_BYTES


class Trailer(NamedTuple):
    """The last 96 bytes, without the checksums: places of the parts (offsets and lengths in bytes), counts, bounds.

    ``least_hash`` and ``greatest_hash`` are those of all keys, 0 and 0 without keys.
    """

    file_bytes: int
    table_offset: int
    index_offset: int
    identity_offset: int
    pages: int
    blocks: int
    identity_bytes: int
    least_hash: int
    greatest_hash: int
    version: int = VERSION_PLAIN

    @property
    def trailer_offset(self) -> int:
        """The offset of the trailer."""
        return self.file_bytes - TRAILER_BYTES

    def seal(self, index: bytes, identity: bytes) -> bytes:
        """Returns the fields, and behind them the checksum of block index, identity and fields. ``end_of`` follows."""
        fields = _FIELDS.pack(*self[:7], 0, *self[7:9])
        return fields + _SUM.pack(xxhash.xxh3_64_intdigest(b"".join((index, identity, fields))))

    @classmethod
    def unpack(cls, data: bytes | memoryview, file_bytes: int) -> Trailer:
        """Parses the trailer of a file of ``file_bytes`` bytes; checks no sums. Raises SegmentFormatError."""
        version, trailer_bytes, magic = END.unpack_from(data, _END_OFFSET)
        if magic != MAGIC:
            raise SegmentFormatError(
                f"the file ends with {magic!r}, a segment with {MAGIC!r}: it was cut, or never finished"
            )
        check_version(version)
        if trailer_bytes != TRAILER_BYTES:
            raise SegmentFormatError(
                f"the trailer says that it has {trailer_bytes} bytes, version {version} has {TRAILER_BYTES}"
            )
        numbers = _FIELDS.unpack_from(data)
        fields = (*numbers[:7], *numbers[8:], version)
        trailer = cls(*fields)
        if trailer.file_bytes != file_bytes:
            raise SegmentFormatError(
                f"the trailer says that the file has {trailer.file_bytes} bytes, it has {file_bytes}"
            )
        if numbers[7]:
            raise SegmentFormatError(f"the trailer's reserved field is {numbers[7]}, it must be zero")
        trailer._check_places()
        return trailer

    def _check_places(self) -> None:
        """Raises SegmentFormatError unless the parts lie back to back, in their order and within their bounds."""
        parts = (
            ("key table", self.table_offset, table_bytes(self.pages), self.index_offset),
            ("block index", self.index_offset, self.blocks * ENTRY_BYTES, self.identity_offset),
            ("identity", self.identity_offset, self.identity_bytes, self.trailer_offset),
        )
        for what, offset, nbytes, end in parts:
            if offset + nbytes != end:
                raise SegmentFormatError(
                    f"the {what} has {nbytes} bytes from {offset} on, the next part begins at {end}"
                )
        if self.table_offset < HEADER_BYTES or self.table_offset != table_begin(self.table_offset):
            raise SegmentFormatError(f"the key table can't begin at {self.table_offset}")
        if self.identity_bytes > IDENTITY_BYTES_MAX:
            raise SegmentFormatError(
                f"the identity has {self.identity_bytes} bytes, at most {IDENTITY_BYTES_MAX} are permitted"
            )


def check_footer_sum(footer: bytes | memoryview) -> None:
    """Raises SegmentFormatError unless ``footer`` (block index, identity, trailer) has the first checksum."""
    place = len(footer) - TRAILER_BYTES + FOOTER_SUM_OFFSET
    (told,) = _SUM.unpack_from(footer, place)
    found = xxhash.xxh3_64_intdigest(footer[:place])
    if told != found:
        raise SegmentFormatError(f"the checksum of index, identity and trailer is {told:016x}, they have {found:016x}")
