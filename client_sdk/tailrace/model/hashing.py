"""Finds the partition of a key: XXH64 of the key with seed 42, and equal ranges of the 64-bit hashes.

Seed 42 because Spark SQL's ``xxhash64`` of a binary column is this very function, so that Spark can route rows
inside the JVM. n partitions share the hashes 0 to 2**64 - 1: partition i begins at ceil(i * 2**64 / n).
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from collections.abc import Sequence

HASH_SEED = 42
HASH_BITS = 64
HASH_MAX = (1 << HASH_BITS) - 1


def key_hash(key: bytes) -> int:
    """Returns the hash of ``key``: XXH64 with seed 42, 0 to 2**64 - 1."""
    return xxhash.xxh64_intdigest(key, HASH_SEED)


def hash_keys(keys: Sequence[bytes]) -> list[int]:
    """Returns the hash of each of ``keys``, in their order, in about 35 ns a short key."""
    return list(map(xxhash.xxh64_intdigest, keys, repeat(HASH_SEED)))


def partition_begin(partition: int, partitions: int) -> int:
    """Returns the first hash of ``partition``, one of ``partitions``: ceil(partition * 2**64 / partitions).

    ``partition == partitions`` gives 2**64, one beyond the last hash. ValueError outside of 0 to ``partitions``.
    """
    if partitions < 1:
        raise ValueError(f"there is no feed of {partitions} partitions; it has at least 1")
    if not 0 <= partition <= partitions:
        raise ValueError(f"partition {partition} is not one of 0 to {partitions - 1}")
    return -((-partition << HASH_BITS) // partitions)


def partition_of_hash(hash_: int, partitions: int) -> int:
    """Returns the partition, one of ``partitions``, that owns the hash ``hash_``: (hash * n) >> 64."""
    return (hash_ * partitions) >> HASH_BITS


def partition_range(partition: int, partitions: int) -> tuple[int, int]:
    """Returns the first and the last hash of ``partition``, both included. Raises ValueError if it does not exist."""
    if partition == partitions:
        raise ValueError(f"partition {partition} is not one of 0 to {partitions - 1}")
    return partition_begin(partition, partitions), partition_begin(partition + 1, partitions) - 1
