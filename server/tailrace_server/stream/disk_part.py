"""What a stream reads of one segment: a chunk at a time, which somebody else loads in a thread."""

from __future__ import annotations

import collections

from tailrace.block import Block
from tailrace_server.chain import Pins
from tailrace_server.segment import Segment

# One read: enough that the hop to a thread is nothing beside it, little enough for a thousand streams.
CHUNK_BYTES = 1024 * 1024


class DiskPart:
    """A cursor over the blocks of ``segment`` that hold anything above ``after_seq``. It pins the segment until closed.

    ``load`` may run in a thread, while nothing else of the part is used.
    """

    __slots__ = ("_blocks", "_index", "_pins", "segment")

    def __init__(self, segment: Segment, after_seq: int, pins: Pins) -> None:
        self.segment = segment
        self._pins = pins
        self._index = segment.block_after(after_seq)
        self._blocks: collections.deque[Block] = collections.deque()
        pins.pin(segment)

    @property
    def needs_load(self) -> bool:
        """The next block is not in memory."""
        return not self._blocks and self._index < self.segment.blocks

    @property
    def is_done(self) -> bool:
        """Every block was handed out."""
        return not self._blocks and self._index >= self.segment.blocks

    def load(self) -> tuple[list[Block], int]:
        """Reads the next chunk. Raises SegmentDamaged."""
        return self.segment.read_blocks(self._index, CHUNK_BYTES)

    def loaded(self, blocks: list[Block], index: int) -> None:
        """Takes what ``load`` gave."""
        self._blocks.extend(blocks)
        self._index = index

    def next_block(self) -> Block | None:
        """The next block; None where it has to be loaded first, or all were handed out."""
        return self._blocks.popleft() if self._blocks else None

    def close(self) -> None:
        """Nothing more of the segment is read."""
        self._blocks.clear()
        self._pins.unpin(self.segment)
