"""A cursor over the blocks of one segment, read a chunk at a time.

The caller loads a chunk on the loop if it is in the system's memory, otherwise in a thread.
"""

from __future__ import annotations

import collections
import sys

from tailrace.block import Block
from tailrace.block.filtering import filter_block
from tailrace.errors import BadBlock
from tailrace.wire.filters import StreamFilter
from tailrace_server.partition.chain import Pins
from tailrace_server.segment import NotCached, Reads, Segment, SegmentDamaged

# The size of a read: a thousand streams can hold one each.
CHUNK_BYTES = 1024 * 1024
# A larger chunk is one large block, which would hold up the loop for longer than others.
CACHED_BYTES_MAX = 2 * CHUNK_BYTES


class SegmentCursor:
    """A cursor over the blocks of ``segment`` that have rows above ``after_seq``. It pins the segment until closed.

    With ``wanted`` it gives the rows that the filter leaves, which may be none. ``load`` may run in a thread if nothing
    else of the cursor is used meanwhile.
    """

    __slots__ = ("_blocks", "_index", "_pins", "_wanted", "segment")

    def __init__(self, segment: Segment, after_seq: int, pins: Pins, wanted: StreamFilter | None = None) -> None:
        self.segment = segment
        self._wanted = wanted
        self._pins = pins
        self._index = segment.block_after(after_seq)
        self._blocks: collections.deque[Block] = collections.deque()
        pins.pin(segment)

    @property
    def needs_load(self) -> bool:
        """Whether the next block has to be loaded first."""
        return not self._blocks and self._index < self.segment.blocks

    @property
    def offset(self) -> int:
        """The place in the file of the next chunk, behind the loaded blocks."""
        return self.segment.place_of(self._index)[0]

    @property
    def is_done(self) -> bool:
        """Whether every block was handed out."""
        return not self._blocks and self._index >= self.segment.blocks

    def load(self, bytes_max: int = sys.maxsize) -> tuple[list[Block], int]:
        """Reads the next chunk, of ``bytes_max`` bytes at most or one block, and filters it. Raises SegmentDamaged."""
        blocks, index = self.segment.read_blocks(self._index, min(bytes_max, CHUNK_BYTES))
        if self._wanted is None:
            return blocks, index
        return [found for block in blocks if (found := self._filter(block, self._wanted)) is not None], index

    def load_cached(self, bytes_max: int = sys.maxsize) -> tuple[list[Block], int] | None:
        """Reads the next chunk as ``load``, without waiting for the disk. Raises SegmentDamaged.

        Returns None if that takes a thread: not all of it is in memory, a filter looks through it, or it is large.
        """
        if self._wanted is not None or self.segment.block_bytes(self._index) > CACHED_BYTES_MAX:
            return None
        try:
            return self.segment.read_blocks(self._index, min(bytes_max, CHUNK_BYTES), Reads().read)
        except NotCached:
            return None

    def _filter(self, block: Block, wanted: StreamFilter) -> Block | None:
        try:
            return filter_block(block, wanted)
        except BadBlock as error:
            raise SegmentDamaged(self.segment.path, 0, f"{block}: {error}") from None

    def loaded(self, blocks: list[Block], index: int) -> None:
        """Takes the blocks that ``load`` returned, and the index of the block after them."""
        self._blocks.extend(blocks)
        self._index = index

    def next_block(self) -> Block | None:
        """Returns the next block; None if it has to be loaded first, or all were handed out."""
        return self._blocks.popleft() if self._blocks else None

    def close(self) -> None:
        """Drops the loaded blocks, and unpins the segment."""
        self._blocks.clear()
        self._pins.unpin(self.segment)
