"""One partition of a consumer: the state of its stream, its position and its ring. Pure.

    WAITING ──REQUEST──> REQUESTED ──STREAM_OK──> OPEN <──SNAPSHOT_START / SNAPSHOT_END──> IN_SNAPSHOT
     ^   ^                   │                      │                                          │
     │   └── any end that is not final ─────────────┴──────────────────────────────────────────┘
     │                       └─ROLLBACK, or a STREAM_OK that shows that one is due─┐
     │                                                                             v
     └──all handled── ROLLING_BACK ──LOOK_UP──> REFETCHING ──GOT────────────> ROLLING_BACK
                                   └─MEASURE──> MEASURING ──STREAM_OK────────┘
    WAITING ──COPY──> COPYING ──WAIT──> WAITING: it was far behind, and has read segments (``catch_up``)
    WAITING ──its rows are gone──> ROLLING_BACK, if the consumer begins anew then
    ENDED: the partition has reached the end that was asked for, or its rows are gone

``TRANSITIONS`` holds this drawing as data. Only this file sets the fields of a `ConsumedPartition`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from tailrace.consuming.resume import ResumeState, bounds, floor_without_ring
from tailrace.consuming.ring import Ring, RingChange
from tailrace.errors import ProtocolError
from tailrace.model import EndReason, StreamState
from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace.model.position import Position
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamOk

if TYPE_CHECKING:
    from tailrace.block import Block


class ConsumerState(enum.Enum):
    """The state of a partition's stream, as the consumer sees it."""

    WAITING = "waiting"
    REQUESTED = "requested"
    OPEN = "open"
    IN_SNAPSHOT = "in snapshot"
    COPYING = "copying segments"  # it catches up by segments, and has no stream
    ROLLING_BACK = "rolling back"  # the program has to handle an event first
    REFETCHING = "refetching"  # the node looks up keys
    MEASURING = "measuring"  # the node is asked which seq it shows, after the last look-up
    ENDED = "ended"

    __hash__ = object.__hash__  # the enum's own hash is a Python call, and there is one for each frame


class Step(enum.Enum):
    """A step of the consumer itself. The steps of the node are the opcodes of its frames."""

    REQUEST = "asks for the stream"
    COPY = "catches up by segments"
    ROLL_BACK = "begins a rollback"
    LOOK_UP = "looks up keys"
    MEASURE = "asks which seq the node shows"
    WAIT = "waits before it asks for the stream again"
    END = "reaches its end"
    FAIL = "hands a failed stream to the replica"

    __hash__ = object.__hash__


_NOT_ENDED = tuple(state for state in ConsumerState if state is not ConsumerState.ENDED)

