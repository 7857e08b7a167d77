"""The streams of a node that copies another one's partitions. Sans-IO.

As those of a consumer (``streams``), but for what a store with a history of its own needs:

- No ring, and nothing is read again: a Rollback has no keys, and the replica says by `settle` where it has gone to.
- Agreed comes at every STREAM_OK, before anything else of the stream; LEADER_SEQS, PRODUCERS and SINKS are events
  themselves.
- A snapshot that is announced again, as its rest is read from a segment now, begins where the replica stands: it has
  all up to there. Inside a run it stands nowhere, and half of one is of no use to it: that fails the whole.
- Nothing is asked for a second time by itself. An end that concerns one partition only is a `StreamFailed`, and that
  partition waits until the replica says by `resume` where it stands: what it has on its own disk it knows better than
  this conversation. Any other end but ``end_reached`` fails the whole, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import random

from tailrace.consuming.events import Agreed, Rollback, SnapshotStart, StreamFailed
from tailrace.consuming.partition import ConsumedPartition, State
from tailrace.consuming.rollbacks import Queued
from tailrace.consuming.streams import HANDLERS, Handler, PartitionStreams
from tailrace.consuming.wanted import Wanted
from tailrace.errors import NotLeader, ProtocolError, StreamEnded, TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace.model import EndReason
from tailrace.model.position import Position
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import LeaderSeqs, Producers, ReplicaAck
from tailrace.wire.stage_messages import SinksTold
from tailrace.wire.stream_messages import StreamEnd, StreamOk

_STREAMING = (State.OPEN, State.IN_SNAPSHOT)
# Ends that say nothing of the node's other partitions.
_OF_PARTITION = frozenset((EndReason.ERROR, EndReason.TRIMMED, EndReason.PURGED, EndReason.TOO_SLOW))


class ReplicaStreams(PartitionStreams):
    """See the module."""

    def __init__(
        self,
        wanted: Wanted,
        clock: Callable[[], float],
        handled: dict[int, Position],
        on_stopped: Callable[[], None],
        emit: Callable[[Iterable[Queued]], None],
        jitter: Callable[[], float] = random,
    ) -> None:
        wanted = wanted._replace(by_index=True, on_rollback="follow", ring_rows=0)
        super().__init__(wanted, clock, handled, on_stopped, emit, jitter)
        self._handlers = _HANDLERS
        self._runs: dict[int, int] = {}  # the partitions inside a run, and the seq before it
        # How often a partition has failed since it was last whole. An agreement alone ends no such series: a damaged
        # segment is read up to the damage each time.
        self._failures: dict[int, int] = {}

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> bytes:
        """The frame that says so on the partition's stream; b"" where that is not open."""
        consumed = self._partitions.get(partition)
        if consumed is None or consumed.state not in _STREAMING:
            return b""
        return ReplicaAck(partition, branch, seq).encode(consumed.stream_id)

    def refused(self, stream_id: int, error: TailraceError) -> bool:
        partition = self._by_stream.get(stream_id)
        if partition is None or type(error) is not TailraceError:
            return False
        partition.step(Opcode.ERROR)
        self.emit([self._failed(partition, EndReason.ERROR, str(error))])
        return True

    def resume(self, id: int, position: Position) -> None:
        """Asks for a partition that has failed again, from ``position``, after a pause that grows with each failure."""
        partition = self._partitions[id]
        partition.stands_at(position)
        tries = self._failures[id] = self._failures.get(id, 0) + 1
        self.wait(partition, partition.reason, self.now + backoff_seconds(tries, self._jitter))

    def _failed(self, partition: ConsumedPartition, reason: EndReason, message: str) -> Queued:
        """The event of it. As in a rollback, nothing is asked for before the program has answered."""
        self.stopped(partition)
        self._runs.pop(partition.id, None)
        partition.state, partition.reason, partition.last_end = State.ROLLING_BACK, message, reason
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
            raise ValueError(f"partition {event.partition} was to go back to seq {event.seq} or below, not to {point}")
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
            message = f"a run of partition {partition.id} was announced again at seq {position.seq}, inside of it"
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
        return message, partition.id, None, 0

    def _on_sinks(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        message = SinksTold.decode(body)
        _check_partition(message, partition)
        return message, partition.id, None, 0


def _check_partition(message: LeaderSeqs | Producers | SinksTold, partition: ConsumedPartition) -> None:
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
}
