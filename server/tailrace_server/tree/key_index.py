"""The by-key index of a partition's write queue: lazy, so that a plain append never pays for it.

It maps the 64-bit hash of a key to the newest seq that has it, and is brought up to date by whole hash columns when a
look-up needs it. Hashes only find candidates, keys decide: where the newest row of a hash has another key (two keys of
one hash are easily made on purpose), the older rows are searched by columns.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tailrace.block import Block
from tailrace.hashing import key_hash
from tailrace_server.tree.tree import Tree

# One step of catching up: about 0.5 ms, so that a deadline is overrun by no more.
SLICE_ROWS = 4_096


_EXTENT = struct.Struct("<II")


class Found(NamedTuple):
    """The newest row of a key; ``value`` is None where it is a tombstone."""

    seq: int
    timestamp: int
    value: bytes | None


class KeyIndex:
    """Newest seq of each key hash in one partition's tree, up to ``indexed_seq``."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}
        self.indexed_seq = 0

    def catch_up(self, tree: Tree, out_of_time: Callable[[], bool]) -> bool:
        """Indexes what ``tree`` has above ``indexed_seq``; False where ``out_of_time()`` came first. Call it again."""
        for block in tree.blocks_after(self.indexed_seq):
            hashes = _hash_column(block)
            first_seq = block.header.first_seq
            for row in range(self.indexed_seq + 1 - first_seq, len(hashes), SLICE_ROWS):
                part = hashes[row : row + SLICE_ROWS]
                self._newest.update(
                    zip(part.tolist(), range(first_seq + row, first_seq + row + len(part)), strict=True)
                )
                self.indexed_seq = first_seq + row + len(part) - 1
                if self.indexed_seq < tree.last_seq and out_of_time():
                    return False
        return True

    def find(self, tree: Tree, key: bytes) -> Found | None:
        """The newest row of ``key``. The index has to be level with ``tree``."""
        assert self.indexed_seq == tree.last_seq, "the index is behind the tree"
        hash_ = key_hash(key)
        seq = self._newest.get(hash_)
        if seq is None:
            return None
        block = tree.find(seq)
        assert block is not None, "an indexed seq is not in the tree"
        found = _row(block, seq - block.header.first_seq, key)
        return found if found is not None else _search(tree, hash_, key)


def _search(tree: Tree, hash_: int, key: bytes) -> Found | None:
    """The newest row of ``key``, where its hash belongs to other keys too."""
    for block in tree.newest_first():
        if not block.header.least_hash <= hash_ <= block.header.greatest_hash:
            continue
        for row in np.flatnonzero(_hash_column(block) == np.uint64(hash_))[::-1].tolist():
            found = _row(block, row, key)
            if found is not None:
                return found
    return None


def _hash_column(block: Block) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(block.open_columns().hash_buffer, dtype="<u8")


def _row(block: Block, row: int, key: bytes) -> Found | None:
    """Row ``row`` of ``block`` where its key is ``key``."""
    columns = block.open_columns()
    start, stop = _EXTENT.unpack_from(columns.key_offsets, 4 * row)
    if columns.key_data[start:stop] != key:
        return None
    validity = columns.validity
    value = None
    if validity is None or validity[row >> 3] >> (row & 7) & 1:
        start, stop = _EXTENT.unpack_from(columns.value_offsets, 4 * row)
        value = bytes(columns.value_data[start:stop])
    return Found(block.header.first_seq + row, block.header.timestamp, value)