TRANSITIONS: dict[tuple[ConsumerState, Opcode | Step], ConsumerState] = {
    (ConsumerState.REQUESTED, Opcode.STREAM_OK): ConsumerState.OPEN,
    (ConsumerState.REQUESTED, Opcode.ROLLBACK): ConsumerState.ROLLING_BACK,
    (ConsumerState.REQUESTED, Opcode.STREAM_END): ConsumerState.WAITING,
    (ConsumerState.REQUESTED, Opcode.ERROR): ConsumerState.WAITING,
    (ConsumerState.OPEN, Opcode.SNAPSHOT_START): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.OPEN, Opcode.SEQ_ADVANCED): ConsumerState.OPEN,
    (ConsumerState.OPEN, Opcode.STREAM_END): ConsumerState.WAITING,
    (ConsumerState.IN_SNAPSHOT, Opcode.SNAPSHOT_START): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.IN_SNAPSHOT, Opcode.BLOCK): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.IN_SNAPSHOT, Opcode.SNAPSHOT_END): ConsumerState.OPEN,
    (ConsumerState.IN_SNAPSHOT, Opcode.STREAM_END): ConsumerState.WAITING,
    (ConsumerState.OPEN, Opcode.TRACE): ConsumerState.OPEN,
    (ConsumerState.IN_SNAPSHOT, Opcode.TRACE): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.OPEN, Opcode.LEADER_SEQS): ConsumerState.OPEN,
    (ConsumerState.IN_SNAPSHOT, Opcode.LEADER_SEQS): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.IN_SNAPSHOT, Opcode.PRODUCERS): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.OPEN, Opcode.SINKS): ConsumerState.OPEN,
    (ConsumerState.OPEN, Opcode.PRODUCERS): ConsumerState.OPEN,
    (ConsumerState.OPEN, Opcode.SEGMENT_OFFER): ConsumerState.OPEN,
    (ConsumerState.OPEN, Opcode.SEGMENT_TRANSIT): ConsumerState.OPEN,
    (ConsumerState.IN_SNAPSHOT, Opcode.SINKS): ConsumerState.IN_SNAPSHOT,
    (ConsumerState.REFETCHING, Opcode.GOT): ConsumerState.ROLLING_BACK,
    (ConsumerState.REFETCHING, Opcode.ERROR): ConsumerState.WAITING,
    (ConsumerState.MEASURING, Opcode.STREAM_OK): ConsumerState.ROLLING_BACK,
    (ConsumerState.MEASURING, Opcode.STREAM_END): ConsumerState.WAITING,
    (ConsumerState.MEASURING, Opcode.ERROR): ConsumerState.WAITING,
    (ConsumerState.WAITING, Step.REQUEST): ConsumerState.REQUESTED,
    (ConsumerState.WAITING, Step.COPY): ConsumerState.COPYING,
    (ConsumerState.OPEN, Step.ROLL_BACK): ConsumerState.ROLLING_BACK,  # its STREAM_OK has shown that one is due
    (ConsumerState.ROLLING_BACK, Step.ROLL_BACK): ConsumerState.ROLLING_BACK,  # after the node's ROLLBACK
    (ConsumerState.WAITING, Step.ROLL_BACK): ConsumerState.ROLLING_BACK,  # after an end: its rows are gone
    (ConsumerState.ROLLING_BACK, Step.LOOK_UP): ConsumerState.REFETCHING,
    (ConsumerState.ROLLING_BACK, Step.MEASURE): ConsumerState.MEASURING,
    **{(state, Step.WAIT): ConsumerState.WAITING for state in _NOT_ENDED},
    (ConsumerState.WAITING, Step.END): ConsumerState.ENDED,  # after STREAM_END
    (ConsumerState.IN_SNAPSHOT, Step.END): ConsumerState.ENDED,  # a row above the end that was asked for
    (ConsumerState.WAITING, Step.FAIL): ConsumerState.ROLLING_BACK,  # after STREAM_END or ERROR
}


def transition(partition: int, state: ConsumerState, event: Opcode | Step) -> ConsumerState:
    """Returns the state that follows ``state`` after ``event``.

    Raises:
        ProtocolError: The node sent a frame that has no place in this state.
        RuntimeError: The consumer took a step that has no place in this state.
    """
    following = TRANSITIONS.get((state, event))
    if following is None:
        if isinstance(event, Opcode):
            raise ProtocolError(f"{event.name} for partition {partition}, whose stream is {state.value}")
        raise RuntimeError(f"partition {partition} {event.value} ({event.name}) while its stream is {state.value}")
    return following


_NOT_AGREED = "the position of a consumer that begins now is known from the first STREAM_OK on"


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
    state: StreamState
    reason: str
    since: float
    next_retry: float | None
    seq: int
    lag: int
    last_end: EndReason | None = None


