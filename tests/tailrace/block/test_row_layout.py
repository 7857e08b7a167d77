"""The short way of opening a block of one row against the general one: it may leave a row to that, never differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, FLAG_TOMBSTONES, KEY_BYTES_MAX, VALUE_BYTES_MAX, encode_block
from tailrace.block.check import check_columns
from tailrace.block.layout import read_layout
from tailrace.block.row_layout import usual_row_layout

KEYS = st.binary(min_size=1, max_size=20)
# Bytes that a column's numbers and padding may wrongly have, where they may have them.
CHANGES = st.lists(
    st.tuples(st.integers(0, 47), st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 24, 255]) | st.integers(0, 255)),
    min_size=1,
    max_size=4,
)


def opened(header, raw):
    """The layout by the general way, columns checked; BadBlock where they break the format."""
    layout = read_layout(header, raw)
    check_columns(header, layout, raw)
    return layout


@given(KEYS, st.binary(max_size=50), st.booleans())
def test_a_usual_row_is_opened_as_by_the_general_way(key, value, compressed):
    block = encode_block([key], [value], partition=1, compress=False)
    raw = memoryview(block.body)
    header = block.header._replace(flags=FLAG_COMPRESSED) if compressed else block.header
    layout = usual_row_layout(header, raw)
    assert layout is not None
    assert layout == opened(header, raw)


@given(KEYS, st.none() | st.binary(max_size=20), CHANGES, st.integers(-9, 9))
def test_a_row_that_is_accepted_is_accepted_by_the_general_way(key, value, changes, longer):
    block = encode_block([key], [value], partition=1, compress=False)
    body = bytearray(block.body)
    for offset, byte in changes:
        body[offset % len(body)] = byte
    body = body + bytes(longer) if longer > 0 else body[: len(body) + longer]
    raw = memoryview(bytes(body))
    for flags in {0, block.header.flags}:
        header = block.header._replace(flags=flags)
        layout = usual_row_layout(header, raw)
        if layout is not None:
            assert layout == opened(header, raw)


@pytest.mark.parametrize("nbytes", range(32))
def test_a_body_that_is_too_short_is_left_to_the_general_way(nbytes):
    header = encode_block([b"k"], [b""], partition=1, hashes=[0]).header
    assert usual_row_layout(header, memoryview(bytes(nbytes))) is None


def test_bounds_of_lengths_are_those_of_the_general_way():
    largest = encode_block([b"k" * KEY_BYTES_MAX], [bytes(VALUE_BYTES_MAX)], partition=1, compress=False)
    assert usual_row_layout(largest.header, memoryview(largest.body)) is not None
    key = b"k" * (KEY_BYTES_MAX + 8)
    body = bytes(12) + len(key).to_bytes(4, "little") + key + bytes(8)
    header = largest.header._replace(least_hash=0, greatest_hash=0)
    assert usual_row_layout(header, memoryview(body)) is None
    body = bytes(12) + b"\1\0\0\0" + b"k" + bytes(11) + (VALUE_BYTES_MAX + 1).to_bytes(4, "little")
    assert usual_row_layout(header, memoryview(body + bytes(VALUE_BYTES_MAX + 1))) is None


def test_a_hash_that_is_not_the_headers_is_left_to_the_general_way():
    block = encode_block([b"k"], [b"v"], partition=1, hashes=[5])
    for wrong in ({"least_hash": 4}, {"greatest_hash": 6}):
        assert usual_row_layout(block.header._replace(**wrong), memoryview(block.body)) is None


def test_a_deletion_is_left_to_the_general_way():
    block = encode_block([b"k"], [None], partition=1)
    assert block.header.flags == FLAG_TOMBSTONES
    assert usual_row_layout(block.header, memoryview(block.body)) is None
    assert block.columns().values() == [None]
