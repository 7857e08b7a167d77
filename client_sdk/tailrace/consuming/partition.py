"""One partition as a consumer sees it: its stream's state, and the position that it has reached. Pure.

    WAITING ──request──> REQUESTED ──STREAM_OK──> OPEN <──SNAPSHOT_START / SNAPSHOT_END──> IN_SNAPSHOT
     ^   ^                   │                      │                                          │
     │   └── any end that is not final ─────────────┴──────────────────────────────────────────┘
     │                       └─ROLLBACK, or a STREAM_OK that says the same─┐
     │                                                                     v
     └──all handled── ROLLING_BACK ──GET──> REFETCHING ──GOT────────> ROLLING_BACK
                                   └─STREAM_REQUEST──> MEASURING ──STREAM_OK──┘
    ENDED: the end that was asked for is reached

``TRANSITIONS`` is this drawing as data; what is not in it is an error of the protocol.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tailrace.consuming.events import Event
from tailrace.consuming.refetch import Refetch
from tailrace.consuming.resume import Record, bare_floor, bounds
from tailrace.consuming.ring import Ring, RingChange
from tailrace.errors import ProtocolError
from tailrace.model import EndReason
from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace.model.position import Position
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamOk


class State(enum.Enum):
    """Where a partition's stream is."""

    WAITING = "waiting"
    REQUESTED = "requested"
    OPEN = "open"
    IN_SNAPSHOT = "in snapshot"
    ROLLING_BACK = "rolling back"  # the program has to handle an event before it goes on
    REFETCHING = "refetching"  # keys are being looked up
    MEASURING = "measuring"  # how far the node shows what was looked up
    ENDED = "ended"

    __hash__ = object.__hash__  # members are what they are; the enum's own hash is a call, one for each frame


TRANSITIONS: dict[tuple[State, Opcode], State] = {
    (State.REQUESTED, Opcode.STREAM_OK): State.OPEN,
    (State.REQUESTED, Opcode.ROLLBACK): State.ROLLING_BACK,
    (State.REQUESTED, Opcode.STREAM_END): State.WAITING,
    (State.REQUESTED, Opcode.ERROR): State.WAITING,
    (State.OPEN, Opcode.SNAPSHOT_START): State.IN_SNAPSHOT,
    (State.OPEN, Opcode.SEQ_ADVANCED): State.OPEN,
    (State.OPEN, Opcode.STREAM_END): State.WAITING,
    (State.IN_SNAPSHOT, Opcode.SNAPSHOT_START): State.IN_SNAPSHOT,
    (State.IN_SNAPSHOT, Opcode.BLOCK): State.IN_SNAPSHOT,
    (State.IN_SNAPSHOT, Opcode.SNAPSHOT_END): State.OPEN,
    (State.IN_SNAPSHOT, Opcode.STREAM_END): State.WAITING,
    (State.OPEN, Opcode.LEADER_SEQS): State.OPEN,
    (State.IN_SNAPSHOT, Opcode.LEADER_SEQS): State.IN_SNAPSHOT,
    (State.IN_SNAPSHOT, Opcode.PRODUCERS): State.IN_SNAPSHOT,
    (State.OPEN, Opcode.SINKS): State.OPEN,
    (State.IN_SNAPSHOT, Opcode.SINKS): State.IN_SNAPSHOT,
    (State.REFETCHING, Opcode.GOT): State.ROLLING_BACK,
    (State.REFETCHING, Opcode.ERROR): State.WAITING,
    (State.MEASURING, Opcode.STREAM_OK): State.ROLLING_BACK,
    (State.MEASURING, Opcode.STREAM_END): State.WAITING,
    (State.MEASURING, Opcode.ERROR): State.WAITING,
}


_NOT_AGREED = "nothing is delivered before the stream was agreed to"