class ConsumedPartition:
    """A partition that a consumer reads.

    Other files read its fields and call its methods; only the methods set the fields.
    """

    def __init__(
        self,
        id: int,
        position: Position | None,
        ring: Ring,
        end_seq: int | None,
        now: float,
        end_log: FailoverLog | None = None,
    ) -> None:
        """Makes a partition that has not been asked for. ``position`` is None for a consumer that begins "now"."""
        self.id = id
        self.state = ConsumerState.WAITING  # set by `step` alone

        # How far the consumer has come. None until the first STREAM_OK of a consumer that begins "now".
        # Invariant: snapshot_first <= seq <= snapshot_last.
        self.position = position
        # The node's failover log, as its last answer gave it; the stored log before that. ``branch`` is its newest.
        # Invariant: from the first answer on, ``position.log`` is ``log``.
        self._set_log(position.log if position is not None else FailoverLog())
        # Invariant: it has every key that was delivered above ``ring.floor_seq``.
        self.ring = ring
        # The rows up to this seq are a consistent state only together: rows above the position were read again, or half
        # a run was read. Invariant: no snapshot ends below it. 0: the position is consistent by itself.
        self.promised_seq = 0
        # The newest seq that the node has told. Invariant: it never falls.
        self.high_seq = 0

        # The bounds of the snapshot that was announced last. Invariant: snapshot_after <= seq <= snapshot_last.
        self.snapshot_after = self.snapshot_last = 0
        self.in_complete_snapshot = False

        # The last seq that is subscription, and the history that it is of; None: no end, or not known yet.
        self.end_seq = end_seq
        self.end_log = end_log

        # Of the last request. Invariant: frames with another id are not for this partition.
        self.stream_id = 0
        self.failures = 0  # in a row; 0 after STREAM_OK
        self.retry_at = 0.0  # monotonic seconds; counts in WAITING only
        self.reason = "not asked for yet"  # why it is in its state, since ``since``
        self.since = now
        self.last_end: EndReason | None = None

    def _set_log(self, log: FailoverLog) -> None:
        self.log = log
        self.branch = log.branch

    # The state of the stream

    def step(self, event: Opcode | Step) -> None:
        """Moves the state on by a frame of the node or a step of the consumer. Raises as `transition`."""
        # The look-up is that of `transition`, without a call for each frame.
        self.state = TRANSITIONS.get((self.state, event)) or transition(self.id, self.state, event)

    def request(self, stream_id: int) -> None:
        """Notes that the stream is asked for under this id."""
        self.step(Step.REQUEST)
        self.stream_id = stream_id

    def copy(self, reason: str, now: float) -> None:
        """Notes that the partition catches up by segments, and has no stream."""
        self.step(Step.COPY)
        self.stream_id = 0  # no frame has it; the last one may be another partition's on this connection
        self.reason, self.since = reason, now

    def look_up(self, request_id: int) -> None:
        """Notes that the node is asked for keys under this id."""
        self.step(Step.LOOK_UP)
        self.stream_id = request_id

    def measure(self, request_id: int) -> None:
        """Notes that the node is asked under this id which seq it shows."""
        self.step(Step.MEASURE)
        self.stream_id = request_id

    def wait(self, reason: str, now: float, retry_at: float) -> None:
        """Notes that the stream is asked for (again) at ``retry_at``."""
        self.step(Step.WAIT)
        self.reason, self.since, self.retry_at = reason, now, retry_at

    def count_failure(self) -> int:
        """Counts a request that has failed. Returns how many have failed in a row."""
        self.failures += 1
        return self.failures

    def note_end(self, reason: EndReason) -> None:
        """Notes why the node, or this side, has ended the stream."""
        self.last_end = reason

    def end(self, reason: str) -> None:
        """Notes that the partition has reached the end that was asked for, or that its rows are gone."""
        self.step(Step.END)
        self.last_end, self.reason = EndReason.END_REACHED, reason

    def fail(self, end: EndReason, message: str) -> None:
        """Notes that a replica's stream has failed. The replica names the position to resume at (`reset_to`)."""
        self.step(Step.FAIL)
        self.last_end, self.reason = end, message

    def begin_rollback(self, seq: int, last: int, log: FailoverLog, reason: str, now: float) -> Position:
        """Begins a rollback. Returns the new position; the arguments are those of `roll_back_to`."""
        self.step(Step.ROLL_BACK)
        self.reason, self.since = reason, now
        return self.roll_back_to(seq, last, log)

    # The position

    def open(self, answer: StreamOk, now: float) -> None:
        """Notes that the node has agreed to the stream.

        Its log goes into the next position, so a consumer stores the log before it applies rows of it.
        """
        self._set_log(answer.log)
        self.high_seq = max(self.high_seq, answer.high_seq)
        self.failures, self.reason, self.since = 0, "", now
        if self.position is None:
            first, self.promised_seq = answer.snapshot or (answer.seq, answer.seq)
            self.position = Position.at(answer.log, answer.seq, first, self.promised_seq)
            self.ring.apply(RingChange(first))  # no row between ``first`` and here was delivered
        else:
            self.promised_seq = self._move(*bounds(self.resume_state), self.position.purge_seq).snapshot_last

    def update_end(self, answer: StreamOk) -> bool:
        """Moves the end that was asked for, if the node's history has replaced it. Returns whether it has moved.

        The new end is the last seq that the old and the new history share.
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

    @property
    def resume_state(self) -> ResumeState:
        """The position and the bounds of the ring, which decide how the consumer resumes."""
        assert self.position is not None, _NOT_AGREED
        return ResumeState.of(self.position, self.ring)

    def start_snapshot(self, message: SnapshotStartMessage) -> Position:
        """Enters a snapshot. Returns the new position, whose end stays as it was until the first block."""
        position = self.position
        assert position is not None, _NOT_AGREED
        seq, last_seq = position.seq, message.last_seq
        if message.after_seq > seq or last_seq < max(seq, self.promised_seq):
            raise ProtocolError(
                f"SNAPSHOT_START of partition {self.id} after seq {message.after_seq} to {last_seq}, but the consumer "
                f"is at {seq} and needs all up to {max(seq, self.promised_seq)}"
            )
        self.in_complete_snapshot = message.complete
        self.snapshot_after = message.after_seq
        self.snapshot_last = last_seq
        if last_seq > self.high_seq:
            self.high_seq = last_seq
        purge_seq = position.purge_seq if seq else message.purge_seq or None
        if purge_seq is not None:
            # The node does not send purged deletions, so the ring does not know which keys changed up to there.
            self.ring.apply(RingChange(purge_seq))
        return self._move(seq, position.snapshot_first, position.snapshot_last, purge_seq)

    def advance(self, seq: int, block: Block | None = None) -> Position:
        """Moves over a block that ends at ``seq``. Returns the new position.

        Args:
            seq: The last seq of the block.
            block: The rows to add to the ring; None if none of them was delivered.
        """
        position = self.position
        assert position is not None, _NOT_AGREED
        if block is not None:
            self.ring.add_block(block)
        _, _, first, last, purge_seq, _ = position
        end = max(self.promised_seq, 0 if self.in_complete_snapshot else self.snapshot_last, purge_seq or 0)
        if seq >= end:
            return self._move(seq, seq, seq, purge_seq)
        # Inside a run, or several in a row: ``snapshot_first`` stays until the end of the last one.
        return self._move(seq, first, max(last, end), purge_seq)

    def end_snapshot(self, seq: int) -> Position:
        """Leaves a snapshot at ``seq``. Returns the position between snapshots."""
        position = self.position
        assert position is not None, _NOT_AGREED
        if seq < max(position.seq, self.promised_seq):
            raise ProtocolError(
                f"a snapshot of partition {self.id} ends at seq {seq}, but the consumer is at {position.seq} and needs "
                f"all up to {self.promised_seq}"
            )
        purge_seq = position.purge_seq
        if purge_seq is not None and seq < purge_seq:  # a first fill: rows are missing whose deletion is further up
            return self._move(seq, position.snapshot_first, max(position.snapshot_last, purge_seq), purge_seq)
        return self._move(seq, seq, seq, purge_seq)

    def skip_to(self, seq: int) -> tuple[int, Position]:
        """Moves over seqs of which the node sends no row. Returns the seq before, and the position at ``seq``."""
        assert self.position is not None, _NOT_AGREED
        return self.position.seq, self.end_snapshot(seq)

    def reset_to(self, position: Position) -> None:
        """Moves to a position between snapshots that a replica names; half of a run is dropped."""
        self.position, self.promised_seq = position, 0
        self._set_log(position.log)
        self.ring.clear()
        self.ring.apply(RingChange(floor_without_ring(position)))

    def roll_back_to(self, seq: int, last: int, log: FailoverLog, change: RingChange | None = None) -> Position:
        """Moves back. Returns the new position.

        Args:
            seq: The seq to go back to. 0 clears the ring.
            last: The new ``snapshot_last``: the highest seq of which rows may be applied.
            log: The node's log, whose history has ``seq``.
            change: What changes in the ring; None if nothing does.
        """
        position = self.position
        assert position is not None, "a consumer that begins now has nothing to roll back"
        if not seq:
            self.ring.clear()
        elif change is not None:
            self.ring.apply(change)
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
        """Returns the state for status pages and ``readyz``."""
        seq = self.position.seq if self.position is not None else 0
        retry = self.retry_at if self.state is ConsumerState.WAITING else None
        lag = max(self.high_seq - seq, 0)
        return PartitionStatus(self.id, self.state.value, self.reason, self.since, retry, seq, lag, self.last_end)
