"""Blocks with seqs, and without."""

from __future__ import annotations

from tailrace.block import encode_block
from tailrace.model.hashing import hash_keys, partition_of_hash


def keys_of(partition, partitions, count, name=b"k"):
    """So many keys that belong to a partition."""
    found, number = [], 0
    while len(found) < count:
        key = name + b"%d" % number
        [hashed] = hash_keys([key])
        if partition_of_hash(hashed, partitions) == partition:
            found.append(key)
        number += 1
    return found


def block(partition=0, partitions=1, rows=2, name=b"k", value=b"v"):
    """As a producer makes it."""
    keys = keys_of(partition, partitions, rows, name)
    return encode_block(keys, [value] * rows, partition=partition)


def stamped(first_seq, rows=2, value=b"v"):
    return block(rows=rows, value=value).stamped(first_seq, 1_700_000_000_000_000)
