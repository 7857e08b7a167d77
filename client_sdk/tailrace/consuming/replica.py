"""The streams by which a node copies one feed from another node. Sans-IO: ``replica_session`` hands it the frames.

They differ from a consumer's (``streams``), because a replica stores a history of its own:

- There is no ring, and no key is read again. A Rollback has no keys; the replica says by `settle` how far it went back.
- Agreed follows each STREAM_OK, before any other event of the stream. LEADER_SEQS, PRODUCERS and SINKS are events.
- Of a feed in replication mode ``segment`` no snapshots come. SEGMENT_OFFER and SEGMENT_TRANSIT are events, which the
  replica answers by `answer_segment`.
- A node that goes on to read a snapshot from a segment announces it again. It then begins at the replica's seq. Inside
  a run the replica has no consistent state, and half of a run is of no use, so there the stream fails.
- No stream is asked for again without the replica. If a stream ends or breaks the protocol, the event is
  `StreamFailed`, and the partition waits until `resume` names its position: the replica knows its own disk better than
  this conversation. The other partitions, and the other feeds of the connection, go on.
- If the feed is unknown, `next_event` raises UnknownFeed, and this feed is over. Any other error that it raises ends
  the whole connection: the node does not lead any more, or it stops.
- Frames wait undecoded until `next_event` comes to them. So a replica that is slow with one feed has no decoded rows of
  it in memory.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from random import random
from typing import Any

from tailrace.consuming.events import Agreed, Event, ReplicaEvent, Rollback, SnapshotStart, StreamFailed
from tailrace.consuming.partition import ConsumedPartition, ConsumerState
from tailrace.consuming.replica_connection import ReplicaConnection
from tailrace.consuming.replica_retries import ReplicaRetries
from tailrace.consuming.rollbacks import Queued
from tailrace.consuming.stream_credits import StreamCredits
from tailrace.consuming.streams import HANDLERS, Handler, PartitionStreams
from tailrace.consuming.subscription import Subscription
from tailrace.errors import (
    BadBlock,
    Forbidden,
    NotLeader,
    Overloaded,
    ProtocolError,
    StreamEnded,
    TailraceError,
    UnknownFeed,
)
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.requests.replies import partition_map
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.push_messages import SegmentAnswer, SegmentOffered, SegmentTransit
from tailrace.wire.replica_messages import LeaderSeqs, Producers, ReplicaAck
from tailrace.wire.stage_messages import SinksTold
from tailrace.wire.stream_messages import StreamEnd, StreamOk

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_BLOCK, _LEADER_SEQS, _ERROR = Opcode.BLOCK, Opcode.LEADER_SEQS, Opcode.ERROR

_STREAMING = (ConsumerState.OPEN, ConsumerState.IN_SNAPSHOT)
# Ends that concern the whole node or feed, with the error that they are raised as.
_OF_ALL: dict[EndReason, Callable[[str], TailraceError]] = {
    EndReason.WRONG_STATE: NotLeader,
    EndReason.DRAINING: lambda message: StreamEnded(message, reason=EndReason.DRAINING),
    EndReason.FORBIDDEN: Forbidden,
    EndReason.FEED_DROPPED: UnknownFeed,
}


class ReplicaStreams(PartitionStreams):
    """The streams of one feed's partitions. Other tasks may call everything but `next_event`."""

    def __init__(
        self,
        subscription: Subscription,
        connection: ReplicaConnection[ReplicaStreams],
        clock: Callable[[], float],
        jitter: Callable[[], float] = random,
    ) -> None:
        """Makes the streams; `begin` or the node's partition map names their partitions.

        Args:
            subscription: The feed, its id, the partitions, and the replica's positions.
            connection: The connection that this feed shares with others.
            clock: Returns monotonic seconds.
            jitter: Returns a number from 0 to 1, to spread retries.
        """
        assert subscription.feed_id is not None, "a replica knows the feed's id"
        super().__init__(
            subscription._replace(by_index=True, on_rollback="follow", ring_rows=0),
            clock,
            _ignore,
            self._emit,
            jitter,
        )
        self.feed_id = subscription.feed_id
        self._connection = connection
        self._frames: collections.deque[Frame] = collections.deque()  # not handled yet
        self._leader_seqs: dict[int, Frame] = {}  # by stream: the last LEADER_SEQS of those that wait
        self._events: collections.deque[Queued] = collections.deque()  # that no frame has brought
        self._handing: Queued | None = None  # the event that the replica handles now
        self._map_ids: dict[int, Callable[[list[Any]], None]] = {}  # the requests for the map that are under way
        self._maps: list[Callable[[list[Any]], None]] = []  # those that are not sent yet
        self._credits = StreamCredits(connection)
        self._is_over = False
        self._offered: set[int] = set()  # the partitions of which a segment was offered
        self._runs: dict[int, int] = {}  # the partitions inside a run, with the seq before the run
        self._retry_pauses = ReplicaRetries(jitter)

    def _handler_table(self) -> dict[Opcode, Handler]:
        return _HANDLERS

    # The beginning and the end

    def ask(self) -> None:
        """Asks for the streams. If partitions may have to be held back, the node is asked for its partition map first.

        The feed's streams begin with the next sending of the connection.
        """
        hold, partitions = self._subscription.hold, self._subscription.partitions
        if hold is not None or partitions is None:
            self.ask_map(self._begin_by)
        else:
            self._begin(dict.fromkeys(partitions, 0), {})

    def _begin_by(self, partitions: list[Any]) -> None:
        hold = self._subscription.hold
        self._begin({id: int(found["high_seq"]) for id, found in enumerate(partitions)}, {})
        if hold is not None:
            self.hold(hold(partitions))

    def _begin(self, high_seqs: dict[int, int], logs: dict[int, FailoverLog]) -> None:
        self.begin(high_seqs, logs, {})
        self._connection.is_due(self, None)

    def discard(self) -> None:
        """Lets go of the parts that refer back to these streams, whose connection has ended. Nothing may use them."""
        del self.emit, self.rollbacks, self.catch_up

    def leave(self) -> None:
        """Ends all streams. No event comes any more."""
        self._is_over = True
        for partition in list(self._by_stream.values()):
            self.close(partition)
        for id in self._map_ids:
            self._connection.forget(id)
        self._map_ids.clear()
        self._maps.clear()
        self._waiting.clear()
        for frame in self._frames:
            if frame.opcode is _BLOCK:
                self._connection.consumed(len(frame.body))
        self._frames.clear()
        self._credits.forget()
        self._leader_seqs.clear()
        self._events.clear()
        self._hand_over()
        self._connection.is_due(self, None)

    @property
    def finished(self) -> bool:
        """True if every partition has reached its end and every event was handed out."""
        return not self._events and not self._frames and self.ended

    # Events

    def arrived(self, frame: Frame) -> None:
        """Takes a frame of the feed; `next_event` handles it.

        Blocks that wait are bounded by the window. Of a stream's LEADER_SEQS only the last one waits, in the place of
        the first: they grow, and may be ahead of the blocks anyway.
        """
        if not self._is_over:
            if frame.opcode is _LEADER_SEQS:
                waits = frame.id in self._leader_seqs
                self._leader_seqs[frame.id] = frame
                if waits:
                    return
            self._frames.append(frame)
        elif frame.opcode is _BLOCK:
            self._connection.consumed(len(frame.body))

    @property
    def has_event(self) -> bool:
        """True if `next_event` may have an event: frames wait."""
        return bool(self._frames or self._events)

    def next_event(self) -> Event | ReplicaEvent | None:
        """Returns the next event; None if none has arrived. The event before it counts as handled from now on.

        Raises:
            UnknownFeed: The node does not have the feed; the other feeds go on.
            NotLeader, StreamEnded, Forbidden, TailraceError: The whole connection is of no use any more.
        """
        if self._handing is not None:
            self._hand_over()
        while self._events or self._frames:
            queued = self._events.popleft() if self._events else self._take_frame()
            if queued is not None:
                self._handing = queued
                return queued[0]  # type: ignore[return-value]
        if self._credits.uncredited_bytes >= max(self._connection.stream_credit_bytes, 1):
            self._credits.send()
        return None

    def _take_frame(self) -> Queued | None:
        frame = self._frames.popleft()
        if frame.opcode is _LEADER_SEQS:
            frame = self._leader_seqs.pop(frame.id)
        queued = self.receive(frame)
        if self._dropped_bytes:
            self._credits.consumed(frame.id, self.take_dropped_bytes())
        return queued

    def _hand_over(self) -> None:
        """Notes that the last event was handled."""
        if self._handing is None:
            return
        event, partition, _, nbytes = self._handing
        self._handing = None
        if nbytes:
            self._credits.consumed(self._partitions[partition].stream_id, nbytes)
        if self.rollbacks.under_way:
            self.rollbacks.handled(partition, event)

    def _emit(self, queued: Iterable[Queued]) -> None:
        self._events.extend(queued)

    def receive(self, frame: Frame) -> Queued | None:
        """Handles a frame. A stream that breaks the protocol fails, and the others go on."""
        if frame.id in self._map_ids:
            self._on_map(frame)
            return None
        if frame.opcode is _ERROR:
            return self._on_refusal(frame)
        partition = self._by_stream.get(frame.id)
        try:
            return super().receive(frame)
        except (ProtocolError, BadBlock) as error:
            if partition is None or self.failure is not None:
                raise
            if frame.opcode is _BLOCK:
                self._dropped_bytes += len(frame.body)
            return self._broken(partition, EndReason.ERROR, str(error))

    def _on_refusal(self, frame: Frame) -> Queued | None:
        error, partition = decode_error(frame.body), self._by_stream.get(frame.id)
        if partition is None:
            return None
        if type(error) is not TailraceError and not isinstance(error, Overloaded):
            self.fail(error)
        partition.step(Opcode.ERROR)
        return self._failed(partition, EndReason.ERROR, str(error))

    # The partition map

    def ask_map(self, told: Callable[[list[Any]], None]) -> None:
        """Asks for the node's partition map; ``told`` is called with its ``partitions`` once `next_event` has them."""
        self._maps.append(told)
        self._connection.is_due(self, None)

    def _on_map(self, frame: Frame) -> None:
        told = self._map_ids.pop(frame.id)
        self._connection.forget(frame.id)
        if frame.opcode is _ERROR:
            self.fail(decode_error(frame.body))
        value = decode_json(frame.body, "RESULT")
        feed_id, _, _ = partition_map(value)
        if feed_id != self.feed_id:
            self.fail(UnknownFeed(f"feed {self._subscription.feed!r} has another id on this node: {feed_id.hex()}"))
        told(value["partitions"])

    # Requests

    def frames_to_send(self) -> list[bytes]:
        """Returns the frames that are due: requests, and those that close streams."""
        maps, self._maps = self._maps, []
        return [*map(self._request_map, maps), *self.data_to_send(self.feed_id)]

    def _request_map(self, told: Callable[[list[Any]], None]) -> bytes:
        id = self._connection.new_id(self)
        self._map_ids[id] = told
        return encode_json(Opcode.PARTITIONS, {"name": self._subscription.feed, "replica": True}, id)

    def register(self, partition: ConsumedPartition) -> int:
        stream_id = self._connection.new_id(self)
        self._by_stream[stream_id] = partition
        return stream_id

    def close(self, partition: ConsumedPartition) -> None:
        super().close(partition)
        self._connection.is_due(self, None)

    def forget(self, partition: ConsumedPartition) -> None:
        if self._by_stream.pop(partition.stream_id, None) is not None:
            self._connection.forget(partition.stream_id)

    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None:
        super().wait(partition, reason, retry_at)
        self._connection.is_due(self, retry_at)

    def acknowledge(self, id: int, branch: bytes, seq: int) -> None:
        """Queues an acknowledgement, if the partition's stream is open: the replica has fsynced up to ``seq``."""
        if self._is_open(id):
            self._connection.send(ReplicaAck(id, branch, seq).encode(self._partitions[id].stream_id))

    def answer_segment(self, id: int, answer: SegmentAnswer) -> None:
        """Queues the replica's answer to an offer or a part of a segment, if the partition's stream is open."""
        if self._is_open(id):
            self._connection.send(answer.encode(self._partitions[id].stream_id))

    def _is_open(self, id: int) -> bool:
        return not self._is_over and id in self._partitions and self._partitions[id].state in _STREAMING

    def resume(self, id: int, position: Position) -> None:
        """Asks again for a partition that has failed, from ``position``, after a pause (`ReplicaRetries`)."""
        partition = self._partitions[id]
        partition.reset_to(position)
        pause_s = self._retry_pauses.failed(id, self._connection.retries)
        self.wait(partition, partition.reason, self.now + pause_s)

    def hold(self, ids: Iterable[int]) -> None:
        """Does not ask for these partitions, of which no stream is open, until `release`."""
        for id in ids:
            partition = self._waiting.pop(id)
            partition.fail(EndReason.CLOSED, "its segments are copied first")

    def withdraw(self, id: int) -> bool:
        """Closes the stream of a partition, until `release` or `resume`. Returns False if it is not open.

        No event of the closed stream comes any more. The next event of the partition is an Agreed, Rollback or
        StreamFailed.
        """
        partition = self._partitions[id]
        if not self._is_open(id):
            return False
        self._close_as_failed(partition, EndReason.CLOSED, "its segments are copied, because it has fallen behind")
        return True

    def give_up(self, id: int, reason: str) -> None:
        """Closes the stream of a partition in any state, until `resume`: the replica cannot use its events."""
        self._close_as_failed(self._partitions[id], EndReason.ERROR, reason)

    def release(self, id: int, position: Position) -> None:
        """Asks for a partition that was held back or withdrawn, from ``position``."""
        partition = self._partitions[id]
        partition.reset_to(position)
        self.wait(partition, partition.reason, self.now)

    def settle(self, event: Rollback, point: int | None) -> Position | None:
        """Notes that the replica has gone back to ``point``, at or below the ``seq`` of ``event``; None: to 0."""
        if point is not None and not 0 <= point <= event.seq:
            raise ValueError(f"partition {event.partition} has to go back to seq {event.seq} or below, not to {point}")
        return self.rollbacks.settle(event, 0 if point is None else point)

    # Failures

    def _broken(self, partition: ConsumedPartition, reason: EndReason, message: str) -> Queued:
        """Closes a stream that cannot go on. Returns the event."""
        self._close_as_failed(partition, reason, message)
        return StreamFailed(partition.id, reason, message), partition.id, None, 0

    def _close_as_failed(self, partition: ConsumedPartition, reason: EndReason, message: str) -> None:
        if partition.stream_id in self._by_stream:
            self.close(partition)
        self._runs.pop(partition.id, None)
        self.rollbacks.abandon(partition)
        partition.wait("", self.now, self.now)
        partition.fail(reason, message)

    def _failed(self, partition: ConsumedPartition, reason: EndReason, message: str) -> Queued:
        """Returns the event of a stream that the node has ended. The partition waits for `resume`."""
        self.forget(partition)
        self._runs.pop(partition.id, None)
        partition.fail(reason, message)
        return StreamFailed(partition.id, reason, message), partition.id, None, 0

    def _on_stream_ended(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        end = StreamEnd.decode(body)
        if end.reason is EndReason.END_REACHED:
            self.forget(partition)
            self._end_reached(partition, end.message)
            return None
        if end.reason in _OF_ALL:
            self.fail(_OF_ALL[end.reason](f"partition {partition.id}: {end.message}"))
        return self._failed(partition, end.reason, end.message)

    def try_again(self, partition: ConsumedPartition, reason: str) -> None:
        self._emit([self._broken(partition, partition.last_end or EndReason.ERROR, reason)])

    # Frames

    def _on_agreed(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        rollback = self._on_stream_ok(partition, body)
        if rollback is not None:
            return rollback
        return Agreed(partition.id, partition.log, StreamOk.decode(body).high_seq), partition.id, None, 0

    def _on_start(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        queued = self._on_snapshot_start(partition, body)
        if queued is None:
            return None
        event, position = queued[0], partition.position
        assert isinstance(event, SnapshotStart)
        assert position is not None
        if position.seq > self._runs.get(partition.id, position.seq):
            message = f"a run of partition {partition.id} was announced again at seq {position.seq}, inside the run"
            return self._broken(partition, EndReason.ERROR, message)
        if event.complete:
            self._runs.pop(partition.id, None)
        else:
            self._runs[partition.id] = position.seq
        return event._replace(first_seq=position.seq + 1), *queued[1:]

    def _on_end(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        self._runs.pop(partition.id, None)
        self._retry_pauses.completed(partition.id)
        return self._on_snapshot_end(partition, body)

    def _on_leader_seqs(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        message = LeaderSeqs.decode(body)
        _check_partition(message, partition)
        return message, partition.id, None, 0

    def _on_producers(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        message = Producers.decode(body)
        _check_partition(message, partition)
        if partition.state is ConsumerState.OPEN and partition.id not in self._offered:
            raise ProtocolError(
                f"PRODUCERS for partition {partition.id}, whose stream is open: they come in a snapshot, or for an "
                "offered segment"
            )
        return message, partition.id, None, 0

    def _on_sinks(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        message = SinksTold.decode(body)
        _check_partition(message, partition)
        return message, partition.id, None, 0

    def _on_offer(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        message = SegmentOffered.decode(body)
        _check_partition(message, partition)
        self._offered.add(partition.id)
        return message, partition.id, None, 0

    def _on_transit(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        return SegmentTransit.decode(partition.id, body), partition.id, None, 0


def _ignore() -> None:
    """Takes the news that a stream has stopped, which only barriers need."""


def _check_partition(
    message: LeaderSeqs | Producers | SinksTold | SegmentOffered, partition: ConsumedPartition
) -> None:
    if message.partition != partition.id:
        raise ProtocolError(
            f"{type(message).__name__} of partition {message.partition} on the stream of {partition.id}"
        )


_HANDLERS: dict[Opcode, Handler] = {
    **HANDLERS,
    Opcode.STREAM_OK: ReplicaStreams._on_agreed,  # type: ignore[dict-item]
    Opcode.SNAPSHOT_START: ReplicaStreams._on_start,  # type: ignore[dict-item]
    Opcode.SNAPSHOT_END: ReplicaStreams._on_end,  # type: ignore[dict-item]
    Opcode.STREAM_END: ReplicaStreams._on_stream_ended,  # type: ignore[dict-item]
    Opcode.LEADER_SEQS: ReplicaStreams._on_leader_seqs,  # type: ignore[dict-item]
    Opcode.PRODUCERS: ReplicaStreams._on_producers,  # type: ignore[dict-item]
    Opcode.SINKS: ReplicaStreams._on_sinks,  # type: ignore[dict-item]
    Opcode.SEGMENT_OFFER: ReplicaStreams._on_offer,  # type: ignore[dict-item]
    Opcode.SEGMENT_TRANSIT: ReplicaStreams._on_transit,  # type: ignore[dict-item]
}
