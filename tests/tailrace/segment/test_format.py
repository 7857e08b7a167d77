from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segment.block_index import ENTRY_BYTES
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    SegmentHeader,
    Trailer,
    check_footer_sum,
    end_of,
    file_sum_in,
)
from tailrace.segment.identity import IDENTITY_BYTES_MAX
from tailrace.segment.page import PAGE_BYTES

U64 = st.integers(0, 2**64 - 1)
ids = st.binary(min_size=16, max_size=16)
HEADER = SegmentHeader(b"F" * 16, 3, b"S" * 16)


def trailer_of(pages=2, blocks=3, identity_bytes=400, table_offset=PAGE_BYTES, least=1, greatest=9):
    index_offset = table_offset + pages * PAGE_BYTES
    identity_offset = index_offset + blocks * ENTRY_BYTES
    file_bytes = identity_offset + identity_bytes + TRAILER_BYTES
    return Trailer(
        file_bytes, table_offset, index_offset, identity_offset, pages, blocks, identity_bytes, least, greatest
    )


def packed(trailer, index=b"", identity=b"", sum_=7):
    return trailer.seal(index, identity) + end_of(sum_)


@given(ids, st.integers(0, 2**31 - 1), ids)
def test_a_header_is_read_as_it_was_packed(feed_id, partition, segment_id):
    header = SegmentHeader(feed_id, partition, segment_id)
    assert len(header.pack()) == HEADER_BYTES
    assert SegmentHeader.unpack(header.pack()) == header


def test_a_header_of_something_else_or_another_version_is_named():
    data = HEADER.pack()
    with pytest.raises(SegmentFormatError, match=r"the file begins with b'TRJL', a segment with b'TRSG'"):
        SegmentHeader.unpack(b"TRJL" + data[4:])
    with pytest.raises(SegmentFormatError, match="version 3 of the segment; this Tailrace knows versions up to 2"):
        SegmentHeader.unpack(data[:4] + b"\3" + data[5:])


@pytest.mark.parametrize("bit", range(HEADER_BYTES * 8))
def test_a_bit_of_the_header_that_flipped_is_found(bit):
    data = bytearray(HEADER.pack())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SegmentFormatError):
        SegmentHeader.unpack(bytes(data))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, IDENTITY_BYTES_MAX),
    st.integers(1, 2**30),
    U64,
    U64,
)
def test_a_trailer_is_read_as_it_was_packed(pages, blocks, identity_bytes, begin, least, greatest):
    trailer = trailer_of(pages, blocks, identity_bytes, begin * PAGE_BYTES, least, greatest)
    data = packed(trailer)
    assert len(data) == TRAILER_BYTES
    assert Trailer.unpack(data, trailer.file_bytes) == trailer


@given(st.binary(max_size=100), st.binary(max_size=100), st.integers(0, 2**128 - 1))
def test_the_sums_are_kept(index, identity, sum_):
    data = packed(trailer_of(), index, identity, sum_)
    check_footer_sum(index + identity + data)
    assert file_sum_in(end_of(sum_)) == sum_
    with pytest.raises(SegmentFormatError, match="the checksum of index, identity and trailer"):
        check_footer_sum(index + b"!" + identity + data)


@pytest.mark.parametrize(
    ("offset", "new", "why"),
    [
        (92, b"TRBK", r"the file ends with b'TRBK', a segment with b'TRSG': it was cut, or never finished"),
        (88, b"\3", "version 3 of the segment; this Tailrace knows versions up to 2"),
        (90, b"\0", "the trailer says that it has 0 bytes, version 1 has 96"),
        (0, b"\0", "the trailer says that the file has"),
        (44, b"\1", "the trailer's reserved field is 1"),
        (8, b"\1", "the key table has 8192 bytes from 4097 on, the next part begins at 12288"),
        (36, b"\4", "the block index has 128 bytes from 12288 on, the next part begins at 12384"),
        (40, struct.pack("<I", 401), "the identity has 401 bytes from 12384 on, the next part begins at 12784"),
    ],
)
def test_a_trailer_that_cannot_be_is_refused(offset, new, why):
    trailer = trailer_of()
    data = bytearray(packed(trailer))
    data[offset : offset + len(new)] = new
    with pytest.raises(SegmentFormatError, match=why):
        Trailer.unpack(data, trailer.file_bytes)


@pytest.mark.parametrize(
    ("trailer", "why"),
    [
        (trailer_of(table_offset=0), "the key table can't begin at 0"),
        (trailer_of(table_offset=PAGE_BYTES + 8), "the key table can't begin at 4104"),
        (trailer_of(identity_bytes=IDENTITY_BYTES_MAX + 1), "the identity has 8193 bytes, at most 8192 are permitted"),
    ],
)
def test_parts_out_of_bounds_are_refused(trailer, why):
    with pytest.raises(SegmentFormatError, match=why):
        Trailer.unpack(packed(trailer), trailer.file_bytes)
