"""Merging blocks as they age, so that a million single writes end as a few hundred objects. Pure.

    settled            waiting            not looked at yet         tail
    [4096 rows] ...    [64] [64] [64]     [1 1 1 ... 1] [1 1 ...]   1 1 1
             <── merged once more ──┘ <── merged, once stable ──┘

Each pair of brackets is a chunk of the tree. A chunk that is full and stable is merged and waits; when enough wait they
are merged once more, together, and are settled. So a row is copied twice at most, and less than MERGED_BYTES_MAX of a
partition wait in small blocks. Only small blocks are merged: another object costs less than copying a large one.

Merging is planned here and done by the caller, a group at a time, wherever it has the time for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_COMPRESSED, ROWS_MAX, Block
from tailrace_server.blocks import heads_of, merge_steps
from tailrace_server.tree.memory import HEADER_OBJECT_BYTES, memory_of_all

# Up to so many raw bytes a block is small: its objects, about 900 bytes, are worth copying it twice.
SMALL_BYTES_MAX = 64 * 1024
# The raw bytes of a merged block: what a reader has to decompress for one row, and about 1 ms of merging.
MERGED_BYTES_MAX = 1024 * 1024
# So many chunks that were merged once are merged again. It bounds the plan as well.
WAITING_CHUNKS_MAX = 64


class Group(NamedTuple):
    """Neighbouring ``blocks`` that are to become one, compressed where any of them is; one block stays as it is."""

    blocks: tuple[Block, ...]
    raw_bytes: int
    is_compressed: bool

    @property
    def extent(self) -> tuple[int, int]:
        """First and last seq."""
        return self.blocks[0].seqs[0], self.blocks[-1].seqs[1]


class Chunk(NamedTuple):
    """Neighbouring blocks; ``first_seq`` is the first one's, and the bytes are their sums (tree.py, memory.py)."""

    first_seq: int
    blocks: tuple[Block, ...]
    nbytes: int
    memory_bytes: int

    @property
    def last_seq(self) -> int:
        """The last block's last seq."""
        return self.blocks[-1].seqs[1]


def chunk_of(blocks: Sequence[Block]) -> Chunk:
    """The chunk of one or more ``blocks``, which keep no header from then on."""
    nbytes = sum(block.nbytes for block in blocks)
    memory_bytes = memory_of_all(blocks) - HEADER_OBJECT_BYTES * len(blocks)
    first_seq = blocks[0].header.first_seq
    for block in blocks:
        block.forget_header()
    return Chunk(first_seq, tuple(blocks), nbytes, memory_bytes)


class Aging(NamedTuple):
    """How far merging has come in a tree, in chunks from the left: ``settled`` are done, and of the ``passed`` ones,
    which have ``passed_blocks``, the rest waits, which has ``waiting_bytes`` raw."""

    settled: int = 0
    passed: int = 0
    passed_blocks: int = 0
    waiting_bytes: int = 0

    @property
    def is_run_due(self) -> bool:
        """Enough waits to be merged together."""
        return self.passed - self.settled >= WAITING_CHUNKS_MAX or self.waiting_bytes >= MERGED_BYTES_MAX

    def merged(self, plan: MergePlan, made: Sequence[Chunk]) -> Aging:
        """After the chunks of ``plan`` have become those ``made``."""
        settled, passed, passed_blocks, waiting_bytes = self
        passed, passed_blocks = passed + len(made), passed_blocks + _blocks(made)
        if not plan.settles:
            return Aging(settled, passed, passed_blocks, waiting_bytes + _waiting_bytes(made))
        before = plan.chunks
        settled, passed, passed_blocks = settled + len(made), passed - len(before), passed_blocks - _blocks(before)
        return Aging(settled, passed, passed_blocks, waiting_bytes - _waiting_bytes(before))

    def dropped(self, count: int, rest: Sequence[Chunk]) -> Aging:
        """After the ``count`` first chunks have gone; ``rest`` are left, the first of them perhaps shorter."""
        return Aging.of(rest, max(self.settled - count, 0), max(self.passed - count, 0))

    @classmethod
    def of(cls, chunks: Sequence[Chunk], settled: int, passed: int) -> Aging:
        """With the sums taken anew."""
        return cls(settled, passed, _blocks(chunks[:passed]), _waiting_bytes(chunks[settled:passed]))


