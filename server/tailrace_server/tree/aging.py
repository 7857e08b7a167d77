"""Plans the merging of blocks as they age, so that a million single writes become a few hundred objects. Pure.

    settled            waiting            not looked at yet         tail
    [4096 rows] ...    [64] [64] [64]     [1 1 1 ... 1] [1 1 ...]   1 1 1
             <── merged once more ──┘ <── merged, once stable ──┘

Each pair of brackets is a chunk of the tree. A full and stable chunk is merged, and waits. When enough chunks wait,
they are merged once more, together, and are settled. So a row is copied twice at most, and less than MERGED_BYTES_MAX
of a partition wait in small blocks. Large blocks are not merged: one more object costs less than copying them.

The caller does the merging that is planned here, a group at a time, when it has the time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_COMPRESSED, ROWS_MAX, Block
from tailrace.block.arrays import Indices
from tailrace_server.blocks import Heads, heads_of, merge_steps
from tailrace_server.tree.memory import HEADER_OBJECT_BYTES, memory_of_all

# A block of at most this many raw bytes is small: its objects, about 900 bytes, are worth copying it twice.
SMALL_BYTES_MAX = 64 * 1024
# Raw bytes of a merged block: a reader decompresses them for one row, and merging them takes about 1 ms.
MERGED_BYTES_MAX = 1024 * 1024
# This many chunks that were merged once are merged again. It bounds a plan as well.
WAITING_CHUNKS_MAX = 64


class MergeGroup(NamedTuple):
    """Neighbouring ``blocks`` that become one, compressed if any of them is. A single block stays as it is."""

    blocks: tuple[Block, ...]
    raw_bytes: int
    is_compressed: bool

    @property
    def extent(self) -> tuple[int, int]:
        """The first and the last seq."""
        return self.blocks[0].seqs[0], self.blocks[-1].seqs[1]


class Chunk(NamedTuple):
    """Neighbouring blocks; ``first_seq`` is the first one's, and the bytes are their sums (tree.py, memory.py)."""

    first_seq: int
    blocks: tuple[Block, ...]
    nbytes: int
    memory_bytes: int

    @property
    def last_seq(self) -> int:
        """The last seq of the last block."""
        return self.blocks[-1].seqs[1]


def chunk_of(blocks: Sequence[Block]) -> Chunk:
    """Returns the chunk of one or more ``blocks``, which keep no header from then on."""
    nbytes = sum(block.nbytes for block in blocks)
    memory_bytes = memory_of_all(blocks) - HEADER_OBJECT_BYTES * len(blocks)
    first_seq = blocks[0].header.first_seq
    for block in blocks:
        block.forget_header()
    return Chunk(first_seq, tuple(blocks), nbytes, memory_bytes)


class Aging(NamedTuple):
    """The progress of merging in a tree, in chunks from the left.

    ``settled`` chunks are done. ``passed`` chunks, with ``passed_blocks``, were merged at least once; those of
    them that are not settled wait, with ``waiting_bytes`` raw bytes. Invariant: 0 <= settled <= passed.
    """

    settled: int = 0
    passed: int = 0
    passed_blocks: int = 0
    waiting_bytes: int = 0

    @property
    def is_settling_due(self) -> bool:
        """Whether enough chunks wait to be merged together."""
        return self.passed - self.settled >= WAITING_CHUNKS_MAX or self.waiting_bytes >= MERGED_BYTES_MAX

    def merged(self, plan: MergePlan, made: Sequence[Chunk]) -> Aging:
        """Returns the progress after the chunks of ``plan`` have become ``made``."""
        settled, passed, passed_blocks, waiting_bytes = self
        passed, passed_blocks = passed + len(made), passed_blocks + _blocks(made)
        if not plan.settles:
            return Aging(settled, passed, passed_blocks, waiting_bytes + _waiting_bytes(made))
        before = plan.chunks
        settled, passed, passed_blocks = settled + len(made), passed - len(before), passed_blocks - _blocks(before)
        return Aging(settled, passed, passed_blocks, waiting_bytes - _waiting_bytes(before))

    def dropped(self, count: int, rest: Sequence[Chunk]) -> Aging:
        """Returns the progress without the ``count`` first chunks; ``rest`` are left, the first perhaps shorter."""
        return Aging.of(rest, max(self.settled - count, 0), max(self.passed - count, 0))

    @classmethod
    def of(cls, chunks: Sequence[Chunk], settled: int, passed: int) -> Aging:
        """Returns the progress of these counts, with its sums taken from ``chunks``."""
        return cls(settled, passed, _blocks(chunks[:passed]), _waiting_bytes(chunks[settled:passed]))


