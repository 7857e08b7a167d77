"""Computes the partition of a key as a Spark SQL expression, evaluated inside the JVM.

Spark's ``xxhash64`` of a binary column is XXH64 with seed 42, the hash of ``tailrace.model.hashing``, as a signed
64-bit number. For n equal ranges the partition is (hash * n) >> 64, computed in two halves because Spark has no 128-bit
integers. For other ranges the expression bisects their first hashes.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Protocol, SupportsIndex

from tailrace.model.hashing import HASH_MAX, partition_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column

# Up to this count, its product with the hash's upper half fits into Spark's signed 64-bit integer.
PARTITIONS_MAX = 2**31 - 1

SIGN_BIT = 1 << 63


class HashRange(Protocol):
    """The attributes of ``tailrace.PartitionInfo`` that are needed here. Both ends belong to the range."""

    @property
    def id(self) -> int: ...
    @property
    def hash_first(self) -> int: ...
    @property
    def hash_last(self) -> int: ...


def partition_of(col: Column | str, partitions: SupportsIndex | Iterable[HashRange]) -> Column:
    """Returns the partition that owns a key, as a Spark column of int.

    Use it to give each Spark partition rows of few feed partitions: ``df.repartition(n, partition_of("key", n))``. A
    null key, which no feed accepts, gets any partition.

    Args:
        col: The column of the key, or its name; binary or string. The key of a string is its UTF-8 bytes.
        partitions: The number of partitions of a feed with equal ranges, or the ranges as ``feed.partitions()`` returns
            them.

    Returns:
        The column.

    Raises:
        ValueError: The ranges do not cover every hash exactly once, or the number is out of bounds.
    """
    from pyspark.sql import functions as F

    column = F.col(col) if isinstance(col, str) else col
    # Cast to binary, because the hash of a string with a collation is that of its collation key.
    key_hash = F.xxhash64(column.cast("binary"))
    if isinstance(partitions, SupportsIndex):
        return _equal_ranges(key_hash, _checked_count(operator.index(partitions)))
    ranges = checked_ranges(partitions)
    if are_equal_ranges(ranges):
        return _equal_ranges(key_hash, len(ranges))
    return _listed_ranges(key_hash, ranges)


def checked_ranges(partitions: Iterable[HashRange]) -> list[HashRange]:
    """Returns the ranges sorted by their first hash. Raises ValueError if they overlap, or leave a hash out."""
    ranges = sorted(partitions, key=lambda info: info.hash_first)
    if not ranges:
        raise ValueError("no partitions were given; a feed has at least one")
    expected = 0
    for info in ranges:
        if info.hash_first != expected or info.hash_last < info.hash_first:
            raise ValueError(
                f"partition {info.id} owns the hashes {info.hash_first} to {info.hash_last}, but {expected} is the "
                "next one to be owned; give all partitions of one feed, as feed.partitions() returns them"
            )
        expected = info.hash_last + 1
    if expected != HASH_MAX + 1:
        raise ValueError(f"no partition owns the hashes from {expected}; give all partitions of the feed")
    return ranges


def are_equal_ranges(ranges: Sequence[HashRange]) -> bool:
    """Returns whether these sorted ranges are those of a feed that was created with this many partitions."""
    return all(
        info.id == index and (info.hash_first, info.hash_last) == partition_range(index, len(ranges))
        for index, info in enumerate(ranges)
    )


def _checked_count(partitions: int) -> int:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise ValueError(f"{partitions} is no count of partitions: 1 to {PARTITIONS_MAX}")
    return partitions


def _equal_ranges(key_hash: Column, partitions: int) -> Column:
    from pyspark.sql import functions as F

    upper = F.shiftrightunsigned(key_hash, 32)
    lower = key_hash.bitwiseAND(F.lit(0xFFFFFFFF))
    carried = F.shiftright(lower * F.lit(partitions), 32)
    return F.shiftright(upper * F.lit(partitions) + carried, 32).cast("int")


def _listed_ranges(key_hash: Column, ranges: Sequence[HashRange]) -> Column:
    from pyspark.sql import functions as F

    # Spark compares signed numbers: with the sign bit flipped, their order is that of the unsigned hashes.
    ordered_hash = key_hash.bitwiseXOR(F.lit(-SIGN_BIT))
    begins = _array(f"{info.hash_first - SIGN_BIT}L" for info in ranges)
    steps = _array(str(1 << bit) for bit in reversed(range((len(ranges) - 1).bit_length())))

    def bisected(wanted: Column) -> Column:
        def go_on(index: Column, step: Column) -> Column:
            # Beyond the end get() gives null, and a comparison with null is not true.
            return index + F.when(F.get(begins, index + step) <= wanted, step).otherwise(F.lit(0))

        return F.aggregate(steps, F.lit(0), go_on)

    # An array of one element, so that the hash is computed once for each row, and not in each step.
    index = F.get(F.transform(F.array(ordered_hash), bisected), F.lit(0))
    return F.get(_array(str(info.id) for info in ranges), index)


def _array(literals: Iterable[str]) -> Column:
    """Returns a constant array. It is one text, because a thousand calls into the JVM take a second."""
    from pyspark.sql import functions as F

    return F.expr(f"array({', '.join(literals)})")
