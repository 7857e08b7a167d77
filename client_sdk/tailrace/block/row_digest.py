"""The digest of rows: two batches of the same rows have the same one, in any order and in any blocks.

    digest = the sum, over all rows, of  key hash × value hash,  modulo 2^64
    value hash = XXH3-64 of the value; of a deletion the number DELETED_HASH

Digests of two sets of rows are added to have that of both. It finds accidents, not intent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import mul
from typing import TYPE_CHECKING, Any

import xxhash

from tailrace.block.lazy import numpy_or_none, strings_of

if TYPE_CHECKING:
    from tailrace.block.block import Block

DIGEST_MAX = (1 << 64) - 1
# No value is known that has it; odd, so that a product with it keeps every bit of the key's hash.
DELETED_HASH = 0x9E3779B97F4A7C15


def digest_of_rows(hashes: Sequence[int], values: Sequence[bytes | None]) -> int:
    """Returns the digest of rows by the hashes of their keys and their values; None is a deletion."""
    try:
        return _sum(hashes, map(xxhash.xxh3_64_intdigest, values))  # type: ignore[arg-type]
    except TypeError:  # raised by a None among them, cheaper than to look for one
        if None not in values:
            raise
    found = [DELETED_HASH if value is None else xxhash.xxh3_64_intdigest(value) for value in values]
    return _sum(hashes, found)


def _sum(hashes: Iterable[int], value_hashes: Iterable[int]) -> int:
    total: int = sum(map(mul, hashes, value_hashes))
    return total & DIGEST_MAX


def digest_of_arrays(hashes: Any, values: Any) -> int:
    """Returns the same, of a numpy array of u64 and a pyarrow binary array with nulls for deletions; 65 ns a row."""
    numpy = numpy_or_none()
    rows = len(values)
    deleted = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    if deleted is not None:
        values = values.fill_null(b"")
    taken = strings_of(values)
    found = numpy.fromiter(map(xxhash.xxh3_64_intdigest, taken), "<u8", rows)
    if deleted is not None:
        found[deleted] = DELETED_HASH
    found *= hashes
    return int(found.sum())


def digest_of_block(block: Block) -> int:
    """Returns the digest of a block's rows. Raises BadBlock if its columns break the format."""
    columns = block.open_columns()
    return digest_of_rows(columns.hashes(), columns.values())


def sum_digests(digests: Iterable[int | None]) -> int | None:
    """Returns the digest of all the rows together; None if one of the digests is not known."""
    total = 0
    for digest in digests:
        if digest is None:
            return None
        total += digest
    return total & DIGEST_MAX
