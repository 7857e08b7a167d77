"""The index by key of a partition's write queue: lazy, so that a plain append never pays for it.

    tree      [.........................][...........][. . . .]  and more, not indexed yet
    index      tier        tier    tier       tier      fresh

It maps the 64-bit hash of a key to the newest seq of that hash. A look-up brings it up to date, by whole columns of
hashes: small blocks go to a dict of the newest rows, which becomes a sorted tier (tiers.py) when it is full, and large
blocks become tiers directly. Hashes only find candidates, keys decide. Two keys of one hash are easily made on purpose:
if the newest row of a hash has another key, the older rows are searched by columns.

Entries are seqs, not places: blocks may be merged, and flushed, under the index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tailrace.block import FLAG_COMPRESSED, FLAG_SEQS, Block, Columns
from tailrace.block.arrays import U64, Indices
from tailrace.block.found import OpenRows
from tailrace.model.hashing import key_hash
from tailrace_server.blocks import FoundRow, row_of_key
from tailrace_server.tree.open_blocks import OpenBlocks
from tailrace_server.tree.tiers import Tier, Tiers
from tailrace_server.tree.tree import Tree

if TYPE_CHECKING:
    from tailrace.segment.file import Kept

# Rows of one step of catching up, about 0.5 ms, which bounds the overrun of a deadline; also the bound of the dict.
SLICE_ROWS = 4_096
# Sorting this many rows at once takes less time than putting them into the dict one by one.
TIER_ROWS_MIN = 1_024

# Bytes of an entry of the dict: its slot, and two numbers.
_FRESH_ENTRY_BYTES = 2 * sys.getsizeof(1 << 62)


class KeyIndex:
    """The newest seq of each key hash in a partition's tree, up to ``indexed_seq``; flushed rows are not in it."""

    def __init__(self) -> None:
        self._fresh: dict[int, int] = {}
        self._tiers = Tiers()
        self.indexed_seq = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of the index, about: 16 bytes a row, and less than 1 MiB for the newest rows."""
        return self._tiers.nbytes + sys.getsizeof(self._fresh) + len(self._fresh) * _FRESH_ENTRY_BYTES

    def catch_up(self, tree: Tree, out_of_time: Callable[[], bool]) -> bool:
        """Indexes the rows of ``tree`` above ``indexed_seq``; False if ``out_of_time()`` ended it: call it again.

        ``out_of_time`` is called after every step. A step takes about 0.5 ms, or up to 2 ms if it merges two tiers.
        """
        if self.indexed_seq >= tree.last_seq:
            return True
        self.indexed_seq = max(self.indexed_seq, tree.base_seq, self._tiers.flushed_seq)
        for block in tree.blocks_after(self.indexed_seq):
            header = block.header
            if header.rows == 1 and len(self._fresh) < SLICE_ROWS:
                self._fresh[header.least_hash] = self.indexed_seq = header.last_seq
                if header.last_seq < tree.last_seq and out_of_time():
                    return False
                continue
            hashes, seqs = _columns_above(block, self.indexed_seq)
            row = 0
            while row < len(hashes):
                if not self._tiers.merge():
                    row += self._index(hashes[row:], seqs[row:])
                if self.indexed_seq < tree.last_seq and out_of_time():
                    return False
        return True

    def _index(self, hashes: U64, seqs: U64) -> int:
        """Indexes the first rows; returns how many, 0 if it had to seal the dict first, as tiers lie in order."""
        sorts = len(hashes) >= TIER_ROWS_MIN
        room = SLICE_ROWS - len(self._fresh)
        if self._fresh and (sorts or not room):
            self._tiers.add(Tier.of_dict(self._fresh))
            self._fresh = {}
            return 0
        hashes, seqs = hashes[:room], seqs[:room]
        if sorts:
            self._tiers.add(Tier.of_columns(hashes, seqs))
        else:
            self._fresh.update(zip(hashes.tolist(), seqs.tolist(), strict=True))
        self.indexed_seq = int(seqs[-1])
        return len(hashes)

    def drop_through(self, seq: int) -> None:
        """Forgets rows at or below ``seq``, which were flushed. Call it together with the tree's method."""
        self._tiers.drop_through(seq)
        if self.indexed_seq <= seq:
            self._fresh = {}

    def find(
        self,
        tree: Tree,
        key: bytes,
        opened: OpenBlocks | None = None,
        hash_: int | None = None,
        kept: Kept | None = None,
    ) -> FoundRow | None:
        """Returns the newest row of ``key`` in ``tree``; None if it has no row that is not flushed.

        The index has to be level with ``tree``. A caller that looks up many keys passes one ``opened`` for all. Others
        pass ``kept``, as to `OpenBlocks`. ``hash_`` is that of the key, if it is known.
        """
        assert self.indexed_seq == tree.last_seq, "the index is behind the tree"
        if hash_ is None:
            hash_ = key_hash(key)
        seq = self._fresh.get(hash_)
        if seq is None:
            seq = self._tiers.find(hash_)
        above_seq = max(self._tiers.flushed_seq, tree.base_seq)
        if seq is None or seq <= above_seq:
            return None
        block = tree.find(seq)
        assert block is not None, "an indexed seq is not in the tree"
        header = block.header
        if header.flags & FLAG_COMPRESSED:
            raw = (OpenBlocks(kept) if opened is None else opened).raw(block, header)
        else:
            raw = block.open_raw()
        if header.flags & FLAG_SEQS:
            [row] = OpenRows.of(header, raw).rows_of_seqs([seq])
        else:
            row = seq - header.first_seq
        found = row_of_key(header, raw, row, key)
        return found if found is not None else _search(tree, hash_, key, above_seq)

    def newest_seqs(self, tree: Tree, hashes: U64) -> U64:
        """Returns the newest seq of each of ``hashes`` in ``tree``; 0 if it has no row that is not flushed.

        A row may be of another key with the same hash. The index has to be level with ``tree``.
        """
        assert self.indexed_seq == tree.last_seq, "the index is behind the tree"
        seqs = np.zeros(len(hashes), "<u8")
        self._tiers.find_all(hashes, seqs)
        if self._fresh:
            seqs = np.fromiter(map(self._fresh.get, hashes.tolist(), seqs.tolist()), "<u8", len(hashes))
        above_seq = max(self._tiers.flushed_seq, tree.base_seq)
        if above_seq:
            seqs[seqs <= np.uint64(above_seq)] = 0
        return seqs

    def rows_of(self, tree: Tree, hashes: U64) -> tuple[Indices, U64]:
        """Returns the indices of those of ``hashes`` that have rows in ``tree``, and the newest seqs, which rise.

        A row may be of another key with the same hash. It is faster if the hashes rise, because neighbours in a tier
        are then looked up together. The index has to be level with the tree.
        """
        seqs = self.newest_seqs(tree, hashes)
        by_seq = seqs.argsort()
        by_seq = by_seq[len(seqs) - int(np.count_nonzero(seqs)) :]
        return by_seq, seqs[by_seq]

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        self._tiers.check()
        assert len(self._fresh) <= SLICE_ROWS, f"{len(self._fresh)} fresh entries"
        assert all(seq <= self.indexed_seq for seq in self._fresh.values()), "a seq above the indexed ones"


