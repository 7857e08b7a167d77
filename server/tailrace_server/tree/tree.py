"""A partition's write queue: blocks in seq order, in an immutable tree.

    root ── PVector of chunks ── chunk: first seq and up to 64 neighbouring blocks
                                   (5, (block 5..9, block 10..10, ...)), (74, (...)), ...

``append`` and ``drop_through`` give a new tree that shares all but a path with the old one. Whoever holds a tree holds
a snapshot: it never changes, and taking one is taking a reference. The last chunk is rebuilt at each append (64
references at most); a full chunk is never touched again. A plain Python list cannot be shared without copying it; a
flat persistent vector cannot drop its head cheaply; a B+tree of our own was measured to be no faster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from pyrsistent import PVector, pvector

from tailrace.block import Block

CHUNK_BLOCKS_MAX = 64


class Chunk(NamedTuple):
    """Neighbouring blocks; ``first_seq`` is the first one's."""

    first_seq: int
    blocks: tuple[Block, ...]


class Tree:
    """Blocks of one partition in seq order, contiguous. Immutable; every method is O(log n) or better."""

    __slots__ = ("_chunks", "block_count", "nbytes")

    def __init__(self, chunks: PVector[Chunk] | None = None, block_count: int = 0, nbytes: int = 0) -> None:
        self._chunks: PVector[Chunk] = pvector() if chunks is None else chunks
        self.block_count = block_count
        self.nbytes = nbytes

    @property
    def first_seq(self) -> int:
        """The first seq that the tree holds; 0 where it is empty."""
        return self._chunks[0].first_seq if self._chunks else 0

    @property
    def last_seq(self) -> int:
        """The last seq that the tree holds; 0 where it is empty."""
        return self._chunks[-1].blocks[-1].header.last_seq if self._chunks else 0

    def append(self, block: Block) -> Tree:
        """This tree and ``block`` after it, which has to begin right above ``last_seq``."""
        chunks, first_seq = self._chunks, block.header.first_seq
        if chunks:
            last = chunks[-1]
            assert first_seq == last.blocks[-1].header.last_seq + 1, "blocks of a partition are contiguous"
            if len(last.blocks) < CHUNK_BLOCKS_MAX:
                chunks = chunks.set(-1, Chunk(last.first_seq, (*last.blocks, block)))
            else:
                chunks = chunks.append(Chunk(first_seq, (block,)))
        else:
            chunks = chunks.append(Chunk(first_seq, (block,)))
        return Tree(chunks, self.block_count + 1, self.nbytes + block.nbytes)

    def drop_through(self, seq: int) -> Tree:
        """This tree without the whole chunks that end at or below ``seq``; a few blocks below it may stay."""
        keep = self._chunk_at(seq + 1)
        if keep <= 0:
            return self
        chunks = self._chunks[keep:]
        dropped = [block for chunk in self._chunks[:keep] for block in chunk.blocks]
        return Tree(chunks, self.block_count - len(dropped), self.nbytes - sum(block.nbytes for block in dropped))

    def _chunk_at(self, seq: int) -> int:
        """Index of the last chunk that begins at or below ``seq``; -1 where all begin above it."""
        low, high = 0, len(self._chunks)
        while low < high:
            middle = (low + high) // 2
            if self._chunks[middle].first_seq <= seq:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def find(self, seq: int) -> Block | None:
        """The block that holds ``seq``, or None."""
        index = self._chunk_at(seq)
        if index < 0:
            return None
        blocks = self._chunks[index].blocks
        block = blocks[bisect_right(blocks, seq, key=_first_seq) - 1]
        return block if seq <= block.header.last_seq else None

    def blocks_after(self, seq: int) -> Iterator[Block]:
        """The blocks that hold anything above ``seq``, in order; the first one may begin at or below it."""
        start = max(self._chunk_at(seq + 1), 0)
        for index in range(start, len(self._chunks)):
            blocks = self._chunks[index].blocks
            if index == start:
                first = max(bisect_right(blocks, seq + 1, key=_first_seq) - 1, 0)
                blocks = blocks[first:] if blocks[first].header.last_seq > seq else blocks[first + 1 :]
            yield from blocks

    def newest_first(self) -> Iterator[Block]:
        """All blocks, the newest first."""
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.blocks)

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        count = nbytes = 0
        last_seq = None
        for index, chunk in enumerate(self._chunks):
            assert 1 <= len(chunk.blocks) <= CHUNK_BLOCKS_MAX, f"chunk {index} has {len(chunk.blocks)} blocks"
            assert chunk.first_seq == chunk.blocks[0].header.first_seq, f"chunk {index} misstates its first seq"
            for block in chunk.blocks:
                header = block.header
                assert last_seq is None or header.first_seq == last_seq + 1, f"a gap before seq {header.first_seq}"
                assert header.first_seq <= header.last_seq, f"block {header.first_seq} ends before it begins"
                last_seq = header.last_seq
                count += 1
                nbytes += block.nbytes
        assert count == self.block_count, f"{count} blocks, {self.block_count} counted"
        assert nbytes == self.nbytes, f"{nbytes} bytes, {self.nbytes} counted"


def _first_seq(block: Block) -> int:
    return block.header.first_seq
