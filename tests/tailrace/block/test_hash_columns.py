from __future__ import annotations

import random

import pyarrow as pa
import pytest

from tailrace.block import hash_array
from tailrace.block.hash_columns import ROWS_MIN, WIDTH_MAX
from tailrace.model.hashing import key_hash


def sliced(keys):
    """An array that neither begins nor ends where its buffers do."""
    return pa.array([b"before", *keys, b"behind"], pa.binary())[1:-1]


@pytest.mark.parametrize("width", range(WIDTH_MAX + 2))
def test_keys_of_one_length(width):
    rnd = random.Random(width)
    keys = [rnd.randbytes(width) for _ in range(ROWS_MIN)]
    assert hash_array(sliced(keys)).tolist() == [key_hash(key) for key in keys]


@pytest.mark.parametrize("rows", [0, 1, ROWS_MIN - 1, ROWS_MIN, 2 * ROWS_MIN])
def test_keys_of_differing_lengths(rows):
    rnd = random.Random(rows)
    keys = [rnd.randbytes(rnd.randint(1, 40)) for _ in range(rows)]
    # The same length at both ends is not the same length everywhere.
    keys[:1], keys[-1:] = [b"12345678"] * len(keys[:1]), [b"87654321"] * len(keys[-1:])
    assert hash_array(sliced(keys)).tolist() == [key_hash(key) for key in keys]
    assert hash_array(sliced(keys)).dtype == "<u8"


def test_the_first_key_is_shorter_than_the_others():
    keys = [b"1", *[b"12345678"] * ROWS_MIN]
    assert hash_array(sliced(keys)).tolist() == [key_hash(key) for key in keys]
