from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block.arrow_strings import is_strings, lengths_of, nulls_of, to_binary

FORMS = {
    "binary": pa.binary(),
    "string": pa.string(),
    "large_binary": pa.large_binary(),
    "large_string": pa.large_string(),
    "binary_view": pa.binary_view(),
    "string_view": pa.string_view(),
}
STRINGS = st.lists(st.none() | st.text(max_size=40), max_size=20)


def same(array, strings):
    wanted = [None if string is None else string.encode() for string in strings]
    assert is_strings(array.type)
    assert lengths_of(array).tolist() == [len(string or b"") for string in wanted]
    assert lengths_of(array).dtype == np.int64
    nulls = nulls_of(array)
    assert ([False] * len(wanted) if nulls is None else nulls.tolist()) == [string is None for string in wanted]
    found = to_binary(array)
    assert found.type == pa.binary()
    assert found.to_pylist() == wanted


@given(STRINGS, st.sampled_from(sorted(FORMS)), st.integers(0, 3), st.integers(0, 3))
def test_each_form_as_a_slice(strings, form, before, after):
    array = pa.array(["x" * 20] * before + strings + [None] * after, pa.string()).cast(FORMS[form])
    same(array.slice(before, len(strings)), strings)


@given(STRINGS, st.sampled_from(sorted(FORMS)), st.integers(0, 3))
def test_dictionaries(strings, form, before):
    known = list(dict.fromkeys(["x", *strings]))  # a null may be in the dictionary, or in the indices
    numbers = [None if string is None and len(strings) % 2 else known.index(string) for string in strings]
    array = pa.DictionaryArray.from_arrays(
        pa.array([0] * before + numbers, pa.int32()), pa.array(known, pa.string()).cast(FORMS[form])
    )
    same(array.slice(before), strings)


def test_a_dictionary_without_entries():
    same(pa.DictionaryArray.from_arrays(pa.array([None, None], pa.int8()), pa.array([], pa.string())), [None, None])


def test_fixed_sizes_and_nulls_alone():
    same(pa.array([b"ab", None, b"cd"], pa.binary(2)).slice(1), [None, "cd"])
    same(pa.nulls(3), [None] * 3)
    same(pa.array([], pa.string()), [])


@pytest.mark.parametrize("array", [pa.array([b"a" * 16], pa.binary(16)), pa.array(["{}"])])
def test_extension_types_over_strings(array):
    kind = pa.uuid() if array.type == pa.binary(16) else pa.json_()
    same(pa.ExtensionArray.from_storage(kind, array), [array.cast(pa.binary()).to_pylist()[0].decode()])


def test_a_slice_far_behind_in_a_large_array():
    nbytes = 3 << 30  # beyond the offsets of a binary array; the memory is never touched
    data, offsets = np.zeros(nbytes, "u1"), np.array([0, nbytes - 3, nbytes - 2, nbytes], "<i8")
    data[-3:] = (65, 66, 67)
    array = pa.Array.from_buffers(pa.large_binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    assert lengths_of(array).tolist() == [nbytes - 3, 1, 2]
    same(array[1:], ["A", "BC"])


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_(), pa.list_(pa.string()), pa.decimal128(9)])
def test_other_types(kind):
    assert not is_strings(kind)
    assert not is_strings(pa.dictionary(pa.int8(), pa.int64()))