class MergePlan(NamedTuple):
    """Neighbouring ``chunks`` of a tree, and their blocks in ``groups``, each of which becomes one block.

    ``settles`` if the chunks have waited, and are merged for the last time.
    """

    chunks: tuple[Chunk, ...]
    groups: tuple[MergeGroup, ...]
    settles: bool

    @property
    def raw_bytes(self) -> int:
        """The raw bytes that merging copies."""
        return sum(group.raw_bytes for group in self.groups if len(group.blocks) > 1)

    @property
    def is_compressed(self) -> bool:
        """Whether merging uses lz4, which may take too long for the node's loop."""
        return any(group.is_compressed for group in self.groups if len(group.blocks) > 1)

    def crosses(self, cuts: Sequence[int]) -> bool:
        """Returns whether a group has blocks on both sides of one of ``cuts``."""
        borders = sorted(cuts)
        return any(_side(group.blocks[0], borders) != _side(group.blocks[-1], borders) for group in self.groups)

    def merge(self) -> list[Block]:
        """Returns each group as one block. BadBlock if a block was damaged in memory."""
        return [block for block in self.steps() if block is not None]

    def steps(self) -> Iterator[Block | None]:
        """Does the same as ``merge`` in steps of a fraction of a millisecond, each of which may yield a block.

        A step with compressed blocks takes up to 10 ms: call it in a thread.
        """
        for group in self.groups:
            if len(group.blocks) == 1:
                yield group.blocks[0]
            else:
                yield from merge_steps(group.blocks, compress=group.is_compressed)


def plan_merge(chunks: Sequence[Chunk], cuts: Sequence[int], *, settles: bool) -> MergePlan:
    """Returns the plan for ``chunks``. No group crosses any of ``cuts``, which are the last seqs before a border."""
    blocks = [block for chunk in chunks for block in chunk.blocks]
    return MergePlan(tuple(chunks), tuple(_groups(blocks, sorted(cuts))), settles)


def _groups(blocks: Sequence[Block], borders: Sequence[int]) -> Iterator[MergeGroup]:
    """Yields neighbouring small blocks in groups within the bounds, and each large block alone."""
    heads = heads_of(blocks)
    packed_flags = (heads["flags"] & FLAG_COMPRESSED) != 0
    # A border inside a block does not count: it came after the block was merged.
    side_of = np.searchsorted(np.array(borders, "<u8"), heads["last_seq"])
    if _is_one_group(heads, side_of):
        yield MergeGroup(tuple(blocks), int(heads["raw_bytes"].sum()), bool(packed_flags.any()))
        return
    compressed, sizes, sides = packed_flags.tolist(), heads["raw_bytes"].tolist(), side_of.tolist()
    group: list[Block] = []
    rows = raw_bytes = 0
    is_compressed = False
    side, is_small = -1, False
    for block, more, size, other, packed in zip(blocks, heads["rows"].tolist(), sizes, sides, compressed, strict=True):
        joins = side == other and is_small and size <= SMALL_BYTES_MAX
        if group and not (joins and rows + more <= ROWS_MAX and raw_bytes + size <= MERGED_BYTES_MAX):
            yield MergeGroup(tuple(group), raw_bytes, is_compressed)
            group, rows, raw_bytes, is_compressed = [], 0, 0, False
        group.append(block)
        rows += more
        raw_bytes += size
        is_compressed |= packed
        side, is_small = other, size <= SMALL_BYTES_MAX
    if group:
        yield MergeGroup(tuple(group), raw_bytes, is_compressed)


def _is_one_group(heads: Heads, sides: Indices) -> bool:
    """Returns whether all of several blocks belong together, as most often: by a few steps for all of them."""
    sizes = heads["raw_bytes"]
    if len(sizes) < 2 or sides.min() != sides.max() or sizes.max() > SMALL_BYTES_MAX:
        return False
    return bool(heads["rows"].sum() <= ROWS_MAX and sizes.sum() <= MERGED_BYTES_MAX)


def _side(block: Block, borders: Sequence[int]) -> int:
    """Returns how many of ``borders`` lie before the end of ``block``."""
    return bisect_left(borders, block.seqs[1])


def _blocks(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.blocks) for chunk in chunks)


def _waiting_bytes(chunks: Sequence[Chunk]) -> int:
    return int(heads_of([block for chunk in chunks for block in chunk.blocks])["raw_bytes"].sum())
