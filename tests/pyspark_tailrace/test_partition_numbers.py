from __future__ import annotations

from functools import partial

import pyarrow as pa
import pytest

from pyspark_tailrace.partition_numbers import check_numbers
from tailrace.block.routing import Router
from tailrace.model.hashing import key_hash, partition_of_hash


def binary(values):
    return pa.array(values, pa.binary())


def checked(numbers, kind):
    return partial(check_numbers, pa.array(numbers, kind), 7)


def numbers_of(keys, partitions):
    return [partition_of_hash(key_hash(key), partitions) for key in keys]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_right_numbers(kind):
    keys = [b"%d" % n for n in range(100)]
    router = Router(7)
    assert list(router.add(binary(keys), binary(keys), checked(numbers_of(keys, 7), kind))) == []
    assert sum(cut.block.header.rows for cut in router.flush()) == 100


@pytest.mark.parametrize("change", [1, -1, 7, -100])
def test_wrong_numbers(change):
    keys = [b"%d" % n for n in range(100)]
    numbers = numbers_of(keys, 7)
    numbers[33] += change
    right = numbers[33] - change
    text = f"says {numbers[33]} for the key b'33', which belongs to partition {right}; it is wrong in 1 of 100 rows"
    with pytest.raises(ValueError, match=f"{text}.*partition_of"):
        list(Router(7).add(binary(keys), binary(keys), checked(numbers, pa.int32())))


def test_null_numbers():
    with pytest.raises(ValueError, match=r"null in 1 of 2 rows.*partition_of"):
        list(Router(7).add(binary([b"a", b"b"]), binary([b"a", b"b"]), checked([0, None], pa.int32())))