class MergePlan(NamedTuple):
    """Neighbouring ``chunks`` of a tree, and their blocks in ``groups``; each is to become one block.

    ``settles`` says that these have waited, and are merged for the last time.
    """

    chunks: tuple[Chunk, ...]
    groups: tuple[Group, ...]
    settles: bool

    @property
    def raw_bytes(self) -> int:
        """How much is to be copied."""
        return sum(group.raw_bytes for group in self.groups if len(group.blocks) > 1)

    @property
    def is_compressed(self) -> bool:
        """lz4 is to be run over something: too long for the loop where it is much."""
        return any(group.is_compressed for group in self.groups if len(group.blocks) > 1)

    def crosses(self, cuts: Sequence[int]) -> bool:
        """A group has blocks on both sides of one of ``cuts``."""
        borders = sorted(cuts)
        return any(_side(group.blocks[0], borders) != _side(group.blocks[-1], borders) for group in self.groups)

    def merge(self) -> list[Block]:
        """Each group as one block. BadBlock where a block was damaged in memory."""
        return [block for block in self.steps() if block is not None]

    def steps(self) -> Iterator[Block | None]:
        """What ``merge`` does, in steps of a fraction of a millisecond, each of which may have made a block.

        Of compressed blocks 10 ms, that is for a thread.
        """
        for group in self.groups:
            if len(group.blocks) == 1:
                yield group.blocks[0]
            else:
                yield from merge_steps(group.blocks, compress=group.is_compressed)


def plan_merge(chunks: Sequence[Chunk], cuts: Sequence[int], *, settles: bool) -> MergePlan:
    """What is to be merged of ``chunks``. No group crosses any of ``cuts``, which are the last seqs before a border."""
    blocks = [block for chunk in chunks for block in chunk.blocks]
    return MergePlan(tuple(chunks), tuple(_groups(blocks, sorted(cuts))), settles)


def _groups(blocks: Sequence[Block], borders: Sequence[int]) -> Iterator[Group]:
    """Neighbouring small blocks in groups within the bounds; a large block alone."""
    heads = heads_of(blocks)
    compressed = (heads["flags"] & FLAG_COMPRESSED).astype(bool).tolist()
    sizes = heads["raw_bytes"].tolist()
    # A border inside of a block is none: it came too late.
    sides = np.searchsorted(np.array(borders, "<u8"), heads["last_seq"]).tolist()
    group: list[Block] = []
    rows = raw_bytes = 0
    is_compressed = False
    side, is_small = -1, False
    for block, more, size, other, packed in zip(blocks, heads["rows"].tolist(), sizes, sides, compressed, strict=True):
        joins = side == other and is_small and size <= SMALL_BYTES_MAX
        if group and not (joins and rows + more <= ROWS_MAX and raw_bytes + size <= MERGED_BYTES_MAX):
            yield Group(tuple(group), raw_bytes, is_compressed)
            group, rows, raw_bytes, is_compressed = [], 0, 0, False
        group.append(block)
        rows += more
        raw_bytes += size
        is_compressed |= packed
        side, is_small = other, size <= SMALL_BYTES_MAX
    if group:
        yield Group(tuple(group), raw_bytes, is_compressed)


def _side(block: Block, borders: Sequence[int]) -> int:
    """Between which of ``borders`` it ends."""
    return bisect_left(borders, block.seqs[1])


def _blocks(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.blocks) for chunk in chunks)


def _waiting_bytes(chunks: Sequence[Chunk]) -> int:
    return int(heads_of([block for chunk in chunks for block in chunk.blocks])["raw_bytes"].sum())
