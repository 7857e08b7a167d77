"""The newest rows of many keys in the write queue of a partition, block by block, for a look-up of many keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tailrace.block.found import rows_of_keys
from tailrace_server.tree.key_index import rows_of_seqs

if TYPE_CHECKING:
    from tailrace.block import Columns
    from tailrace.block.arrays import U64, Indices
    from tailrace.block.found import FoundRow
    from tailrace_server.tree.key_index import KeyIndex, OpenBlocks
    from tailrace_server.tree.tree import Tree


def newest_rows(
    index: KeyIndex, tree: Tree, keys: Sequence[bytes], hashes: U64, opened: OpenBlocks, room: Callable[[], int]
) -> Iterator[tuple[Indices, list[tuple[int, FoundRow]]]]:
    """Yields for each block that has newest rows of ``keys``: the numbers of its keys, and the rows with theirs.

    A row is left out if another key of its hash is newer. All rows of a block are left out if their values have more
    bytes than ``room()``. The index has to be level with the tree at each step.
    """
    for block, numbers, seqs in index.blocks_of(tree, hashes):
        columns = opened.columns(block)
        rows = rows_of_seqs(columns, seqs)
        if _value_bytes(columns, rows, room()) > room():
            yield numbers, []
            continue
        picked = numbers.tolist()
        found = rows_of_keys(columns, rows, [keys[number] for number in picked])
        yield numbers, [(number, row) for number, row in zip(picked, found, strict=True) if row is not None]


def _value_bytes(columns: Columns, rows: Sequence[int], enough: int) -> int:
    """Returns the bytes of the values of rows, or a bound of them at or below ``enough``."""
    if columns.header.raw_bytes <= enough and len(set(rows)) == len(rows):
        return columns.header.raw_bytes
    offsets = np.frombuffer(columns.value_offsets, "<u4").astype(np.int64)
    return int(np.diff(offsets)[rows].sum())
