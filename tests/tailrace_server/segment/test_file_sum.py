"""The checksum of a segment's file, compared piece by piece with its bytes."""

from __future__ import annotations

import pytest

from tailrace_server.segment import FileSum, Segment, SegmentDamaged


@pytest.fixture
def disk(one_file, written, block_of):
    return one_file(written([block_of([(b"a", b"1", 1, 10), (b"b", None, 2, 10)])]))


def read(segment, nbytes):
    """Reads the whole file in pieces of ``nbytes``; the count of bytes that came."""
    file_sum, count = FileSum(segment), 0
    while not file_sum.is_done:
        found = file_sum.read(nbytes)
        assert 0 < found <= nbytes
        count += found
    return count


@pytest.mark.parametrize("nbytes", [24, 100, 1 << 20])
def test_a_good_file_is_read_once(disk, nbytes):
    segment = Segment.open(disk, "a.seg")
    assert read(segment, nbytes) == segment.nbytes


def test_each_flipped_byte_is_found(disk):
    segment = Segment.open(disk, "a.seg")
    for place in range(segment.nbytes):
        disk.data[place] ^= 4
        with pytest.raises(SegmentDamaged, match=r"a\.seg is damaged at offset 0: its bytes have the checksum"):
            read(segment, 1 << 20)
        disk.data[place] ^= 4


def test_a_file_that_was_cut_is_found(disk):
    segment = Segment.open(disk, "a.seg")
    del disk.data[-10:]
    with pytest.raises(SegmentDamaged, match="bytes were expected here"):
        read(segment, 1 << 20)
