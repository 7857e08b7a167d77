from __future__ import annotations

import struct

import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.block import BODY_BYTES_MAX, VALUE_BYTES_MAX, Block, encode_block
from tailrace.block.check import check_columns
from tailrace.block.encode import Stamps
from tailrace.block.filtering import filter_block
from tailrace.block.layout import read_layout
from tailrace.errors import BadBlock, TooLarge
from tailrace.model.hashing import hash_keys, partition_of_hash, partition_range
from tailrace.wire.filters import StreamFilter
from tailrace_server.partition.validation import validate_block

KEYS = [key for key in (b"key %d" % i for i in range(400)) if partition_of_hash(hash_keys([key])[0], 4) == 2]
VALUES: list[bytes | None] = [b"value"] * len(KEYS)
RANGE = partition_range(2, 4)


@pytest.fixture(params=[1, 30, len(KEYS)])
def rows(request):
    """How many rows a block has: few are checked in Python, many by numpy."""
    return request.param


def test_a_producers_block_comes_in(rows):
    for compress in (True, False):
        block = encode_block(KEYS[:rows], VALUES[:rows], partition=2, compress=compress)
        validate_block(Block.parse(block.tobytes()), *RANGE)


def test_the_ends_of_the_range_belong_to_it():
    block = encode_block([b"a", b"b"], [b"", b""], partition=2, hashes=[100, 200])
    validate_block(block, 100, 200)
    for first, last in ((101, 200), (100, 199), (0, 99), (201, 2**64 - 1)):
        with pytest.raises(BadBlock, match="outside of partition 2"):
            validate_block(block, first, last)


@pytest.mark.parametrize(
    "stamps", [Stamps([3, 5], [1, 1]), Stamps([3, 4], [1, 2])], ids=["a column of seqs", "a column of timestamps"]
)
def test_the_servers_columns_are_not_the_producers_to_send(stamps):
    block = encode_block([b"a", b"b"], [b"", b""], partition=2, stamps=stamps)
    with pytest.raises(BadBlock, match="columns of seqs or timestamps"):
        validate_block(block, 0, 2**64 - 1)


def test_the_servers_numbers_are_not_the_producers_to_send():
    block = encode_block([b"a", b"b"], [b"", b""], partition=2)
    with pytest.raises(BadBlock, match="in its header"):
        validate_block(block.stamped(1, 5), 0, 2**64 - 1)
    timed = Block.parse(block.header._replace(timestamp=5).pack() + bytes(block.body))
    with pytest.raises(BadBlock, match="in its header"):
        validate_block(timed, 0, 2**64 - 1)


def test_broken_columns_do_not_come_in(rows):
    block = encode_block(KEYS[:rows], VALUES[:rows], partition=2, compress=False)
    body = bytearray(block.body)
    body[8 * rows] = 1
    header = block.header._replace(body_sum=xxhash.xxh3_64_intdigest(bytes(body)))
    with pytest.raises(BadBlock, match="key offsets begin at 1"):
        validate_block(Block.parse(header.pack() + bytes(body)), *RANGE)


def test_whatever_a_filter_leaves_of_what_comes_in_is_a_block():
    keys = [b"w"] * 1000
    keys.insert(500, b"x")  # left out in the middle: the others need a column of seqs
    values = [bytes(VALUE_BYTES_MAX), *[b""] * 1000]
    nbytes = encode_block(keys, values, partition=2, compress=False).header.raw_bytes
    values[1] = bytes(BODY_BYTES_MAX - 8 * len(keys) - nbytes)
    largest = encode_block(keys, values, partition=2, compress=False)
    validate_block(largest, 0, 2**64 - 1)
    left = filter_block(largest.stamped(1, 1), StreamFilter(b"w"))
    assert left is not None
    assert left.rows == 1000
    values[1] += b"x"
    with pytest.raises(TooLarge, match="make several blocks"):
        validate_block(encode_block(keys, values, partition=2, compress=False), 0, 2**64 - 1)


def test_nothing_decompressed_is_kept():
    block = encode_block(KEYS, VALUES, partition=2)
    validate_block(block, *RANGE)
    assert block.open_columns() is not block.open_columns()


offsets = st.sampled_from([0, 1, 3, 8, 12, 4_096, 4_097, 2**24, 2**24 + 1, 2**31, 2**32 - 1])


@given(
    key=st.binary(min_size=1, max_size=20),
    value=st.none() | st.binary(max_size=20),
    changes=st.lists(st.tuples(st.integers(0, 63), st.integers(0, 255)), max_size=3),
    numbers=st.lists(st.tuples(st.integers(0, 15), offsets), max_size=2),
    size=st.integers(-30, 30),
)
@example(b"key", b"value", [], [], 0)
@example(b"k" * 8, b"value", [], [], 0)
@example(b"key", None, [], [], 0)
@example(b"key", b"value", [(19, 1)], [], 0)
@example(b"key", b"", [], [(3, 0)], 0)
@example(b"k" * 8, b"", [], [(3, 4_096)], 0)
def test_one_row_is_judged_as_the_general_check_does(key, value, changes, numbers, size):
    """Any bytes may stand where the columns were, under right checksums."""
    good = encode_block([key], [value], partition=2, compress=False)
    body = bytearray(bytes(good.body)[: len(good.body) + min(size, 0)] + bytes(max(size, 0)))
    for at, byte in changes:
        if at < len(body):
            body[at] = byte
    for at, number in numbers:
        if 4 * at + 4 <= len(body):
            struct.pack_into("<I", body, 4 * at, number)
    fields = {"body_sum": xxhash.xxh3_64_intdigest(body), "stored_bytes": len(body), "raw_bytes": len(body)}
    hostile = Block.parse(good.header._replace(**fields).pack() + body)
    assert refusal(validate_block, hostile, 0, 2**64 - 1) == refusal(check_generally, hostile)


def check_generally(block):
    raw = memoryview(block.body)
    check_columns(block.header, read_layout(block.header, raw), raw)


def refusal(check, *arguments):
    """Why ``check`` refuses a block; None where it does not."""
    try:
        check(*arguments)
    except BadBlock as error:
        return str(error)
    return None
