"""Puts the blocks of a pulled feed into its partitions, by the kind of the snapshot that they belong to.

    of a complete snapshot    ──> journal, tree, as each comes
    of a publish              ──> gathered; one record of the journal at its end
    of a run                  ──> a segment of its own, installed at its end

A publish and a run take effect as a whole, or not at all: ``forget`` drops what has come of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from tailrace.block import Block
from tailrace.consuming.events import SnapshotStart
from tailrace.errors import ProtocolError
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.replica_apply import apply_batch, apply_block
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

if TYPE_CHECKING:
    from tailrace.model.failover import FailoverLog
    from tailrace_server.replication.local_node import LocalNode

# The bytes of one publish, with room for rows that merging has added to its blocks.
GATHERED_BYTES_MAX = 64 * 1024 * 1024
# The seconds that a block waits for room if memory is full. Not longer: the leader's seqs that allow a flush come
# behind it.
ROOM_SECONDS_MAX = 1.0


class PulledSnapshots:
    """The snapshots of one feed that have begun, by partition. After a stop nothing is written any more."""

    def __init__(
        self,
        node: LocalNode,
        is_stopped: Callable[[], bool],
        turn_ended: Callable[[], None],
        applied: Callable[[Partition], None],
    ) -> None:
        """Prepares for blocks.

        Args:
            node: this node.
            is_stopped: whether the pull was stopped.
            turn_ended: commits the rows that the pull has written.
            applied: called with a partition that has more rows in its journal and tree.
        """
        self.runs: dict[int, SnapshotSegment] = {}  # by partition: those that are under way
        self._published: dict[int, list[Block]] = {}  # the blocks of publishes that are still coming, by partition
        self._node = node
        self._is_stopped = is_stopped
        self._turn_ended = turn_ended
        self._applied = applied

    def gathers(self, partition: Partition) -> bool:
        """Returns whether the rows that come take effect at the end of their snapshot only."""
        return partition.id in self.runs or partition.id in self._published

    def forget(self, partition: Partition) -> None:
        """Drops what has come of a publish or run: the partition is asked for anew, and it comes again."""
        run = self.runs.pop(partition.id, None)
        self._published.pop(partition.id, None)
        if run is not None:
            run.abandon()

    def abandon(self) -> None:
        """Drops what has come of all runs."""
        for run in self.runs.values():
            run.abandon()
        self.runs.clear()

    async def start(self, event: SnapshotStart, partition: Partition) -> None:
        """Begins a snapshot. Raises ProtocolError."""
        # If it is announced again, it is another kind of snapshot, which begins at the partition's present seq.
        self._published.pop(partition.id, None)
        run = self.runs.get(partition.id)
        if event.complete or event.published:
            if run is not None:
                raise ProtocolError(f"another snapshot of partition {partition.id} inside of a run")
            if event.published:
                self._published[partition.id] = []
            return
        if run is not None:  # the same run is announced again, since it ends later now
            run.extend(event.last_seq, event.purge_seq)
            return
        # It may have begun as a complete one, of which blocks were taken already.
        if event.first_seq > partition.high_seq + 1:
            raise ProtocolError(
                f"a run of partition {partition.id} begins at seq {event.first_seq}, and it stands at "
                f"{partition.high_seq}"
            )
        with trio.CancelScope(shield=True):
            await self._node.storage.flusher.flush_all(partition)
        if not self._is_stopped():
            self.runs[partition.id] = SnapshotSegment(
                self._node.storage, partition, partition.high_seq, event.last_seq, event.purge_seq
            )

    async def take(self, partition: Partition, block: Block) -> None:
        """Takes a block, after a wait for memory if it goes there. Raises as `take_now`."""
        if not self.gathers(partition):
            await self._wait_for_memory()
            if self._is_stopped():
                return
        self.take_now(partition, block)

    def take_now(self, partition: Partition, block: Block) -> None:
        """Takes a block. Raises BadBlock, NoSpace, NotDurable, ProtocolError."""
        run = self.runs.get(partition.id)
        if run is not None:
            run.add(block)
            return
        published = self._published.get(partition.id)
        if published is not None:
            self._gather(published, block)
            return
        node = self._node
        apply_block(partition, block, node.storage.journal, node.clock.monotonic())
        self._applied(partition)

    @staticmethod
    def _gather(published: list[Block], block: Block) -> None:
        if sum(other.nbytes for other in published) + block.nbytes > GATHERED_BYTES_MAX:
            raise ProtocolError(f"more than {GATHERED_BYTES_MAX} bytes were published at once")
        published.append(block)

    async def _wait_for_memory(self) -> None:
        storage = self._node.storage
        if storage.memory.must_wait:
            self._turn_ended()
            storage.flusher.wake()
            with trio.move_on_after(ROOM_SECONDS_MAX):
                await storage.memory.room()

    async def flow(self, holds: Callable[[int], bool]) -> None:
        """Writes the rows that were gathered for segments, but of partitions that another task brings (``holds``)."""
        for id, run in list(self.runs.items()):
            if not holds(id):
                await run.flow()

    async def end(self, partition: Partition, log_of: Callable[[Partition], FailoverLog]) -> bool:
        """Ends a snapshot: applies a publish, or installs a run. Returns whether it was a run, whose rows are durable.

        ``log_of`` returns the other node's log. Raises NoSpace, NotDurable, OSError.
        """
        run = self.runs.pop(partition.id, None)
        published = self._published.pop(partition.id, None)
        if published:
            await self._wait_for_memory()
            if self._is_stopped():
                return False
            apply_batch(partition, published, self._node.storage.journal, self._node.clock.monotonic())
            self._applied(partition)
        if run is None:
            return False
        with trio.CancelScope(shield=True):
            await run.finish(log_of(partition))
        return True
