from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.block import Block, encode_block
from tailrace.block.check import uniform_offsets, uniform_width
from tailrace.block.encode import Stamps
from tailrace.block.to_arrow import SHARED_ROWS, SHARED_ROWS_MIN, batch_of_columns
from tailrace.model.hashing import hash_keys


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(60))
@given(data=st.data())
def test_columns_are_what_was_encoded_whatever_is_installed(data, installed, row_lists, encode_rows):
    rows = data.draw(row_lists)
    columns = Block.parse(encode_rows(rows).stamped(7, 99).tobytes()).columns()
    keys, values = (list(column) for column in zip(*rows, strict=True))
    assert columns.keys() == keys
    assert columns.values() == values
    assert columns.hashes() == hash_keys(keys)
    assert list(columns.seqs()) == list(range(7, 7 + len(rows)))
    assert list(columns.timestamps()) == [99] * len(rows)
    assert len(columns) == columns.rows == len(rows)
    assert (columns.validity is None) == (None not in values)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(60))
@given(st.integers(1, 300), st.integers(1, 30), st.integers(0, 40))
def test_rows_of_one_length(installed, rows, key_bytes, value_bytes):
    keys = [bytes([i % 256]) * key_bytes for i in range(rows)]
    values = [bytes([i % 251]) * value_bytes for i in range(rows)]
    columns = encode_block(keys, values, partition=0).columns()
    assert columns.keys() == keys
    assert columns.values() == values


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=examples(60))
@given(data=st.data())
def test_given_seqs_and_timestamps(data, installed, row_lists, encode_rows):
    rows = data.draw(row_lists)
    steps = st.lists(st.integers(1, 3) | st.integers(1, 2**40), min_size=len(rows), max_size=len(rows))
    seqs = list(accumulate(data.draw(steps)))
    timestamps = sorted(data.draw(st.lists(st.integers(0, 2**50), min_size=len(rows), max_size=len(rows))))
    block = Block.parse(encode_rows(rows, stamps=Stamps(seqs, timestamps)).tobytes())
    assert list(block.columns().seqs()) == seqs
    assert list(block.columns().timestamps()) == timestamps
    assert block.columns().keys() == [key for key, _ in rows]
    seq = data.draw(st.integers(0, seqs[-1] + 1))
    row = block.columns().row_above(seq)
    assert all(number <= seq for number in seqs[:row])
    assert all(number > seq for number in seqs[row:])


def test_all_deleted(installed):
    for rows in (1, 8, 9, 200):
        columns = encode_block([b"k"] * rows, [None] * rows, partition=0).columns()
        assert columns.values() == [None] * rows
        assert columns.value_data.nbytes == 0


def test_before_the_server_gave_seqs_they_are_zero():
    columns = encode_block([b"a", b"b"], [b"1", b"2"], partition=0).columns()
    assert list(columns.seqs()) == [0, 0]


def test_columns_begin_at_multiples_of_eight():
    rows = 13
    block = encode_block([b"abc"] * rows, [b"x", None] * 6 + [b"yz"], partition=0, compress=False)
    columns, body = block.columns(), bytes(block.body)
    for column in (columns.hash_buffer, columns.key_offsets, columns.key_data, columns.validity, columns.value_offsets):
        assert body.index(bytes(column)) % 8 == 0
    assert columns.value_data.tobytes() == b"x" * 6 + b"yz"
    assert body.endswith(b"x" * 6 + b"yz")


@given(st.integers(1, 100), st.integers(0, 50))
def test_uniform_offsets_are_recognised(rows, width):
    assert uniform_width(memoryview(uniform_offsets(rows, width)), rows) == width


def test_offsets_with_one_other_row_are_not_uniform():
    offsets = bytearray(uniform_offsets(10, 3))
    offsets[4 * 5] += 1
    assert uniform_width(memoryview(bytes(offsets)), 10) is None


def test_a_table_beyond_those_remembered():
    assert uniform_offsets(20_000, 2)[-4:] == (40_000).to_bytes(4, "little")


def test_arrow_arrays_share_the_blocks_bytes():
    pa = pytest.importorskip("pyarrow")
    block = Block.parse(encode_block([b"k1", b"k2"], [b"v", None], partition=0, compress=False).tobytes())
    columns = block.columns()
    keys, values = columns.key_array(), columns.value_array()
    assert keys.to_pylist() == [b"k1", b"k2"]
    assert values.to_pylist() == [b"v", None]
    start = pa.py_buffer(block.body).address
    for array in (keys, values):
        for buffer in array.buffers()[1:]:
            assert start <= buffer.address <= start + block.header.raw_bytes
        array.validate(full=True)


def test_arrow_arrays_of_a_block_that_lies_askew():
    pytest.importorskip("pyarrow")
    data = encode_block([b"key", b"k2"] * 30, [b"v", None] * 30, partition=0, compress=False).tobytes()
    for shift in range(8):
        columns = Block.parse_at(bytes(shift) + data, shift).columns()
        for array in (columns.key_array(), columns.value_array()):
            array.validate(full=True)
            assert array.buffers()[1].address % 8 == 0
        assert columns.value_array().to_pylist() == [b"v", None] * 30
        assert columns.keys() == [b"key", b"k2"] * 30


@pytest.mark.parametrize("rows", [1, SHARED_ROWS_MIN, SHARED_ROWS, SHARED_ROWS + 1])
@pytest.mark.parametrize("deleted", [False, True])
def test_arrow_columns_of_one_value_have_every_row(rows, deleted):
    """Blocks of any size: those in between share the memory of such columns."""
    pytest.importorskip("pyarrow")
    values = [None if deleted else b"v"] * rows
    for partition in (3, 4, 3):
        block = encode_block([b"k"] * rows, values, partition=partition).stamped(7, 1)
        batch = block.columns().to_arrow()
        batch.validate(full=True)
        assert batch["partition"].to_pylist() == [partition] * rows
        assert batch["deleted"].to_pylist() == [deleted] * rows
        assert batch["expired"].to_pylist() == [False] * rows
        assert batch["timestamp"].cast("int64").to_pylist() == [1] * rows


@pytest.mark.parametrize("shift", range(8))
def test_arrow_timestamps_of_numbers_that_lie_askew(shift):
    np, pa = pytest.importorskip("numpy"), pytest.importorskip("pyarrow")
    stamps = np.frombuffer(bytes(shift) + np.arange(5, dtype="<i8").tobytes(), "<i8", offset=shift)
    strings = pa.array([b"k"] * 5)
    batch = batch_of_columns(0, np.arange(5, dtype="<i8"), strings, strings, stamps)
    assert batch["timestamp"].cast("int64").to_pylist() == [0, 1, 2, 3, 4]
    assert batch["timestamp"].buffers()[1].address % 8 == 0
    every_second = batch_of_columns(0, np.arange(3, dtype="<i8"), strings[:3], strings[:3], stamps[::2])
    assert every_second["timestamp"].cast("int64").to_pylist() == [0, 2, 4]
