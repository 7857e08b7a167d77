"""The rows of a pulled feed, and what its streams tell beside them: snapshots, producers, sinks, pushed segments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.consuming.events import Event, Mutations, ReplicaEvent, SnapshotStart
from tailrace.errors import ProtocolError
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.blocks import cut_above
from tailrace_server.partition.replica_apply import apply_producers, apply_sinks, expect_producers
from tailrace_server.replication.lagging_partitions import LaggingPartitions
from tailrace_server.replication.pulled_snapshots import PulledSnapshots
from tailrace_server.replication.pushed_partitions import PushedPartitions, PushMessage
from tailrace_server.replication.replica_acknowledgements import ReplicaAcknowledgements

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode


class PulledRows:
    """Takes the rows of a feed in the order of its streams, for the `ReplicaPuller` whose parts it is given."""

    def __init__(
        self,
        node: LocalNode,
        feed: Feed,
        snapshots: PulledSnapshots,
        pushed: PushedPartitions,
        lagging: LaggingPartitions,
        acknowledgements: ReplicaAcknowledgements,
    ) -> None:
        self._node = node
        self._feed = feed
        self._snapshots = snapshots
        self._pushed = pushed
        self._lagging = lagging
        self._acknowledgements = acknowledgements

    def received(self, event: Mutations) -> tuple[Partition, Block]:
        """Notes that a block has come. Returns the rows of it that are new."""
        partition, block = self._feed.partitions[event.partition], event.block
        self._lagging.received(partition, block)
        for trace in event.traces:
            self._node.traces.add(partition.feed_id, partition.id, event.branch, trace)
        if block.header.first_seq < event.first_seq:
            block = cut_above(block, event.first_seq - 1)
        return partition, block

    def gathers(self, partition: Partition) -> bool:
        """Returns whether the rows of the partition take effect at the end of their snapshot only."""
        return self._snapshots.gathers(partition)

    def needs_no_start(self, event: SnapshotStart) -> bool:
        """Returns whether ``take`` of this event does nothing: the blocks of the snapshot are applied as they come."""
        partition = self._feed.partitions[event.partition]
        if not event.complete or event.published or self._snapshots.gathers(partition):
            return False
        return not self._pushed.is_receiving(partition)

    async def take(self, event: Event | ReplicaEvent) -> None:
        """Takes the beginning of a snapshot, or the producers or sinks of following blocks."""
        match event:
            case SnapshotStart():
                await self._start_snapshot(event, self._feed.partitions[event.partition])
            case Producers():
                await self._told_producers(event, self._feed.partitions[event.partition])
            case SinksTold():
                await self._told_sinks(event, self._feed.partitions[event.partition])

    async def take_pushed(self, event: PushMessage, partition: Partition) -> None:
        """Takes a message about a segment that the leader pushes."""
        await self._pushed.take(partition, event, self._acknowledgements.log_of(partition))

    async def end_snapshot(self, partition: Partition) -> bool:
        """Ends the snapshot of a partition. Returns whether its rows were installed as a segment."""
        return await self._snapshots.end(partition, self._acknowledgements.log_of)

    async def _start_snapshot(self, event: SnapshotStart, partition: Partition) -> None:
        if self._pushed.is_receiving(partition):
            raise ProtocolError(f"a snapshot of partition {partition.id}, of which a segment is being sent")
        await self._snapshots.start(event, partition)

    async def _told_producers(self, event: Producers, partition: Partition) -> None:
        """Notes the producers of the following blocks, which do not name theirs.

        Blocks that a crash leaves of these are recognised all the same.
        """
        node, now = self._node, self._node.clock.monotonic()
        if self._pushed.is_receiving(partition):
            await self.take_pushed(event, partition)
        elif self._snapshots.gathers(partition):  # all comes at once, or nothing
            expect_producers(partition, event.value, event.seq, now)
        else:
            apply_producers(partition, event.value, event.seq, node.storage.journal, now)

    async def _told_sinks(self, event: SinksTold, partition: Partition) -> None:
        if self._pushed.is_receiving(partition):
            await self.take_pushed(event, partition)
        else:
            apply_sinks(partition, event.value, event.seq, self._node.storage.journal)
