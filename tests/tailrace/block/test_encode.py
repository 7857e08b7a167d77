from __future__ import annotations

import random

import pytest

from tailrace.block import (
    BODY_BYTES_MAX,
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TOMBSTONES,
    KEY_BYTES_MAX,
    ROWS_MAX,
    VALUE_BYTES_MAX,
    Block,
    encode_block,
)
from tailrace.block.encode import Stamps
from tailrace.errors import TooLarge
from tailrace.model.hashing import hash_keys

RANDOM = random.Random(7).randbytes(1 << 20)


def test_the_header_says_what_is_inside():
    keys = [b"a", b"b", b"c"]
    header = encode_block(keys, [b"1", None, b"3"], partition=5, producer_id=2**64 - 1, producer_seq=6).header
    assert header.flags == FLAG_TOMBSTONES
    assert (header.rows, header.partition, header.producer_id, header.producer_seq) == (3, 5, 2**64 - 1, 6)
    assert (header.least_hash, header.greatest_hash) == (min(hash_keys(keys)), max(hash_keys(keys)))
    assert (header.first_seq, header.last_seq, header.timestamp) == (0, 0, 0)


def test_hashes_that_the_caller_has_are_taken():
    block = encode_block([b"a", b"b"], [b"", b""], partition=0, hashes=[9, 4])
    assert (block.header.least_hash, block.header.greatest_hash) == (4, 9)
    assert block.columns().hashes() == [9, 4]


@pytest.mark.parametrize(
    ("values", "compressed"),
    [
        ([RANDOM[at : at + 100] for at in range(0, 1 << 20, 100)], False),
        ([RANDOM[:20_000]] * 50, True),
        ([b"city=%d;" % number * 10 for number in range(10_000)], True),
        ([*(RANDOM[at : at + 100] for at in range(0, 300_000, 100)), *[b"text" * 25] * 6_000], True),
        ([bytes([number % 256]) for number in range(60_000)], True),
    ],
    ids=["random", "random, repeated", "text", "random before text", "small"],
)
def test_a_large_body_is_compressed_if_its_middle_is_not_random(values, compressed):
    keys = [b"key-%08d" % number for number in range(len(values))]
    block = encode_block(keys, values, partition=0)
    assert block.header.raw_bytes >= 512 * 1024
    assert bool(block.header.flags & FLAG_COMPRESSED) is compressed
    assert Block.parse(block.tobytes()).columns().values() == values


@pytest.mark.parametrize(
    ("value_bytes", "compress", "compressed"), [(400, True, True), (400, False, False), (200, True, False)]
)
def test_compression_is_for_bodies_that_gain(value_bytes, compress, compressed):
    block = encode_block([b"k"], [b"v" * value_bytes], partition=0, compress=compress)
    assert bool(block.header.flags & FLAG_COMPRESSED) is compressed
    assert (block.header.stored_bytes < block.header.raw_bytes) is compressed
    assert Block.parse(block.tobytes()).columns().values() == [b"v" * value_bytes]


def test_what_does_not_compress_is_left_as_it_is():
    noise = b"".join(number.to_bytes(8, "big") for number in hash_keys([b"%d" % i for i in range(100)]))
    assert encode_block([b"k"], [noise], partition=0).header.flags == 0


def test_dense_seqs_and_one_timestamp_need_no_columns():
    header = encode_block([b"a", b"b"], [b"", b""], partition=0, stamps=Stamps([8, 9], [5, 5])).header
    assert (header.flags, header.first_seq, header.last_seq, header.timestamp) == (0, 8, 9, 5)
    header = encode_block([b"a", b"b"], [b"", b""], partition=0, stamps=Stamps([8, 10], [5, 6])).header
    assert header.flags == FLAG_SEQS | FLAG_TIMESTAMPS
    assert (header.first_seq, header.last_seq, header.timestamp) == (8, 10, 6)


@pytest.mark.parametrize(
    ("seqs", "timestamps"),
    [([1], [1, 1]), ([1, 2], [1]), ([0, 1], [1, 1]), ([2, 2], [1, 1]), ([3, 2], [1, 1]), ([1, 2], [2, 1])],
)
def test_stamps_that_do_not_rise_or_fit_are_refused(seqs, timestamps):
    with pytest.raises(ValueError, match="seqs"):
        encode_block([b"a", b"b"], [b"", b""], partition=0, stamps=Stamps(seqs, timestamps))


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (["text"], [b""], r"key 0 is of type str.*\.encode\(\)"),
        ([b"a", "text"], [b"", b""], r"key 1 is of type str.*\.encode\(\)"),
        ([b"a", 7], [b"", b""], "key 1 is of type int"),
        ([None], [b""], "key 0 is of type NoneType"),
        ([b"a"], ["text"], r"value 0 is of type str.*\.encode\(\)"),
        ([b"a", b"b"], [None, "text"], r"value 1 is of type str.*\.encode\(\)"),
        ([b"a"], [1.5], "value 0 is of type float"),
        ([memoryview(b"12345678").cast("I")], [b""], "key 0 is of type memoryview"),
    ],
)
def test_what_is_not_bytes_is_a_type_error(keys, values, message):
    with pytest.raises(TypeError, match=message):
        encode_block(keys, values, partition=0)


@pytest.mark.parametrize(
    ("keys", "values", "options", "message"),
    [
        ([b""], [b"v"], {}, "empty"),
        ([b"a", b""], [b"v", b"v"], {}, "empty"),
        ([], [], {}, "at least one row"),
        ([b"a"], [], {}, "1 keys came with 0 values"),
        ([b"a"], [b""], {"hashes": [1, 2]}, "1 keys came with 2 hashes"),
        ([b"a"], [b""], {"hashes": [-1]}, "64 bits"),
        ([b"a"], [b""], {"partition": -1}, "partition -1"),
        ([b"a"], [b""], {"partition": 2**31}, "partition 2147483648"),
        ([b"a"], [b""], {"producer_seq": 2**32}, "does not fit"),
    ],
)
def test_wrong_values_are_value_errors(keys, values, options, message):
    with pytest.raises(ValueError, match=message):
        encode_block(keys, values, **({"partition": 0} | options))


def test_bounds_are_too_large_just_beyond_them():
    big = bytes(VALUE_BYTES_MAX)
    encode_block([bytes(KEY_BYTES_MAX)], [big], partition=0)
    with pytest.raises(TooLarge, match="key has 4097 bytes"):
        encode_block([b"a", bytes(KEY_BYTES_MAX + 1)], [b"", b""], partition=0)
    with pytest.raises(TooLarge, match="value has 16777217 bytes"):
        encode_block([b"a"], [big + b"1"], partition=0)
    with pytest.raises(TooLarge, match="values have 33554433 bytes"):
        encode_block([b"a", b"b", b"c"], [big, big, b"1"], partition=0)
    with pytest.raises(TooLarge, match=f"at most {BODY_BYTES_MAX}"):
        encode_block([b"a", b"b"], [big, big], partition=0)
    encode_block([b"k"] * ROWS_MAX, [None] * ROWS_MAX, partition=0)
    with pytest.raises(TooLarge, match="65536 rows"):
        encode_block([b"k"] * (ROWS_MAX + 1), [b""] * (ROWS_MAX + 1), partition=0)
