"""partition_of in Spark against tailrace.model.hashing in Python."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from pyspark_tailrace import partition_of
from pyspark_tailrace.partitioning import PARTITIONS_MAX, are_equal_ranges, checked_ranges
from tailrace.model.hashing import HASH_MAX, key_hash, partition_of_hash, partition_range


class Range(NamedTuple):
    id: int
    hash_first: int
    hash_last: int


def equal_ranges(count):
    return [Range(index, *partition_range(index, count)) for index in range(count)]


def ranges_cut_at(cuts, ids=None):
    begins = [0, *cuts]
    ends = [*(cut - 1 for cut in cuts), HASH_MAX]
    return [Range(*fields) for fields in zip(ids or range(len(begins)), begins, ends, strict=True)]


def owner(ranges, hash_):
    [partition] = [info.id for info in ranges if info.hash_first <= hash_ <= info.hash_last]
    return partition


@pytest.fixture(scope="module")
def some_keys():
    """600 keys: every length from 0 to 99 with all values of a byte, text, and long ones."""
    generator = random.Random(4700)
    keys = [generator.randbytes(length) for length in range(100) for _ in range(4)]
    keys += [f"order-{number}".encode() for number in range(150)]
    keys += ["Grüße".encode(), "日本".encode(), b"\0", b"\xff" * 32]
    keys += [generator.randbytes(4096 - number) for number in range(46)]
    return keys


@pytest.fixture(scope="module")
def keys_frame(spark, some_keys):
    return spark.createDataFrame([(bytearray(key),) for key in some_keys], "key binary").cache()


def partitions_in_spark(frame, partitions):
    rows = frame.select("key", partition_of("key", partitions).alias("partition")).collect()
    return [(bytes(row.key), row.partition) for row in rows]


@pytest.mark.parametrize("count", [1, 2, 3, 16, 1000, 1024, 65_537, PARTITIONS_MAX])
def test_count_of_equal_ranges(keys_frame, some_keys, count):
    expected = [(key, partition_of_hash(key_hash(key), count)) for key in some_keys]
    assert partitions_in_spark(keys_frame, count) == expected


def test_count_that_numpy_has_computed(keys_frame):
    assert partitions_in_spark(keys_frame, numpy.int64(16)) == partitions_in_spark(keys_frame, 16)


@pytest.mark.parametrize("count", [1, 3, 16, 1024])
def test_equal_ranges_given_as_ranges(keys_frame, some_keys, count):
    expected = [(key, partition_of_hash(key_hash(key), count)) for key in some_keys]
    assert partitions_in_spark(keys_frame, reversed(equal_ranges(count))) == expected


@pytest.mark.parametrize("count", [2, 3, 7, 64, 1023, 1024])
def test_ranges_cut_anywhere(keys_frame, some_keys, count):
    generator = random.Random(count)
    cuts = sorted({generator.randrange(1, HASH_MAX) for _ in range(count - 1)})
    ranges = ranges_cut_at(cuts, ids=generator.sample(range(10_000), len(cuts) + 1))
    expected = [(key, owner(ranges, key_hash(key))) for key in some_keys]
    assert partitions_in_spark(keys_frame, ranges) == expected


def test_ranges_cut_at_the_very_hashes_of_keys(keys_frame, some_keys):
    cuts = sorted({key_hash(key) for key in some_keys[:40]} | {key_hash(key) + 1 for key in some_keys[20:60]})
    ranges = ranges_cut_at([*cuts, HASH_MAX])
    expected = [(key, owner(ranges, key_hash(key))) for key in some_keys]
    assert partitions_in_spark(keys_frame, ranges) == expected


def test_one_partition_with_another_id(keys_frame, some_keys):
    assert partitions_in_spark(keys_frame, [Range(9, 0, HASH_MAX)]) == [(key, 9) for key in some_keys]


def test_string_column_is_its_utf8(spark):
    texts = ["", "a", "order-17", "Grüße", "日本語", "👋🏽", "\0", "x" * 1000]
    frame = spark.createDataFrame([(text,) for text in texts], "text string")
    rows = frame.select(partition_of(F.col("text"), 1024).alias("partition")).collect()
    assert [row.partition for row in rows] == [partition_of_hash(key_hash(text.encode()), 1024) for text in texts]


def test_string_column_with_a_collation_is_its_bytes(spark):
    frame = spark.sql("select collate('ORDER', 'UTF8_LCASE') as text")
    [row] = frame.select(partition_of("text", 1024).alias("partition")).collect()
    assert row.partition == partition_of_hash(key_hash(b"ORDER"), 1024)


def test_other_columns_are_refused(spark):
    with pytest.raises(AnalysisException, match="BINARY"):
        spark.range(1).select(partition_of("id", 16))


def test_repartition_brings_each_partition_to_one_task(spark, keys_frame):
    spread = keys_frame.repartition(4, partition_of("key", 16)).select(
        F.spark_partition_id().alias("task"), partition_of("key", 16).alias("partition")
    )
    tasks = spread.distinct().groupBy("partition").count().collect()
    assert {row["count"] for row in tasks} == {1}


def test_type_is_int(spark, keys_frame):
    for partitions in (16, ranges_cut_at([5])):
        assert keys_frame.select(partition_of("key", partitions).alias("p")).dtypes == [("p", "int")]


@pytest.mark.parametrize("count", [0, -1, PARTITIONS_MAX + 1])
def test_count_out_of_bounds(spark, count):
    with pytest.raises(ValueError, match="is no count of partitions: 1 to 2147483647"):
        partition_of("key", count)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([], "at least one"),
        ([Range(0, 1, HASH_MAX)], "partition 0 owns the hashes 1 to .* but 0 is the next"),
        ([Range(0, 0, 9), Range(1, 11, HASH_MAX)], "but 10 is the next"),
        ([Range(0, 0, 9), Range(1, 9, HASH_MAX)], "but 10 is the next"),
        ([Range(0, 0, 9), Range(1, 10, 5)], "partition 1 owns the hashes 10 to 5"),
        ([Range(0, 0, HASH_MAX - 1)], "no partition owns the hashes from 18446744073709551615"),
        (equal_ranges(4)[1:], "but 0 is the next"),
        (equal_ranges(4)[:-1], "no partition owns"),
    ],
)
def test_ranges_that_are_not_the_whole(ranges, said):
    with pytest.raises(ValueError, match=said):
        checked_ranges(ranges)


@pytest.mark.parametrize("count", [1, 3, 16, 1024])
def test_equal_ranges_are_recognised(count):
    assert are_equal_ranges(equal_ranges(count))


def test_other_ranges_are_not_taken_for_equal_ones():
    assert not are_equal_ranges(ranges_cut_at([5]))
    assert not are_equal_ranges(ranges_cut_at([1 << 63], ids=[1, 0]))
