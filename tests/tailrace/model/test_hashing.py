from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.hashing import hash_keys, key_hash, partition_begin, partition_of_hash, partition_range

COUNTS = st.integers(1, 1024)
HASHES = st.integers(0, 2**64 - 1)


def test_the_hash_is_sparks():
    # SELECT xxhash64(x) in Spark SQL gives these, as signed numbers.
    assert key_hash(b"") == -7444071767201028348 % 2**64
    assert key_hash(b"Spark") == -4294468057691064905 % 2**64


@given(st.lists(st.binary(max_size=80), max_size=50))
def test_hashing_many_is_hashing_each(keys):
    assert hash_keys(keys) == [key_hash(key) for key in keys]


@given(COUNTS, HASHES)
def test_a_hash_lies_in_the_range_of_its_partition(partitions, hash_):
    first, last = partition_range(partition_of_hash(hash_, partitions), partitions)
    assert first <= hash_ <= last


@given(COUNTS)
def test_the_ranges_cover_all_hashes_once(partitions):
    ranges = [partition_range(partition, partitions) for partition in range(partitions)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == 2**64 - 1
    assert all(before[1] + 1 == after[0] for before, after in itertools.pairwise(ranges))


@given(COUNTS)
def test_the_ends_of_a_range_belong_to_it(partitions):
    for partition in {0, partitions // 2, partitions - 1}:
        for end in partition_range(partition, partitions):
            assert partition_of_hash(end, partitions) == partition


def test_a_partition_begins_at_the_rounded_up_share():
    assert [partition_begin(i, 3) for i in range(4)] == [0, 0x5555555555555556, 0xAAAAAAAAAAAAAAAB, 2**64]


@pytest.mark.parametrize(("partition", "partitions"), [(-1, 4), (4, 4), (5, 4), (0, 0)])
def test_a_range_that_does_not_exist_is_refused(partition, partitions):
    with pytest.raises(ValueError, match="partition"):
        partition_range(partition, partitions)
