"""The by-key index of a partition's write queue: lazy, so that a plain append never pays for it.

    tree      [.........................][...........][. . . .]  and more, not indexed yet
    index      run         run     run        run       fresh

It maps the 64-bit hash of a key to the newest seq that has it, and is brought up to date by whole hash columns when a
look-up needs it: small blocks go to a dict of the newest rows, which becomes a sorted run (runs.py) when it is full,
large ones are made runs directly. Hashes only find candidates, keys decide: where the newest row of a hash has another
key (two keys of one hash are easily made on purpose), the older rows are searched by columns.

Entries are seqs, not places: blocks may be merged, and flushed, under the index.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from tailrace.block import FLAG_COMPRESSED, FLAG_SEQS, Block, Columns
from tailrace.model.hashing import key_hash
from tailrace_server.blocks import Found, row_of_key
from tailrace_server.blocks.arrays import U64
from tailrace_server.tree.runs import Run, Runs
from tailrace_server.tree.tree import Tree

# One step of catching up: about 0.5 ms, so that a deadline is overrun by no more; and what the dict holds at most.
SLICE_ROWS = 4_096
# So many rows are sorted at once sooner than put into the dict one by one.
RUN_ROWS_MIN = 1_024

# An entry of the dict: its slot, and two numbers.
_FRESH_ENTRY_BYTES = 2 * sys.getsizeof(1 << 62)

# What one turn of looking keys up keeps open of compressed blocks: two of the largest ones.
OPEN_BYTES_MAX = 64 * 1024 * 1024


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


class KeyIndex:
    """Newest seq of each key hash in a partition's tree, up to ``indexed_seq``; of what is flushed it knows nothing."""

    def __init__(self) -> None:
        self._fresh: dict[int, int] = {}
        self._runs = Runs()
        self.indexed_seq = 0

    @property
    def memory_bytes(self) -> int:
        """About what the index keeps in memory: 16 bytes a row, and less than 1 MiB for the newest rows."""
        return self._runs.nbytes + sys.getsizeof(self._fresh) + len(self._fresh) * _FRESH_ENTRY_BYTES

    def catch_up(self, tree: Tree, out_of_time: Callable[[], bool]) -> bool:
        """Indexes what ``tree`` has above ``indexed_seq``; False where ``out_of_time()`` came first. Call it again.

        It is asked after every step. One takes about 0.5 ms where it goes on with the block that has more, up to 2 ms
        where it merges two runs.
        """
        if self.indexed_seq >= tree.last_seq:
            return True
        self.indexed_seq = max(self.indexed_seq, tree.base_seq, self._runs.flushed_seq)
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
                if not self._runs.merge():
                    row += self._index(hashes[row:], seqs[row:])
                if self.indexed_seq < tree.last_seq and out_of_time():
                    return False
        return True

    def _index(self, hashes: U64, seqs: U64) -> int:
        """Indexes the first of the rows; how many: 0 where it had to seal the dict first: runs lie in order."""
        sorts = len(hashes) >= RUN_ROWS_MIN
        room = SLICE_ROWS - len(self._fresh)
        if self._fresh and (sorts or not room):
            self._runs.add(Run.of_dict(self._fresh))
            self._fresh = {}
            return 0
        hashes, seqs = hashes[:room], seqs[:room]
        if sorts:
            self._runs.add(Run.of_columns(hashes, seqs))
        else:
            self._fresh.update(zip(hashes.tolist(), seqs.tolist(), strict=True))
        self.indexed_seq = int(seqs[-1])
        return len(hashes)

    def drop_through(self, seq: int) -> None:
        """What is at or below ``seq`` was flushed: the index has no answer for it any more. Call it with the tree's."""
        self._runs.drop_through(seq)
        if self.indexed_seq <= seq:
            self._fresh = {}

    def find(self, tree: Tree, key: bytes, opened: OpenBlocks | None = None) -> Found | None:
        """The newest row of ``key`` in ``tree``; who looks up many gives ``opened``.

        None where ``tree`` has none, or only flushed ones. The index has to be level with ``tree``.
        """
        assert self.indexed_seq == tree.last_seq, "the index is behind the tree"
        hash_ = key_hash(key)
        seq = self._fresh.get(hash_)
        if seq is None:
            seq = self._runs.find(hash_)
        above_seq = max(self._runs.flushed_seq, tree.base_seq)
        if seq is None or seq <= above_seq:
            return None
        block = tree.find(seq)
        assert block is not None, "an indexed seq is not in the tree"
        columns = block.open_columns() if opened is None else opened.columns(block)
        found = row_of_key(columns, _row_of(columns, seq), key)
        return found if found is not None else _search(tree, hash_, key, above_seq)

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        self._runs.check()
        assert len(self._fresh) <= SLICE_ROWS, f"{len(self._fresh)} fresh entries"
        assert all(seq <= self.indexed_seq for seq in self._fresh.values()), "a seq above what was indexed"


def _search(tree: Tree, hash_: int, key: bytes, above_seq: int) -> Found | None:
    """The newest row of ``key`` above ``above_seq``, where its hash belongs to other keys too."""
    for block in tree.newest_first():
        if block.header.last_seq <= above_seq:
            return None
        if not block.header.least_hash <= hash_ <= block.header.greatest_hash:
            continue
        columns = block.open_columns()
        hashes = np.frombuffer(columns.hash_buffer, dtype="<u8")
        for row in np.flatnonzero(hashes == np.uint64(hash_))[::-1].tolist():
            found = row_of_key(columns, row, key)
            if found is not None:
                return found if found.seq > above_seq else None
    return None


def _columns_above(block: Block, seq: int) -> tuple[U64, U64]:
    """Hashes and seqs of the rows of ``block`` above ``seq``."""
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


def _row_of(columns: Columns, seq: int) -> int:
    """The row that has ``seq``."""
    header = columns.header
    if header.flags & FLAG_SEQS:
        return int(_seq_column(columns).searchsorted(np.uint64(seq)))
    return seq - header.first_seq