class PartitionStatus(NamedTuple):
    """The state of one partition of a consumer.

    Attributes:
        partition: The partition, from 0.
        state: The state of its stream, such as "open" or "waiting".
        reason: Why it is in this state.
        since: When it entered the state, in monotonic seconds.
        next_retry: When the next request is sent, in monotonic seconds; None if none is planned.
        seq: The seq that the consumer has reached.
        lag: The number of seqs between that and the newest seq that it has heard of.
        last_end: Why the node has ended the last stream; None if it has ended none.
    """

    partition: int
    state: str
    reason: str
    since: float
    next_retry: float | None
    seq: int
    lag: int
    last_end: EndReason | None = None


class ConsumedPartition:
    """See the module. ``position`` is None until the first answer where the stream begins "now"."""

    def __init__(
        self,
        id: int,
        position: Position | None,
        ring: Ring,
        end_seq: int | None,
        now: float,
        end_log: FailoverLog | None = None,
    ) -> None:
        self.id = id
        self.position = position
        self.ring = ring
        self.refetch: Refetch | None = None
        self.awaited: Event | None = None  # the event that has to be handled before a rollback goes on
        self.end_seq = end_seq
        self.end_log = end_log  # the history that ``end_seq`` is of, once it is known
        self.state = State.WAITING
        self.stream_id = 0  # of the last request
        self.reason = "not asked for yet"
        self.since = now
        self.retry_at = 0.0
        self.tries = 0
        self.last_end: EndReason | None = None
        self.high_seq = 0
        self.snapshot_after = self.snapshot_last = 0
        self.in_complete_snapshot = False
        # Below this the partition's state is no state: rows above were read again, or half a run was read.
        self.promised_seq = 0
        self._set_log(position.log if position is not None else FailoverLog())

    def _set_log(self, log: FailoverLog) -> None:
        self.log = log  # that the node gave with its answer
        self.branch = log.branch

    def step(self, opcode: Opcode) -> None:
        """Moves on. Raises ProtocolError where ``opcode`` has no place now."""
        following = TRANSITIONS.get((self.state, opcode))
        if following is None:
            raise ProtocolError(f"{opcode.name} for partition {self.id}, whose stream is {self.state.value}")
        self.state = following

    def wait(self, reason: str, now: float, retry_at: float) -> None:
        """The stream is to be asked for (again) at ``retry_at``."""
        self.state = State.WAITING
        self.reason, self.since, self.retry_at = reason, now, retry_at

    def end_has_moved(self, answer: StreamOk) -> bool:
        """Whether the end that is asked for has moved: where it was, there is another history now, or will be.

        What there was up to it, and is still there, ends where the two have parted.
        """
        if self.end_seq is None:
            return False
        before, self.end_log = self.end_log, answer.log
        if before is None:
            return False
        common = common_seq(before, self.end_seq, answer.log, SEQ_MAX)
        end_seq = min(self.end_seq, answer.high_seq) if common is None else common
        moved, self.end_seq = end_seq != self.end_seq, end_seq
        return moved

    def opened(self, answer: StreamOk, now: float) -> None:
        """The node has agreed. The log is stored from the next position on, before anything of it is applied."""
        self._set_log(answer.log)
        self.high_seq = max(self.high_seq, answer.high_seq)
        self.tries, self.reason, self.since = 0, "", now
        if self.position is None:
            first, self.promised_seq = answer.snapshot or (answer.seq, answer.seq)
            self.position = Position.at(answer.log, answer.seq, first, self.promised_seq)
            self.ring.apply(RingChange(first))  # nothing was given between ``first`` and here
        else:
            self.promised_seq = self._move(*bounds(self.record), self.position.purge_seq).snapshot_last

    @property
    def record(self) -> Record:
        """What decisions need to know."""
        assert self.position is not None, _NOT_AGREED
        return Record.of(self.position, self.ring)

    def snapshot_started(self, message: SnapshotStartMessage) -> Position:
        """The position at the start of a snapshot. Its end counts from the first block on: nothing is applied yet."""
        position = self.position
        assert position is not None, _NOT_AGREED
        seq, last_seq = position.seq, message.last_seq
        if message.after_seq > seq or last_seq < max(seq, self.promised_seq):
            raise ProtocolError(
                f"SNAPSHOT_START of partition {self.id} after seq {message.after_seq} to {last_seq}, the consumer is "
                f"at {seq} and needs all up to {max(seq, self.promised_seq)}"
            )
        self.in_complete_snapshot = message.complete
        self.snapshot_after = message.after_seq
        self.snapshot_last = last_seq
        if last_seq > self.high_seq:
            self.high_seq = last_seq
        purge_seq = position.purge_seq if seq else message.purge_seq or None
        if purge_seq is not None:
            # Keys whose deletion has been purged are never told: up to there the ring does not know what has changed.
            self.ring.apply(RingChange(purge_seq))
        return self._move(seq, position.snapshot_first, position.snapshot_last, purge_seq)

    def advanced(self, seq: int) -> Position:
        """The position after a block that ends at ``seq``."""
        position = self.position
        assert position is not None, _NOT_AGREED
        _, _, first, last, purge_seq, _ = position
        end = max(self.promised_seq, self.run_last, purge_seq or 0)
        if seq >= end:
            return self._move(seq, seq, seq, purge_seq)
        # Inside of a run, or of several one after the other: its start stays where it was until its end is reached.
        return self._move(seq, first, max(last, end), purge_seq)

    @property
    def run_last(self) -> int:
        """The end of the run that a block of the present snapshot is in; 0 where each block's end is one."""
        return 0 if self.in_complete_snapshot else self.snapshot_last

    def at_end_of_run(self, seq: int) -> Position:
        """The position between snapshots, at ``seq``."""
        position = self.position
        assert position is not None, _NOT_AGREED
        if seq < max(position.seq, self.promised_seq):
            raise ProtocolError(
                f"partition {self.id} is announced at seq {seq}, and was at {position.seq}, needing {self.promised_seq}"
            )
        purge_seq = position.purge_seq
        if purge_seq is not None and seq < purge_seq:  # a first fill: rows are missing whose deletion is further up
            return self._move(seq, position.snapshot_first, max(position.snapshot_last, purge_seq), purge_seq)
        return self._move(seq, seq, seq, purge_seq)

    def passed_over(self, seq: int) -> tuple[int, Position]:
        """The seq before, and the position after all up to ``seq`` that concerns nobody here."""
        assert self.position is not None, _NOT_AGREED
        return self.position.seq, self.at_end_of_run(seq)

    def stands_at(self, position: Position) -> None:
        """The program says where it stands, between snapshots: it did not keep the part of a run that it was given."""
        self.position, self.promised_seq = position, 0
        self._set_log(position.log)
        self.ring.clear()
        self.ring.apply(RingChange(bare_floor(position)))

    def goes_back(self, seq: int, last: int, log: FailoverLog) -> Position:
        """The position at ``seq`` of the history that ``log`` tells of; ``last`` is B."""
        position = self.position
        assert position is not None, "a consumer that begins now has nothing to roll back"
        self._set_log(log)
        self.promised_seq = 0
        return self._move(seq, seq, last, position.purge_seq if seq else None)

    def _move(self, seq: int, first: int, last: int, purge_seq: int | None) -> Position:
        if purge_seq is not None and seq >= purge_seq:
            purge_seq = None
        # NamedTuple's own constructor takes twice as long.
        self.position = position = tuple.__new__(Position, (self.branch, seq, first, last, purge_seq, self.log))
        return position

    def status(self) -> PartitionStatus:
        """For people and for ``readyz``."""
        seq = self.position.seq if self.position is not None else 0
        retry = self.retry_at if self.state is State.WAITING else None
        return PartitionStatus(
            self.id, self.state.value, self.reason, self.since, retry, seq, max(self.high_seq - seq, 0), self.last_end
        )