def _search(tree: Tree, hash_: int, key: bytes, above_seq: int) -> FoundRow | None:
    """Returns the newest row of ``key`` above ``above_seq``, for a hash that belongs to other keys too."""
    for block in tree.newest_first():
        if block.header.last_seq <= above_seq:
            return None
        if not block.header.least_hash <= hash_ <= block.header.greatest_hash:
            continue
        columns = block.open_columns()
        hashes = np.frombuffer(columns.hash_buffer, dtype="<u8")
        for row in np.flatnonzero(hashes == np.uint64(hash_))[::-1].tolist():
            found = row_of_key(columns.header, columns.raw, row, key)
            if found is not None:
                return found if found.seq > above_seq else None
    return None


def _columns_above(block: Block, seq: int) -> tuple[U64, U64]:
    """Returns hashes and seqs of the rows of ``block`` above ``seq``."""
    columns, header = block.open_columns(), block.header
    hashes = np.frombuffer(columns.hash_buffer, dtype="<u8")
    if header.flags & FLAG_SEQS:
        seqs = _seq_column(columns)
        row = int(seqs.searchsorted(np.uint64(seq), side="right"))
        return hashes[row:], seqs[row:]
    row = max(seq + 1 - header.first_seq, 0)
    return hashes[row:], np.arange(header.first_seq + row, header.last_seq + 1, dtype="<u8")


def _seq_column(columns: Columns) -> U64:
    buffer = columns.seq_buffer()
    assert buffer is not None, "only for blocks with a column of seqs"
    return np.frombuffer(buffer, dtype="<u8")
