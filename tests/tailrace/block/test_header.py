from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import BODY_BYTES_MAX, HEADER_BYTES, ROWS_MAX, BlockHeader
from tailrace.errors import BadBlock

PLAIN = BlockHeader(
    flags=0,
    rows=2,
    partition=3,
    first_seq=10,
    last_seq=11,
    timestamp=1_700_000_000_000_000,
    producer_id=0xFEDCBA9876543210,
    producer_seq=5,
    stored_bytes=64,
    raw_bytes=64,
    least_hash=1,
    greatest_hash=2**64 - 1,
    body_sum=99,
)


def test_a_header_comes_back():
    assert len(PLAIN.pack()) == HEADER_BYTES
    assert BlockHeader.unpack(PLAIN.pack()) == PLAIN
    assert BlockHeader.unpack(memoryview(PLAIN.pack() + b"more")) == PLAIN


def test_every_field_is_where_the_format_says():
    packed = PLAIN._replace(flags=0x0807).pack()
    fields = {
        4: (2, 1),
        6: (2, 0x0807),
        8: (4, 2),
        12: (4, 3),
        16: (8, 10),
        24: (8, 11),
        32: (8, 1_700_000_000_000_000),
        40: (8, 0xFEDCBA9876543210),
        48: (4, 5),
        52: (4, 64),
        56: (4, 64),
        60: (4, 0),
        64: (8, 1),
        72: (8, 2**64 - 1),
        80: (8, 99),
    }
    assert packed[:4] == b"TRBK"
    for offset, (nbytes, number) in fields.items():
        assert int.from_bytes(packed[offset : offset + nbytes], "little") == number, offset


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flags": 32}, "flags"),
        ({"rows": 0}, "rows"),
        ({"rows": ROWS_MAX + 1}, "rows"),
        ({"partition": 2**31}, "partition"),
        ({"least_hash": 2, "greatest_hash": 1}, "hash"),
        ({"raw_bytes": 65}, "not compressed"),
        ({"raw_bytes": BODY_BYTES_MAX + 1, "stored_bytes": BODY_BYTES_MAX + 1}, "at most"),
        ({"flags": 1, "raw_bytes": 255}, "never stored compressed"),
        ({"flags": 1, "raw_bytes": 300, "stored_bytes": 300}, "never stored compressed"),
        ({"flags": 1, "raw_bytes": 64 * 255 + 1}, "cannot hold"),
        ({"first_seq": 0}, "seqs"),
        ({"last_seq": 12}, "seqs"),
        ({"last_seq": 9}, "seqs"),
        ({"flags": 2, "last_seq": 10}, "seqs"),
        ({"flags": 2, "first_seq": 0, "last_seq": 0}, "must say"),
        ({"flags": 4, "first_seq": 0, "last_seq": 0}, "must say"),
        ({"first_seq": 2**63 - 1, "last_seq": 2**63}, "above"),
        ({"timestamp": 2**63}, "above"),
    ],
)
def test_a_header_out_of_bounds_is_refused(changes, message):
    with pytest.raises(BadBlock, match=message):
        BlockHeader.unpack(PLAIN._replace(**changes).pack())


@pytest.mark.parametrize(
    "changes",
    [
        {"first_seq": 0, "last_seq": 0, "timestamp": 0},
        {"flags": 2, "last_seq": 99},
        {"flags": 6, "last_seq": 99},
        {"flags": 1, "raw_bytes": 64 * 255},
        {"flags": 8},
        {"flags": 16},
        {"first_seq": 2**63 - 2, "last_seq": 2**63 - 1},
    ],
)
def test_a_header_at_its_bounds_is_taken(changes):
    header = PLAIN._replace(**changes)
    assert BlockHeader.unpack(header.pack()) == header


def test_what_is_no_header_is_named():
    packed = PLAIN.pack()
    with pytest.raises(BadBlock, match="only 95"):
        BlockHeader.unpack(packed[:95])
    with pytest.raises(BadBlock, match="begins with"):
        BlockHeader.unpack(b"TRBX" + packed[4:])
    with pytest.raises(BadBlock, match="version 3, this program reads versions 1 to 2"):
        BlockHeader.unpack(packed[:4] + b"\3\0" + packed[6:])
    with pytest.raises(BadBlock, match="checksum"):
        BlockHeader.unpack(packed[:8] + b"\3" + packed[9:])


def test_numbers_that_do_not_fit_are_value_errors():
    with pytest.raises(ValueError, match="does not fit"):
        PLAIN._replace(producer_id=-1).pack()


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES + 8))
def test_noise_is_refused(noise):
    with pytest.raises(BadBlock):
        BlockHeader.unpack(noise)
    with pytest.raises(BadBlock):
        BlockHeader.unpack(b"TRBK\1\0" + noise)
