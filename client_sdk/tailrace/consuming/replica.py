"""The streams of a node that copies the partitions of another one. Sans-IO.

They differ from a consumer's (``streams``), because a replica stores a history of its own:

- There is no ring, and no key is read again. A Rollback has no keys; the replica says by `settle` how far it went back.
- Agreed follows each STREAM_OK, before any other event of the stream. LEADER_SEQS, PRODUCERS and SINKS are events.
- Of a feed in replication mode ``segment`` no snapshots come. SEGMENT_OFFER and SEGMENT_TRANSIT are events, which the
  replica answers by `answer_segment`.
- A node that goes on to read a snapshot from a segment announces it again. It then begins at the replica's seq. Inside
  a run the replica has no consistent state, and half of a run is of no use, so there this ends the whole stream.
- No stream is asked for again without the replica. If an end concerns one partition only, the event is `StreamFailed`,
  and the partition waits until `resume` names its position: the replica knows its own disk better than this
  conversation. Any other end but ``end_reached`` ends the whole stream, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import random

from tailrace.consuming.events import Agreed, Rollback, SnapshotStart, StreamFailed
from tailrace.consuming.partition import ConsumedPartition, ConsumerState
from tailrace.consuming.rollbacks import Queued
from tailrace.consuming.streams import HANDLERS, Handler, PartitionStreams
from tailrace.consuming.subscription import Subscription
from tailrace.errors import NotLeader, ProtocolError, StreamEnded, TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace.model import EndReason
from tailrace.model.position import Position
from tailrace.wire.opcodes import Opcode
from tailrace.wire.push_messages import SegmentAnswer, SegmentOffered, SegmentTransit
from tailrace.wire.replica_messages import LeaderSeqs, Producers, ReplicaAck
from tailrace.wire.stage_messages import SinksTold
from tailrace.wire.stream_messages import StreamEnd, StreamOk

_STREAMING = (ConsumerState.OPEN, ConsumerState.IN_SNAPSHOT)
# Ends that concern one partition only.
_OF_PARTITION = frozenset((EndReason.DAMAGED, EndReason.ERROR, EndReason.TRIMMED, EndReason.PURGED, EndReason.TOO_SLOW))


class ReplicaStreams(PartitionStreams):
    """The streams of a replica's partitions."""

    def __init__(
        self,
        subscription: Subscription,
        clock: Callable[[], float],
        on_stopped: Callable[[], None],
        emit: Callable[[Iterable[Queued]], None],
        jitter: Callable[[], float] = random,
        *,
        has_others: bool = False,
        window_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        """Makes the streams; the arguments are those of `PartitionStreams`."""
        subscription = subscription._replace(by_index=True, on_rollback="follow", ring_rows=0)
        super().__init__(
            subscription, clock, on_stopped, emit, jitter, has_others=has_others, window_bytes=window_bytes
        )
        self._offered: set[int] = set()  # the partitions of which a segment was offered
        self._runs: dict[int, int] = {}  # the partitions inside a run, with the seq before the run
        # Failures by partition since its last complete run. STREAM_OK does not reset the count, because a damaged
        # segment is read up to the damage each time.
        self._failures: dict[int, int] = {}

    def _handler_table(self) -> dict[Opcode, Handler]:
        return _HANDLERS

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> bytes:
        """Returns the frame that acknowledges a seq on the partition's stream; b"" if the stream is not open."""
        consumed = self._partitions.get(partition)
        if consumed is None or consumed.state not in _STREAMING:
            return b""
        return ReplicaAck(partition, branch, seq).encode(consumed.stream_id)

    def answer_segment(self, partition: int, answer: SegmentAnswer) -> bytes:
        """Returns the frame with the replica's answer to an offer or a part; b"" if the stream is not open."""
        consumed = self._partitions.get(partition)
        if consumed is None or consumed.state not in _STREAMING:
            return b""
        return answer.encode(consumed.stream_id)

    def refused(self, stream_id: int, error: TailraceError) -> bool:
        partition = self._by_stream.get(stream_id)
        if partition is None or type(error) is not TailraceError:
            return False
        partition.step(Opcode.ERROR)
        self.emit([self._failed(partition, EndReason.ERROR, str(error))])
        return True

    def resume(self, id: int, position: Position) -> None:
        """Asks again for a partition that has failed, from ``position``, after a pause that grows with each failure."""
        partition = self._partitions[id]
        partition.reset_to(position)
        tries = self._failures[id] = self._failures.get(id, 0) + 1
        self.wait(partition, partition.reason, self.now + backoff_seconds(tries, self._jitter))

    def hold(self, ids: Iterable[int]) -> None:
        """Does not ask for these partitions, of which no stream is open, until `release`."""
        for id in ids:
            partition = self._waiting.pop(id)
            partition.fail(EndReason.CLOSED, "its segments are copied first")

    def withdraw(self, id: int) -> bool:
        """Closes the stream of a partition, until `release`. Returns False, and does nothing, if it is not open."""
        partition = self._partitions[id]
        if partition.state not in _STREAMING:
            return False
        self.close(partition)
        self._runs.pop(id, None)
        partition.wait("", self.now, self.now)
        partition.fail(EndReason.CLOSED, "its segments are copied, because it has fallen behind")
        return True

    def release(self, id: int, position: Position) -> None:
        """Asks for a partition that was held back or withdrawn, from ``position``."""
        partition = self._partitions[id]
        partition.reset_to(position)
        self.wait(partition, partition.reason, self.now)

    def _failed(self, partition: ConsumedPartition, reason: EndReason, message: str) -> Queued:
        """Returns the event of a failed stream. The partition waits for `resume`, as in a rollback for `settle`."""
        self.forget(partition)
        self._runs.pop(partition.id, None)
        partition.fail(reason, message)
        return StreamFailed(partition.id, reason, message), partition.id, None, 0

    def _on_stream_ended(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        end = StreamEnd.decode(body)
        if end.reason in _OF_PARTITION:
            return self._failed(partition, end.reason, end.message)
        self._on_stream_end(partition, body)
        return None

    def try_again(self, partition: ConsumedPartition, reason: str) -> None:
        message = f"partition {partition.id}: {reason}"
        if partition.last_end is EndReason.WRONG_STATE:
            self.fail(NotLeader(message))
        self.fail(StreamEnded(message, reason=partition.last_end or EndReason.ERROR))

    def settle(self, event: Rollback, point: int | None) -> Position | None:
        if point is not None and not 0 <= point <= event.seq:
            raise ValueError(f"partition {event.partition} has to go back to seq {event.seq} or below, not to {point}")
        return super().settle(event, 0 if point is None else point)

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
            self.fail(StreamEnded(message, reason=EndReason.ERROR))
        if event.complete:
            self._runs.pop(partition.id, None)
        else:
            self._runs[partition.id] = position.seq
        return event._replace(first_seq=position.seq + 1), *queued[1:]

    def _on_end(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        self._runs.pop(partition.id, None)
        self._failures.pop(partition.id, None)
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
