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

from tailrace.block import FLAG_COMPRESSED, Block, Columns
from tailrace.hashing import key_hash
from tailrace_server.tree.tree import Tree

# One step of catching up: about 0.5 ms, so that a deadline is overrun by no more.
SLICE_ROWS = 4_096


# What one turn of looking keys up keeps open of compressed blocks: two of the largest ones.
OPEN_BYTES_MAX = 64 * 1024 * 1024

_EXTENT = struct.Struct("<II")


class OpenBlocks:
    """The columns of blocks that keys were just found in: neighbours are decompressed once. Not to be kept for long."""

    def __init__(self) -> None:
        self._columns: dict[Block, Columns] = {}
        self._raw_bytes = 0

    def columns(self, block: Block) -> Columns:
        """The columns of ``block``."""
        if not block.header.flags & FLAG_COMPRESSED:
            return block.open_columns()
        columns = self._columns.get(block)
        if columns is None:
            if self._raw_bytes + block.header.raw_bytes > OPEN_BYTES_MAX:
                self._columns.clear()
                self._raw_bytes = 0
            columns = self._columns[block] = block.open_columns()
            self._raw_bytes += block.header.raw_bytes
        return columns


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
        if self.indexed_seq == tree.last_seq:
            return True
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

    def find(self, tree: Tree, key: bytes, opened: OpenBlocks | None = None) -> Found | None:
        """The newest row of ``key``; who looks up many gives ``opened``. The index has to be level with ``tree``."""
        assert self.indexed_seq == tree.last_seq, "the index is behind the tree"
        hash_ = key_hash(key)
        seq = self._newest.get(hash_)
        if seq is None:
            return None
        block = tree.find(seq)
        assert block is not None, "an indexed seq is not in the tree"
        columns = block.open_columns() if opened is None else opened.columns(block)
        found = _row(block, columns, seq - block.header.first_seq, key)
        return found if found is not None else _search(tree, hash_, key)


def _search(tree: Tree, hash_: int, key: bytes) -> Found | None:
    """The newest row of ``key``, where its hash belongs to other keys too."""
    for block in tree.newest_first():
        if not block.header.least_hash <= hash_ <= block.header.greatest_hash:
            continue
        columns = block.open_columns()
        hashes = np.frombuffer(columns.hash_buffer, dtype="<u8")
        for row in np.flatnonzero(hashes == np.uint64(hash_))[::-1].tolist():
            found = _row(block, columns, row, key)
            if found is not None:
                return found
    return None


def _hash_column(block: Block) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.frombuffer(block.open_columns().hash_buffer, dtype="<u8")


def _row(block: Block, columns: Columns, row: int, key: bytes) -> Found | None:
    """Row ``row`` of ``block`` where its key is ``key``."""
    start, stop = _EXTENT.unpack_from(columns.key_offsets, 4 * row)
    if columns.key_data[start:stop] != key:
        return None
    validity = columns.validity
    value = None
    if validity is None or validity[row >> 3] >> (row & 7) & 1:
        start, stop = _EXTENT.unpack_from(columns.value_offsets, 4 * row)
        value = bytes(columns.value_data[start:stop])
    return Found(block.header.first_seq + row, block.header.timestamp, value)
