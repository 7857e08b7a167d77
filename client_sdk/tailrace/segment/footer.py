"""The parts that opening a segment reads, verified: header, block index, identity and trailer."""

from __future__ import annotations

from typing import NamedTuple

from tailrace.segment.block_index import ENTRY_BYTES, BlockIndex
from tailrace.segment.ends import VERSION_PLAIN
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.file import ReadableFile
from tailrace.segment.format import HEADER_BYTES, TRAILER_BYTES, SegmentHeader, Trailer, check_footer_sum
from tailrace.segment.identity import SegmentIdentity
from tailrace.segment.page import pages_of, table_begin


class Footer(NamedTuple):
    """The parts of a segment that are kept in memory while it is open."""

    trailer: Trailer
    blocks: BlockIndex
    identity: SegmentIdentity

    @classmethod
    def read(cls, file: ReadableFile) -> Footer:
        """Reads and verifies the footer of a file. Raises the error of ``file.damaged``."""
        least = HEADER_BYTES + TRAILER_BYTES
        if file.nbytes < least:
            raise file.damaged(0, f"the file has {file.nbytes} bytes, a segment at least {least}")
        offset = 0
        try:
            head = file.read(0, HEADER_BYTES)
            header = SegmentHeader.unpack(head)
            offset = file.nbytes - TRAILER_BYTES
            trailer = Trailer.unpack(file.read(offset, TRAILER_BYTES), file.nbytes)
            if head != header.pack(trailer.version):
                raise SegmentFormatError(f"the trailer is of version {trailer.version}, the header is not")
            offset = trailer.index_offset
            data = file.read(offset, file.nbytes - offset)
            check_footer_sum(data)
            return cls._parse(header, trailer, data)
        except SegmentFormatError as error:
            raise file.damaged(offset, error) from None

    @classmethod
    def _parse(cls, header: SegmentHeader, trailer: Trailer, data: bytes) -> Footer:
        """Parses a footer whose checksum holds. Raises SegmentFormatError if its parts contradict each other."""
        index_bytes = trailer.blocks * ENTRY_BYTES
        index = BlockIndex.unpack(data[:index_bytes])
        identity = SegmentIdentity.decode(data[index_bytes : index_bytes + trailer.identity_bytes])
        if header != (identity.feed_id, identity.partition, identity.segment_id):
            raise SegmentFormatError("the header and the identity name different segments")
        index.check(HEADER_BYTES, identity)
        if identity.earliest_expiry and trailer.version == VERSION_PLAIN:
            raise SegmentFormatError(f"a segment of version {VERSION_PLAIN} has no rows with a ttl")
        if trailer.pages != pages_of(identity.rows):
            raise SegmentFormatError(
                f"the key table has {trailer.pages} pages, which is wrong for {identity.rows} rows"
            )
        end = int(index.places(HEADER_BYTES)[-1])
        if trailer.table_offset != table_begin(end):
            raise SegmentFormatError(f"the blocks end at {end}, the key table can't begin at {trailer.table_offset}")
        return cls(trailer, index, identity)
