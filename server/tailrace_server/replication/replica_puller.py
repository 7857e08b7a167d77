"""Pulls a feed from another node: blocks, runs, logs, rollbacks. For following and for promotions.

    STREAM_OK       ──> the leader's log; its entries are adopted when the rows reach their bases
    complete snapshot   producers, blocks ──> journal, tree           ──fsync──> acknowledged
    a publish           blocks, last batches ──> one record of the journal   ──fsync──> acknowledged
    a run               blocks ──> a segment of its own, installed at its end    ──> acknowledged
    a pushed segment    parts ──> a file, installed in the chain (pushed_segments.py)    ──> acknowledged
    ROLLBACK        ──> the rows above it are removed; the stream goes on from there
    far behind      ──> the leader's segments are copied first (far_partitions.py), while the others stream
    falls behind    ──> its stream is given up, and the leader's segments are copied (lagging_partitions.py)

``stop`` ends it at once. After that it changes and acknowledges nothing, except that ``run`` finishes a segment or a
rollback that is being installed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.consuming.events import (
    Agreed,
    Event,
    Mutations,
    OfNoPartition,
    ReplicaEvent,
    Rollback,
    SnapshotEnd,
    SnapshotStart,
    StreamFailed,
)
from tailrace.errors import Retryable, StreamEnded, TailraceError, UnknownFeed
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.trio.replica import CopyOptions, ReplicaStream
from tailrace.wire.push_messages import SegmentAck, SegmentAnswer, SegmentOffered, SegmentTransit
from tailrace.wire.replica_messages import LeaderSeqs
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.replica_apply import (
    settle_producers,
)
from tailrace_server.replication.far_partitions import FarPartitions
from tailrace_server.replication.feed_tasks import FeedTasks
from tailrace_server.replication.lagging_partitions import LaggingPartitions
from tailrace_server.replication.pulled_rows import PulledRows
from tailrace_server.replication.pulled_snapshots import PulledSnapshots
from tailrace_server.replication.pushed_partitions import PushedPartitions
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.replication.replica_acknowledgements import ReplicaAcknowledgements
from tailrace_server.replication.unreadable import unreadable_segments
from tailrace_server.upkeep.rollback import roll_back_to_common

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode
    from tailrace_server.replication.pulled_node import PulledNode

log = logging.getLogger("tailrace.server")

# The seconds that events are handled before others have the loop. A read of 1 MiB may be about ten thousand partitions,
# which takes 0.15 s of the processor.
TURN_SECONDS = 0.002


class ReplicaPuller:
    """Pulls one feed from one node, on the connection of a `PulledNode`. ``begin`` may be called once."""

    def __init__(
        self,
        node: LocalNode,
        leadership: Leadership,
        feed: Feed,
        pulled: PulledNode,
        *,
        until: Mapping[int, int] | None = None,
        on_snapshot: Callable[[], None] | None = None,
        on_acknowledged: Callable[[], None] | None = None,
        on_end: Callable[[UnknownFeed | None], None] | None = None,
    ) -> None:
        """Prepares the pull.

        Args:
            node: this node.
            leadership: that of the group whose partitions are pulled.
            feed: the feed, of which the partitions of the group are pulled.
            pulled: the other node.
            until: only these partitions, up to these seqs. Then nothing is acknowledged, and a partition that the
                other node cannot read is left out, in ``failed``.
            on_snapshot: called at the ends of snapshots, when this node holds all rows that the other node had.
            on_acknowledged: called after each acknowledgement.
            on_end: called if the other node does not know the feed, and when ``until`` is reached (None).
        """
        self.feed = feed
        self.failed: dict[int, StreamFailed] = {}  # by partition: the other node's last failure to stream it
        self.handled = 0  # events
        self._node = node
        self._leadership = leadership
        self._pulled = pulled
        self._address = pulled.address
        self._replica = pulled.replica
        self._until = until
        self._on_snapshot = on_snapshot
        self._on_acknowledged = on_acknowledged
        self._on_end = on_end
        self._acknowledgements = ReplicaAcknowledgements(node, on_acknowledged)
        self._is_left = False
        self._tasks = FeedTasks(pulled, lambda: self._stopped, self._end, self._abandon)
        self._is_taking = False  # whether a task handles events
        self._stream: ReplicaStream | None = None
        self._snapshots = PulledSnapshots(node, lambda: self._stopped, self._turn_ended, self._taken)
        segments = PushedSegments(node, leadership, feed)
        self._pushed = PushedPartitions(
            segments, node.storage.receive_failures, self._answer_push, self._tasks.start, self._failed
        )
        self._roll_back_to = partial(roll_back_to_common, node.storage, on_shortfall=leadership.on_shortfall)
        self._far = FarPartitions(
            node,
            feed,
            self._address,
            pulled.state,
            self._replica if until is None else None,
            self._roll_back_to,
            self._apply,
            lambda: self._stopped,
            self._release,
            self._tasks.start,
            lambda: pulled.link.peer,
            follows=until is None,
        )
        self._lagging = LaggingPartitions(node, feed, self._address, self._far, self._map, is_on=until is None)
        self._rows = PulledRows(node, feed, self._snapshots, self._pushed, self._lagging, self._acknowledgements)
        self._unreadable: list[Partition] = []  # the streams of these are to be given up for their leader's segments

    @property
    def acknowledged(self) -> Mapping[int, int]:
        """The acknowledged seqs by partition, on the other node's newest branch."""
        return self._acknowledgements.seqs

    @property
    def _partitions(self) -> list[Partition]:
        """The partitions that are pulled."""
        if self._until is None:
            return list(self._leadership.group.of_feed(self.feed))
        return [self.feed.partitions[number] for number in sorted(self._until)]

    @property
    def _stopped(self) -> bool:
        """Whether nothing may be changed or acknowledged any more: this feed is left, or the whole node."""
        return self._is_left or self._pulled.is_stopped

    def stop(self) -> None:
        """Stops pulling and acknowledging. A segment or a rollback that is being installed is finished."""
        if self._is_left:
            return
        self._is_left = True
        self._stream = None
        self._acknowledgements.end()
        for partition in self._partitions:
            partition.report_durable(None)
        self._tasks.cancel()

    def leave(self) -> None:
        """Stops, and closes the streams of the feed."""
        stream = self._stream
        self.stop()
        if stream is not None:
            stream.leave()

    def discard(self) -> None:
        """Lets go of the parts of a stopped pull that refer back to it. No task of it may run, or begin.

        The interpreter frees them at once then, and not in a full search for cyclic garbage, which would hold the loop
        for seconds with ten thousand feeds.
        """
        assert self._is_left, "the pull was stopped"
        self._on_snapshot = self._on_acknowledged = self._on_end = None
        self._acknowledgements.discard()
        del self._tasks, self._rows, self._snapshots, self._pushed, self._far, self._lagging, self._roll_back_to

    def _abandon(self) -> None:
        """Drops what is half done, when no task runs any more."""
        self._pushed.interrupt()
        self._snapshots.abandon()

    async def begin(self) -> None:
        """Asks for the feed, with the next `flush` of the link.

        Raises NoSpace, NotDurable, OSError: this node cannot write.
        """
        for partition in self._partitions:
            await self._node.storage.installer.settle(partition)
        partitions = [] if self._stopped else self._partitions
        if not partitions:
            return
        if self._until is None:
            self._acknowledgements.begin(self._acknowledge)
            for partition in partitions:
                partition.report_durable(partial(self._acknowledgements.acknowledge, partition))
        positions = Positions(
            self._node.identity.cluster_id, self.feed.info.feed_id, dict(map(self._position, partitions))
        )
        hold = self._hold if self._far.may_hold else None
        self._stream = self._pulled.link.copy(
            self.feed.info.name, positions, CopyOptions(frozenset(positions), self._until, hold), at_once=False
        )
        self._stream.on_arrival = self._arrived

    def _acknowledge(self, partition: int, branch: bytes, seq: int) -> None:
        if self._stream is not None and not self._stopped:
            self._stream.acknowledge(partition, branch, seq)
            self._node.connections.has_acknowledgements(self._pulled.link)

    def _end(self, error: UnknownFeed | None) -> None:
        """Ends this feed: all is fetched, or the other node does not know it."""
        if not self._stopped:
            self._pulled.end(self)
            if self._on_end is not None:
                self._on_end(error)

    def _arrived(self) -> None:
        """Begins to handle events, unless a task does: there are frames."""
        if not self._is_taking:
            self._is_taking = True
            self._tasks.start(self._take_arrived)

    async def _take_arrived(self) -> None:
        stream = self._stream
        try:
            if stream is not None:
                await self._take_all(stream)
        finally:
            self._is_taking = False

    def _hold(self, told: Sequence[Any]) -> frozenset[int]:
        """Returns the partitions whose segments are copied first, by the other node's map, and begins to copy them."""
        held = self._far.choose(self._partitions, told)
        self._far.begin_chosen()
        return held

    async def _map(self) -> list[Any]:
        """Returns the other node's partition map."""
        assert self._stream is not None, "a stream has told of rows"
        return await self._stream.partition_map()

    def copy_unreadable(self) -> None:
        """Copies the partitions anew that this node cannot read, each now and then, until it can."""
        if self._stopped or self._stream is None:
            return
        for partition in self._partitions:
            if unreadable_segments(self._node, partition) and self._far.is_due_anew(partition):
                self._unreadable.append(partition)
        if self._unreadable:
            self._arrived()  # between two events

    async def _give_up_unreadable(self, stream: ReplicaStream) -> None:
        """Closes the streams of the chosen partitions, and copies their segments. One that has none waits for it."""
        chosen, self._unreadable = self._unreadable, []
        for partition in chosen:
            await self._pushed.end(partition)
            if self._stopped:
                return
            if partition.damage is None:
                if not stream.withdraw(partition.id):
                    continue
                self._forget_gathered(partition)
            self._far.begin_anew(partition)

    def _release(self, partition: Partition) -> None:
        """Asks for the stream of a partition whose segments are here, or could not be copied."""
        self._forget_gathered(partition)  # acknowledgements before this had no stream
        if self._stream is not None:
            self._stream.release(*self._position(partition))

    def _position(self, partition: Partition) -> tuple[int, Position]:
        """Returns the position of this node, which is always between snapshots. A copy that was begun at 0 may go on.

        The log of an empty partition names no history that a node without a vote would have to keep.
        """
        filling = partition.purge_seq if partition.purge_seq > partition.high_seq else None
        log = partition.log if partition.high_seq or self._replica.votes else FailoverLog()
        return partition.id, Position.at(log, partition.high_seq, purge_seq=filling)

    async def _take_all(self, stream: ReplicaStream) -> None:
        """Handles the events that have arrived. Raises the errors that end the feed or the connection."""
        monotonic, pulled = self._node.clock.monotonic, self._pulled
        turn_ends_at = monotonic() + TURN_SECONDS
        while not (self._is_left or pulled.is_stopped):
            if self._unreadable:
                await self._give_up_unreadable(stream)
            event = stream.next_event()
            if event is None:
                await self._caught_up()
                if not self._stopped and self._has_fetched(stream):
                    self._end(None)
                elif not stream.has_event():
                    return
                continue
            await self._take_apart(stream, event)
            if self._lagging.chosen and not self._stopped:
                self._lagging.give_up(stream, self._forget_gathered)
            if monotonic() >= turn_ends_at:
                await trio.lowlevel.checkpoint()
                turn_ends_at = monotonic() + TURN_SECONDS

    async def _take_apart(self, stream: ReplicaStream, event: Event | ReplicaEvent) -> None:
        """Handles an event. An error that is the partition's alone ends its stream, which is asked for again."""
        self.handled += 1
        kind = type(event)  # these come with each write, and a comparison of all types takes longer than their work
        try:
            if kind is SnapshotEnd or kind is SnapshotStart:
                await self._apply(event)
            elif not (kind is Mutations and self._take_now(event)):  # type: ignore[arg-type]
                await self._handle(stream, event)
        except (Retryable, UnknownFeed, StreamEnded, OSError):
            raise
        except Exception as error:
            if isinstance(event, OfNoPartition):
                raise
            await self._failed(self.feed.partitions[event.partition], error)

    async def _failed(self, partition: Partition, error: Exception) -> None:
        """Ends the stream of a partition that cannot go on, and asks for it again. Raises errors of more than that."""
        if self._until is not None or isinstance(error, Retryable | UnknownFeed | StreamEnded | OSError):
            raise error
        if not isinstance(error, TailraceError):  # a bug, as in ``Connections.handle``: the others go on
            log.error(
                "partition %s of feed %s ended by an internal error",
                *(partition.id, self.feed.info.name),
                exc_info=error,
            )
        stream = self._stream
        if stream is not None:
            stream.give_up(partition.id, str(error))
            await self._stream_failed(stream, StreamFailed(partition.id, EndReason.ERROR, str(error)))

    async def _handle(self, stream: ReplicaStream, event: Event | ReplicaEvent) -> None:
        match event:
            case LeaderSeqs():
                self.feed.partitions[event.partition].set_leader_seqs(event.durable_seq, event.quorum_seq)
                self._lagging.told(self.feed.partitions[event.partition], event.durable_seq)
                if self._node.storage.memory.is_full:
                    self._node.storage.flusher.wake()
            case Mutations():
                await self._take(event)
            case StreamFailed():
                await self._stream_failed(stream, event)
            case SegmentOffered() | SegmentTransit():
                await self._rows.take_pushed(event, self.feed.partitions[event.partition])
            case Rollback():
                await self._roll_back(stream, event)
            case _:
                await self._apply(event)

    async def _apply(self, event: Event | ReplicaEvent) -> None:
        """Applies an event of the stream, or one that came ahead of the partition's segments."""
        match event:
            case SnapshotEnd():
                await self._snapshot_ended(self.feed.partitions[event.partition])
            case SnapshotStart():
                if not self._rows.needs_no_start(event):
                    await self._rows.take(event)
            case Mutations():
                await self._take(event)
            case Agreed():
                await self._agreed(event, self.feed.partitions[event.partition])
            case _:
                await self._rows.take(event)

    def _has_fetched(self, stream: ReplicaStream) -> bool:
        """Returns whether all is here that can be fetched. The streams only end by themselves if none has failed."""
        if (until := self._until) is None:
            return False
        if not self.failed:
            return stream.finished
        left = (partition for partition in self._partitions if partition.id not in self.failed)
        return all(
            self._acknowledgements.knows(partition) and partition.high_seq >= until[partition.id] for partition in left
        )

    async def _caught_up(self) -> None:
        """Commits the rows that have arrived, and writes those that were gathered for segments."""
        self._turn_ended()
        await self._snapshots.flow(self._far.holds)

    async def _agreed(self, event: Agreed, partition: Partition) -> None:
        await self._pushed.end(partition)
        if self._stopped:
            return
        # Producers that another leader has announced for blocks that have not come do not hold for the blocks that
        # follow now.
        settle_producers(partition, self._node.storage.journal, self._node.clock.monotonic())
        self._acknowledgements.agreed(partition, event.log)
        if self._until is not None:
            # No leader announces these seqs: the rows that are fetched are on the other node's disk.
            partition.set_leader_seqs(self._until[partition.id], 0)
        elif not event.high_seq:
            # Nor does a leader announce that it has no row at all.
            partition.set_leader_seqs(0, 0)
        if event.high_seq == partition.high_seq:  # nothing is to come
            self.failed.pop(partition.id, None)
            if self._on_snapshot is not None:
                self._on_snapshot()

    async def _snapshot_ended(self, partition: Partition) -> None:
        self.failed.pop(partition.id, None)
        is_installed = self._rows.gathers(partition) and await self._rows.end_snapshot(partition)
        if self._stopped:
            return
        if is_installed:
            self._acknowledgements.adopt(partition)
            self._acknowledgements.acknowledge(partition)
        if self._on_snapshot is not None:
            self._on_snapshot()

    async def _stream_failed(self, stream: ReplicaStream, event: StreamFailed) -> None:
        """Notes that the other node cannot go on with a partition, and asks for it again. The others go on."""
        partition = self.feed.partitions[event.partition]
        if self._until is not None and event.reason not in (EndReason.DAMAGED, EndReason.ERROR):
            raise StreamEnded(f"partition {partition.id}: {event.message}", reason=event.reason)
        if event.reason is EndReason.BEHIND and not self._leadership.in_set:  # it may have to give up rows
            raise StreamEnded(f"partition {partition.id}: {event.message}", reason=event.reason)
        await self._pushed.end(partition)
        if self._stopped:
            return
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
            self._lagging.failed(partition, event.reason, lambda: stream.resume(*self._position(partition)))

    def _forget_gathered(self, partition: Partition) -> None:
        """Drops the blocks gathered for a run: the partition is asked for anew, and they come again."""
        self._snapshots.forget(partition)
        self._lagging.forget(partition)
        self._acknowledgements.forget(partition)

    def _answer_push(self, partition: Partition, answer: SegmentAnswer) -> None:
        if self._stopped or self._stream is None:
            return
        if isinstance(answer, SegmentAck) and not self._pushed.is_transferring(partition):  # all of it is installed
            self.failed.pop(partition.id, None)
            self._acknowledgements.adopt(partition)
            self._acknowledgements.acknowledge(partition)
        self._stream.answer_segment(partition.id, answer)
        self._turn_ended()

    def _take_now(self, event: Mutations) -> bool:
        """Takes a block without a switch of tasks. Returns False if it may have to wait for memory."""
        if self._node.storage.memory.must_wait:
            return False
        self._snapshots.take_now(*self._rows.received(event))
        return True

    async def _take(self, event: Mutations) -> None:
        await self._snapshots.take(*self._rows.received(event))

    def _taken(self, partition: Partition) -> None:
        """Commits journaled rows soon, and flushes them some day."""
        node = self._node
        self._acknowledgements.adopt(partition)
        node.storage.wrote(partition)
        if self._until is None:
            node.storage.committer.hurry()

    def _turn_ended(self) -> None:
        self._node.connections.turn_ended(self)

    async def _roll_back(self, stream: ReplicaStream, event: Rollback) -> None:
        partition = self.feed.partitions[event.partition]
        await self._pushed.end(partition)
        if self._stopped:
            return
        self._forget_gathered(partition)
        log.warning(
            "partition %s of feed %s goes back from seq %s to %s: %s has another history above, or keeps less of it",
            *(partition.id, self.feed.info.name, partition.high_seq, event.seq, self._address),
        )
        with trio.CancelScope(shield=True):
            point = await self._roll_back_to(partition, event.seq)
        if not self._stopped:
            stream.settle(event, point)
