"""The blocks that a connection has sent and that its consumer has not credited, in few marks for each feed. Pure.

A consumer credits bytes, in the order in which they were sent. A mark covers blocks of one feed that were sent after
each other with nearly the same timestamp, so that a live stream needs ten marks a second. If there are too many,
neighbours are joined: the first mark still begins with the oldest rows. A mark counts as a whole until its last block
is credited.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace.block import Block, BlockHeader
    from tailrace_server.partition.partition import Partition

# Blocks whose timestamps differ by less share a mark. It bounds how much the lag is overstated in a live stream.
SPAN_US = 100_000
# The marks of a feed on a connection: an even number, 3 KiB. What is further behind is told with less detail.
MARKS_MAX = 32


class Mark:
    """Neighbouring blocks: their rows, and the place before the block with the oldest timestamp.

    ``end`` is the number of bytes that the connection had sent with the last of them.
    """

    __slots__ = ("after_seq", "end", "mutations", "partition", "timestamp")

    def __init__(self, partition: Partition, header: BlockHeader, end: int) -> None:
        self.partition = partition
        self.after_seq = header.first_seq - 1
        self.timestamp = header.timestamp
        self.mutations = header.rows
        self.end = end

    def add(self, partition: Partition, header: BlockHeader, end: int) -> None:
        """Adds a block that was sent later."""
        self.mutations += header.rows
        self.end = end
        if header.timestamp < self.timestamp:
            self.partition, self.after_seq, self.timestamp = partition, header.first_seq - 1, header.timestamp

    def join(self, later: Mark) -> None:
        """Adds the blocks of the mark behind this one."""
        self.mutations += later.mutations
        self.end = later.end
        if later.timestamp < self.timestamp:
            self.partition, self.after_seq, self.timestamp = later.partition, later.after_seq, later.timestamp


class UnhandledBlocks:
    """What a consumer has not handled yet. Only its own methods change its fields."""

    __slots__ = ("_credited", "_feeds", "_sent")

    def __init__(self) -> None:
        self._feeds: dict[bytes, collections.deque[Mark]] = {}  # by feed id; credited marks leave when it is looked at
        self._sent = self._credited = 0  # bytes. Invariant: _credited <= _sent

    def sent(self, partition: Partition, block: Block) -> None:
        """Notes that ``block`` was sent."""
        header = block.header  # a property
        self._sent = end = self._sent + block.nbytes
        marks = self._feeds.get(partition.feed_id)
        if marks is None:
            marks = self._feeds[partition.feed_id] = collections.deque()
        while marks and marks[0].end <= self._credited:
            marks.popleft()
        if marks and -SPAN_US < header.timestamp - marks[-1].timestamp < SPAN_US:
            marks[-1].add(partition, header, end)
            return
        if len(marks) >= MARKS_MAX:
            _join_pairs(marks)
        marks.append(Mark(partition, header, end))

    def credited(self, nbytes: int) -> None:
        """Notes that the consumer has handled the next ``nbytes`` bytes; what it credits beyond all is ignored."""
        self._credited = min(self._credited + nbytes, self._sent)

    def marks(self) -> Iterator[Mark]:
        """Yields the marks that are not credited, of each feed the oldest first."""
        for feed_id, marks in list(self._feeds.items()):
            while marks and marks[0].end <= self._credited:
                marks.popleft()
            if not marks:
                self._feeds.pop(feed_id, None)
            yield from marks


def _join_pairs(marks: collections.deque[Mark]) -> None:
    """Joins each second mark to the one before it."""
    for _ in range(len(marks) // 2):
        first = marks.popleft()
        first.join(marks.popleft())
        marks.append(first)
