"""Takes over what another node streams of a feed: blocks, runs, logs, rollbacks. For following and for promotions.

    STREAM_OK       ──> the leader's log, its entries taken over as what is held reaches their bases
    complete snapshot   producers, blocks ──> journal, tree           ──fsync──> acknowledged
    a publish           blocks, last batches ──> one record of the journal   ──fsync──> acknowledged
    a run               blocks ──> a segment of its own, installed at its end    ──> acknowledged
    ROLLBACK        ──> what is above goes; the point where the partition stands then is asked from

``stop`` ends it at once: whatever is still on its way then changes nothing and acknowledges nothing, but for a segment
or a rollback that is being installed, which ``run`` finishes before it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.block import Block
from tailrace.consuming.events import Agreed, LeaderCheck, Mutations, Rollback, SnapshotEnd, SnapshotStart, StreamFailed
from tailrace.errors import Forbidden, ProtocolError, StreamEnded, TailraceError
from tailrace.link.address import Address
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.trio.replica import ReplicaStream, replica_stream
from tailrace.wire.replica_messages import LeaderSeqs, Producers, Replica
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.blocks import cut_above
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.replica_apply import (
    apply_batch,
    apply_block,
    apply_producers,
    apply_sinks,
    expect_producers,
    follow_log,
    settle_producers,
)
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.peers import host_of
from tailrace_server.upkeep.rollback import roll_back
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# Under way to a replica at most: what a fast network holds in the time that an fsync takes.
WINDOW_BYTES = 16 * 1024 * 1024
# Of one publish, with room for what merging has put beside it in a block.
GATHERED_BYTES_MAX = 64 * 1024 * 1024
# Where memory is full a block waits for room, but not for ever: what may be flushed is told behind it, by its leader.
ROOM_SECONDS_MAX = 1.0
# What has arrived is handled for so long, then others have the loop: a read of 1 MiB may tell of ten thousand
# partitions, which takes 0.15 s of the processor.
TURN_SECONDS = 0.002


class ReplicaPuller:
    """Takes one feed from one node. ``run`` may be called once."""

    def __init__(
        self,
        node: LocalNode,
        leadership: Leadership,
        feed: Feed,
        address: Address,
        replica: Replica,
        *,
        state: str = "leader",
        until: Mapping[int, int] | None = None,
        on_snapshot: Callable[[], None] | None = None,
        on_acknowledged: Callable[[], None] | None = None,
    ) -> None:
        """``state``: what the other node has to be. ``until``: only these partitions, up to these seqs; then nothing
        is acknowledged, and a partition that the other node cannot read is left out, in ``failed``. ``on_snapshot`` is
        called each time that all is held which the other one had: at the ends of snapshots. ``on_acknowledged`` is
        called after each acknowledgement.
        """
        self.feed = feed
        self.acknowledged: dict[int, int] = {}  # by partition, on the other one's newest branch
        self.failed: dict[int, StreamFailed] = {}  # by partition: what the other one could not stream, last time
        self._node = node
        self._leadership = leadership
        self._address = address
        self._replica = replica
        self._state = state
        self._until = until
        self._on_snapshot = on_snapshot
        self._on_acknowledged = on_acknowledged
        self._stopped = False
        self._scope = trio.CancelScope()
        self.ended = trio.Event()
        self._stream: ReplicaStream | None = None
        self._logs: dict[int, FailoverLog] = {}
        self._durable_logs: dict[int, FailoverLog] = {}  # of our own partitions, as far as they are on the disk
        self._fillings: dict[int, SnapshotSegment] = {}
        self._published: dict[int, list[Block]] = {}  # what has come of publishes, by partition

    @property
    def _partitions(self) -> list[Partition]:
        """Those that are taken: not the ones that cannot be read here, of which status tells."""
        if self._until is None:
            group = self._leadership.group
            return [partition for partition in group.of_feed(self.feed) if partition.damage is None]
        return [self.feed.partitions[number] for number in sorted(self._until)]

    def stop(self) -> None:
        """Nothing more is taken, and nothing acknowledged; ``ended`` is set once nothing is under way any more."""
        self._stopped = True
        self._stream = None
        self._scope.cancel()
        for partition in self._partitions:
            partition.report_durable(None)

    async def run(self) -> None:
        """Takes what comes, until ``until`` is reached, or until ``stop``.

        Raises Forbidden if the other node is of another cluster, Unreachable and NotLeader where it is not, or not any
        more, what it has to be, BadBlock and ProtocolError for what does not fit, NoSpace, NotDurable, UnknownFeed if
        it has no such feed.
        """
        try:
            with self._scope:
                stream = self._open()
                async with stream:
                    self._begun(stream)
                    await self._take_all(stream)
        finally:
            self.stop()
            for filling in self._fillings.values():
                filling.abandon()
            self.ended.set()

    def _begun(self, stream: ReplicaStream) -> None:
        if self._stopped:
            return
        told, own = bytes.fromhex(stream.peer.cluster_id), self._node.identity.cluster_id
        why = why_other_cluster(own, str(self._address), told)
        if why:
            raise Forbidden(f"{why}: nothing is taken")
        self._stream = stream
        if self._until is None:
            for partition in self._partitions:
                partition.report_durable(partial(self._acknowledge, partition))

    def _open(self) -> ReplicaStream:
        node = self._node
        at = dict(map(self._position, self._partitions))
        positions = Positions(node.identity.cluster_id, self.feed.info.feed_id, at)
        return replica_stream(
            self._address,
            self.feed.info.name,
            positions,
            self._replica,
            host=host_of(node),
            state=self._state,
            partitions=frozenset(positions),
            until=self._until,
            window_bytes=WINDOW_BYTES,
            timeout_s=node.config.replication.step_timeout_s,
        )

    def _position(self, partition: Partition) -> tuple[int, Position]:
        """Where a replica stands: between snapshots, always. What it filled from 0 it may go on filling.

        The log of an empty partition names no history that a node without a vote would have to keep.
        """
        filling = partition.purge_seq if partition.purge_seq > partition.high_seq else None
        log = partition.log if partition.high_seq or self._replica.votes else FailoverLog()
        return partition.id, Position.at(log, partition.high_seq, purge_seq=filling)

    async def _take_all(self, stream: ReplicaStream) -> None:
        monotonic, turn_ends_at = self._node.clock.monotonic, None
        async for event in stream:
            if self._stopped:
                return
            if turn_ends_at is None:  # what was waited for has come
                turn_ends_at = monotonic() + TURN_SECONDS
            match event:
                case Mutations():
                    await self._take(event)
                case LeaderSeqs():
                    self.feed.partitions[event.partition].set_leader_seqs(event.durable_seq, event.quorum_seq)
                    if self._node.storage.memory.is_full:
                        self._node.storage.flusher.wake()
                case StreamFailed():
                    self._stream_failed(stream, event)
                case SnapshotStart():
                    await self._snapshot_started(event)
                case SnapshotEnd():
                    await self._snapshot_ended(self.feed.partitions[event.partition])
                case Agreed():
                    self._agreed(event, self.feed.partitions[event.partition])
                case Producers():
                    self._told_producers(event, self.feed.partitions[event.partition])
                case SinksTold():
                    apply_sinks(
                        self.feed.partitions[event.partition], event.value, event.seq, self._node.storage.journal
                    )
                case LeaderCheck():
                    # A promise of a higher term would have stopped this.
                    stream.confirm(event.number)
                case Rollback():
                    await self._roll_back(stream, event)
            if not stream.has_event():
                turn_ends_at = None
                await self._caught_up()
                if self._has_fetched():
                    return
            elif monotonic() >= turn_ends_at:
                await trio.lowlevel.checkpoint()
                turn_ends_at = monotonic() + TURN_SECONDS

    def _has_fetched(self) -> bool:
        """Whether all is here that can be fetched. The stream itself says so only if no partition has failed."""
        until = self._until
        if until is None or not self.failed:
            return False
        left = (partition for partition in self._partitions if partition.id not in self.failed)
        return all(partition.id in self._logs and partition.high_seq >= until[partition.id] for partition in left)

    async def _caught_up(self) -> None:
        """All that has arrived is handled: it is committed, and what was gathered for segments is written."""
        self._node.connections.turn_ended(self)
        for filling in self._fillings.values():
            await filling.flow()

    def _agreed(self, event: Agreed, partition: Partition) -> None:
        self._logs[event.partition] = event.log
        # What another one has told of blocks that have not come is not what follows now.
        settle_producers(partition, self._node.storage.journal, self._node.clock.monotonic())
        self._follow_log(partition)
        if self._until is not None:
            # Nobody leads who would say so: what is fetched is on the disk of the one who has it.
            partition.set_leader_seqs(self._until[partition.id], 0)
        if event.high_seq == partition.high_seq and self._on_snapshot is not None:
            self._on_snapshot()  # there is nothing to come

    def _stream_failed(self, stream: ReplicaStream, event: StreamFailed) -> None:
        """The other node cannot stream a partition on: the others go on, and this one is asked for again."""
        partition = self.feed.partitions[event.partition]
        if self._until is not None and event.reason is not EndReason.ERROR:
            raise StreamEnded(f"partition {partition.id}: {event.message}", reason=event.reason)
        self._forget_gathered(partition)
        if self.failed.get(partition.id) != event:
            log.warning(
                "partition %s of feed %s cannot be copied from %s: %s",
                *(partition.id, self.feed.info.name, self._address, event.message),
            )
            self.failed[partition.id] = event
            if self._on_acknowledged is not None:
                self._on_acknowledged()
        if self._until is None:
            stream.resume(*self._position(partition))

    def _forget_gathered(self, partition: Partition) -> None:
        """The partition is asked for anew, from where it stands: what was gathered of a run comes again."""
        filling = self._fillings.pop(partition.id, None)
        self._published.pop(partition.id, None)
        if filling is not None:
            filling.abandon()
        self._durable_logs.pop(partition.id, None)
        self.acknowledged.pop(partition.id, None)

    def _told_producers(self, event: Producers, partition: Partition) -> None:
        """Before the blocks that do not tell of theirs; what a crash leaves of these are recognised all the same."""
        node, now = self._node, self._node.clock.monotonic()
        if partition.id in self._fillings or partition.id in self._published:  # all of it is there at once, or nothing
            expect_producers(partition, event.value, event.seq, now)
        else:
            apply_producers(partition, event.value, event.seq, node.storage.journal, now)

    # Blocks

    async def _take(self, event: Mutations) -> None:
        node, partition, block = self._node, self.feed.partitions[event.partition], event.block
        if block.header.first_seq < event.first_seq:
            block = cut_above(block, event.first_seq - 1)
        filling = self._fillings.get(partition.id)
        if filling is not None:
            filling.add(block)
            return
        published = self._published.get(partition.id)
        if published is not None:
            self._gather(published, block)
            return
        await self._wait_for_memory()
        if self._stopped:
            return
        apply_block(partition, block, node.storage.journal, node.clock.monotonic())
        self._taken(partition)

    async def _wait_for_memory(self) -> None:
        node = self._node
        if node.storage.memory.must_wait:
            node.connections.turn_ended(self)
            node.storage.flusher.wake()
            with trio.move_on_after(ROOM_SECONDS_MAX):
                await node.storage.memory.room()

    @staticmethod
    def _gather(published: list[Block], block: Block) -> None:
        if sum(other.nbytes for other in published) + block.nbytes > GATHERED_BYTES_MAX:
            raise ProtocolError(f"more than {GATHERED_BYTES_MAX} bytes were published at once")
        published.append(block)

    def _taken(self, partition: Partition) -> None:
        """Something was journaled: it is committed soon, and flushed some day."""
        node = self._node
        self._follow_log(partition)
        node.storage.wrote(partition)
        if self._until is None:
            node.storage.committer.hurry()

    def _follow_log(self, partition: Partition) -> None:
        """Takes over what of the other one's log has begun at or below what is held; acknowledged once durable."""
        node, found = self._node, self._logs[partition.id]
        if partition.log != found:
            follow_log(partition, found, node.storage.journal, node.clock.monotonic())
        if self._durable_logs.get(partition.id) != partition.log:
            node.storage.committer.when_durable(partial(self._log_is_durable, partition, partition.log))

    def _log_is_durable(self, partition: Partition, found: FailoverLog, error: TailraceError | None) -> None:
        if error is None and not self._stopped:
            self._durable_logs[partition.id] = found
            self._acknowledge(partition)

    def _acknowledge(self, partition: Partition) -> None:
        """Tells how far the partition is held, fsynced, where that is on the other one's newest branch."""
        wanted = self._logs.get(partition.id)
        if self._stream is None or self._until is not None or not wanted:
            return
        held = self._durable_logs.get(partition.id)
        seq = partition.durable_seq
        if held is None or held.branch != wanted.branch or seq < wanted[0].base:
            return
        if self.acknowledged.get(partition.id) != seq:
            self.acknowledged[partition.id] = seq
            self._stream.acknowledge(partition.id, wanted.branch, seq)
            if self._on_acknowledged is not None:
                self._on_acknowledged()

    # Snapshots

    async def _snapshot_started(self, event: SnapshotStart) -> None:
        partition = self.feed.partitions[event.partition]
        # Announced again, it is another kind of snapshot, and begins where this one stands.
        self._published.pop(partition.id, None)
        if event.complete or event.published:
            if partition.id in self._fillings:
                raise ProtocolError(f"another snapshot of partition {partition.id} inside of a run")
            if event.published:
                self._published[partition.id] = []
            return
        filling = self._fillings.get(partition.id)
        if filling is not None:  # the same run is announced again, since it ends later now
            filling.extend(event.last_seq, event.purge_seq)
            return
        # It may have begun as a complete one, of which blocks were taken already.
        if event.first_seq > partition.high_seq + 1:
            raise ProtocolError(
                f"a run of partition {partition.id} begins at seq {event.first_seq}, and it stands at "
                f"{partition.high_seq}"
            )
        with trio.CancelScope(shield=True):
            await self._node.storage.flusher.flush_all(partition)
        if not self._stopped:
            self._fillings[partition.id] = SnapshotSegment(
                self._node.storage, partition, partition.high_seq, event.last_seq, event.purge_seq
            )

    async def _snapshot_ended(self, partition: Partition) -> None:
        self.failed.pop(partition.id, None)
        filling = self._fillings.pop(partition.id, None)
        published = self._published.pop(partition.id, None)
        if published:
            await self._wait_for_memory()
            if self._stopped:
                return
            apply_batch(partition, published, self._node.storage.journal, self._node.clock.monotonic())
            self._taken(partition)
        with trio.CancelScope(shield=True):
            if filling is not None:
                await filling.finish(self._logs[partition.id])
        if self._stopped:
            return
        if filling is not None:
            self._follow_log(partition)
            self._acknowledge(partition)
        if self._on_snapshot is not None:
            self._on_snapshot()

    async def _roll_back(self, stream: ReplicaStream, event: Rollback) -> None:
        node, partition = self._node, self.feed.partitions[event.partition]
        self._forget_gathered(partition)
        log.warning(
            "partition %s of feed %s goes back from seq %s to %s: %s has another history above, or keeps less of it",
            partition.id,
            self.feed.info.name,
            partition.high_seq,
            event.seq,
            self._address,
        )
        # What is left of the log are the branches that hold something at or below; the oldest stands for those before.
        left = [entry for entry in partition.log if entry.base < event.seq]
        if event.seq and not left:
            left = list(partition.log[-1:])
        with trio.CancelScope(shield=True):
            point = await roll_back(
                node.storage, partition, event.seq, FailoverLog(left), self._leadership.on_shortfall
            )
        if not self._stopped:
            stream.settle(event, point)
