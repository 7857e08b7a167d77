"""The short way of opening a block of one row against the general one: it may leave a row to that, never differ."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, FLAG_TOMBSTONES, KEY_BYTES_MAX, VALUE_BYTES_MAX, Block, encode_block
from tailrace.block.check import check_columns
from tailrace.block.header import BlockHeader, sum_of
from tailrace.block.layout import read_layout
from tailrace.block.row_layout import is_usual_row, usual_row_layout
from tailrace.errors import BadBlock

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


def verdict(check):
    try:
        check()
    except BadBlock as error:
        return str(error)
    return "good"


def changed_bodies(body):
    """The body with each byte changed, and cut and lengthened."""
    for offset in range(len(body)):
        for change in (1, 0x80, 0xFF):
            yield body[:offset] + bytes([body[offset] ^ change]) + body[offset + 1 :]
    for nbytes in range(1, len(body)):
        yield body[:nbytes]
    yield from (body + bytes(more) for more in (1, 7, 8, 16))


@pytest.mark.parametrize("key", [b"k", b"a key of 19 bytes..", b"8 bytes."])
@pytest.mark.parametrize("value", [b"", b"value", None])
def test_each_changed_byte_has_the_same_verdict_opened_or_not(key, value):
    """The sums are those of the changed bytes, as a producer with a bug would send them."""
    whole = encode_block([key], [value], partition=1, producer_id=3, producer_seq=4, compress=False)
    seen = set()
    for body in [bytes(whole.body), *changed_bodies(bytes(whole.body))]:
        sizes = {"stored_bytes": len(body), "raw_bytes": len(body), "body_sum": sum_of(body)}
        header = whole.header._replace(**sizes)
        data = header.pack() + body
        unopened, opened = Block.parse(data), Block.parse(data)
        found = verdict(unopened.check_columns)
        assert found == verdict(opened.open_columns)
        if is_usual_row(header, body):
            assert found == "good"
            assert unopened.stamped(7, 9).columns().keys() == opened.columns().keys()
        seen.add(found == "good")
    assert seen == {True, False}


def test_a_stamped_head_is_that_of_the_packed_fields():
    block = encode_block([b"a", b"b"], [b"1", None], partition=2**31 - 1, producer_id=2**64 - 1, producer_seq=7)
    for first_seq, timestamp in ((1, 0), (2**62, 2**63 - 1)):
        stamped = block.stamped(first_seq, timestamp)
        assert stamped.head == stamped.header.pack()
        assert BlockHeader.unpack(stamped.head) == stamped.header
    with pytest.raises(ValueError, match="do not fit"):
        block.stamped(1, 2**64)
