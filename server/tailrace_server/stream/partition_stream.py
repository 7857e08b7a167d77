"""One partition's stream to one consumer: where it stands, and the snapshot that it is in."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.block import Block
from tailrace.model import Level
from tailrace_server.partition import Partition

# A snapshot ends at the next block after so much, and the rest follows in the next one: bounds what a consumer has to
# repeat after a break, and what the walk to a snapshot's end costs.
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
SNAPSHOT_BLOCKS_MAX = 4_096


class PartitionStream:
    """The state of a stream. ``delivered_seq`` is the last seq sent at which a consumer may stand."""

    def __init__(
        self, id: int, partition: Partition, level: Level, after_seq: int, end_seq: int | None, promised_seq: int
    ) -> None:
        self.id = id
        self.partition = partition
        self.level = level
        self.delivered_seq = after_seq
        self.end_seq = end_seq
        # The end of the snapshot that the consumer was in: no snapshot ends below it.
        self.promised_seq = promised_seq
        self.snapshot_after = after_seq
        self.snapshot_last = after_seq
        self._blocks: Iterator[Block] | None = None

    @property
    def in_snapshot(self) -> bool:
        """A snapshot has been announced and is not sent to its end."""
        return self._blocks is not None

    @property
    def has_news(self) -> bool:
        """There is something to send, at this stream's level."""
        if self.in_snapshot:
            return True
        visible_seq = self.partition.visible_seq(self.level)
        return visible_seq > self.delivered_seq and visible_seq >= self.promised_seq and not self.at_end

    @property
    def at_end(self) -> bool:
        """The stream has reached the end that was asked for."""
        return self.end_seq is not None and self.delivered_seq >= self.end_seq

    def begin_snapshot(self) -> None:
        """Takes a snapshot of what is visible: a reference to the tree, and the seq where it ends."""
        tree = self.partition.tree
        visible_seq = self.partition.visible_seq(self.level)
        if self.end_seq is not None:
            visible_seq = min(visible_seq, self.end_seq)
        self.snapshot_after = self.snapshot_last = self.delivered_seq
        size = 0
        blocks: list[Block] = []
        for block in tree.blocks_after(self.delivered_seq):
            bounded = size > SNAPSHOT_BYTES_MAX or len(blocks) >= SNAPSHOT_BLOCKS_MAX
            if self.snapshot_last >= visible_seq or (bounded and self.snapshot_last >= self.promised_seq):
                break
            blocks.append(block)
            self.snapshot_last = block.header.last_seq
            size += block.nbytes
        self._blocks = iter(blocks)

    @property
    def all_sent(self) -> bool:
        """The last block of the snapshot has been sent."""
        return self.delivered_seq >= self.snapshot_last

    def next_block(self) -> Block | None:
        """The next block of the snapshot; None where all were sent."""
        if self._blocks is None or self.all_sent:
            return None
        block = next(self._blocks)
        self.delivered_seq = block.header.last_seq
        return block

    def end_snapshot(self) -> None:
        """The stream is between snapshots again."""
        assert self.all_sent, "a snapshot ends where it was announced to end"
        self._blocks = None
