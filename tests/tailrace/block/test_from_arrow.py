from __future__ import annotations

import numpy
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.block import KEY_BYTES_MAX, ROWS_MAX, VALUE_BYTES_MAX, Block, block_from_arrow
from tailrace.errors import TooLarge
from tailrace.model.hashing import hash_keys


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_block_of_arrays_is_that_of_their_lists(data, row_lists, encode_rows):
    rows = data.draw(row_lists)
    before, after = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
    filler = [(b"not in", b"the slice")]
    keys, values = zip(*(filler * before + rows + filler * after), strict=True)
    keys = pa.array(keys, pa.binary()).slice(before, len(rows))
    values = pa.array(values, pa.binary()).slice(before, len(rows))
    assert block_from_arrow(keys, values, partition=7) == encode_rows(rows)
    assert block_from_arrow(keys, values, partition=7, compress=False) == encode_rows(rows, compress=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_columns_of_a_block_make_the_same_block(data, row_lists, encode_rows):
    block = encode_rows(data.draw(row_lists), producer_id=3, producer_seq=4)
    columns = Block.parse(block.tobytes()).columns()
    hashes = numpy.frombuffer(columns.hash_buffer, "<u8")
    back = block_from_arrow(
        columns.key_array(), columns.value_array(), partition=7, hashes=hashes, producer_id=3, producer_seq=4
    )
    assert back == block


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view()]
)
def test_other_types_of_strings(kind, encode_rows):
    keys = pa.array(["x", "a", "bb", "c"], pa.string()).cast(kind).slice(1)
    values = pa.array(["x", "ä", None, ""], pa.string()).cast(kind).slice(1)
    expected = encode_rows([(b"a", "ä".encode()), (b"bb", None), (b"c", b"")])
    assert block_from_arrow(keys, values, partition=7) == expected


def test_dictionaries_chunks_fixed_sizes_and_nulls(encode_rows):
    keys = pa.chunked_array([["aa"], [], ["bb"]], pa.string())
    values = pa.array(["v", "v"]).dictionary_encode()
    assert block_from_arrow(keys, values, partition=7) == encode_rows([(b"aa", b"v"), (b"bb", b"v")])
    keys = pa.array([b"aa", b"bb"], pa.binary(2))
    assert block_from_arrow(keys, pa.nulls(2), partition=7) == encode_rows([(b"aa", None), (b"bb", None)])


def test_bytes_hidden_under_a_null_are_left_out(encode_rows):
    offsets, data, validity = numpy.array([0, 1, 4, 5], "<i4"), b"a---b", b"\x05"
    values = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(data)])
    assert values.to_pylist() == [b"a", None, b"b"]
    block = block_from_arrow(pa.array([b"1", b"2", b"3"]), values, partition=7)
    assert block == encode_rows([(b"1", b"a"), (b"2", None), (b"3", b"b")])
    assert Block.parse(block.tobytes()).columns().values() == [b"a", None, b"b"]


def test_hashes_are_taken_as_given():
    block = block_from_arrow(pa.array([b"a", b"b"]), pa.nulls(2), partition=0, hashes=numpy.array([9, 4], "<u8"))
    assert block.columns().hashes() == [9, 4]
    block = block_from_arrow(pa.array([b"a", b"b"]), pa.nulls(2), partition=0)
    assert block.columns().hashes() == hash_keys([b"a", b"b"])


@pytest.mark.parametrize(
    ("keys", "values", "error", "message"),
    [
        (pa.array([b"a", None]), pa.nulls(2), ValueError, "1 of 2 keys are null"),
        (pa.array([b"a", b""]), pa.nulls(2), ValueError, "empty"),
        (pa.array([], pa.binary()), pa.nulls(0), ValueError, "at least one row"),
        (pa.array([b"a"]), pa.nulls(2), ValueError, "1 keys came with 2 values"),
        (pa.array([1]), pa.nulls(1), TypeError, "Arrow type int64"),
        ([b"a"], pa.nulls(1), TypeError, "pyarrow.Array"),
        (pa.array([bytes(KEY_BYTES_MAX + 1)]), pa.nulls(1), TooLarge, "key has 4097"),
        (pa.array([b"a"]), pa.array([bytes(VALUE_BYTES_MAX + 1)]), TooLarge, "value has 16777217"),
        (pa.array([b"a"] * (ROWS_MAX + 1)), pa.nulls(ROWS_MAX + 1), TooLarge, "65536 rows"),
        (pa.array([b"a"] * 3), pa.array([bytes(VALUE_BYTES_MAX)] * 3), TooLarge, "at most"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_makes_no_block_is_refused(keys, values, error, message):
    with pytest.raises(error, match=message):
        block_from_arrow(keys, values, partition=0)


@pytest.mark.parametrize("hashes", [numpy.array([1, 2], "<i8"), numpy.array([1], "<u8"), numpy.zeros((2, 1), "<u8")])
def test_hashes_of_another_form_are_refused(hashes):
    with pytest.raises(ValueError, match="hashes of shape"):
        block_from_arrow(pa.array([b"a", b"b"]), pa.nulls(2), partition=0, hashes=hashes)
