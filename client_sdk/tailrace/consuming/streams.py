"""The streams of a consumer's partitions on one connection: requests out, frames in, events out. Sans-IO.

    a STREAM_REQUEST for each partition; before it, segments for one that is far behind (``catch_up``)
    then STREAM_OK; or ROLLBACK and its steps (``rollbacks``); or an end, and a new request after a pause
    then SNAPSHOT_START, BLOCK ..., SNAPSHOT_END, as events

After every end of a stream but the final ones (``stream_ends``) the stream is requested again.
Source: docs/protocol/streams.md.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter
from typing import NoReturn, TypeAlias

from tailrace.block import Block
from tailrace.consuming.events import Mutations, SnapshotEnd, SnapshotStart
from tailrace.consuming.partition import ConsumedPartition, ConsumerState
from tailrace.consuming.resume import ResumeAction, decide
from tailrace.consuming.ring import RINGS_BYTES_MAX, Ring, RingChange
from tailrace.consuming.rollbacks import Given, Queued, Rollbacks
from tailrace.consuming.stream_ends import StreamEnds
from tailrace.consuming.subscription import Subscription, stream_request, subscribed_partition
from tailrace.errors import DataGone, NotLeader, ProtocolError, Retryable, TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace.link.sparing import Sparing
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.wire.frames import Frame, encode_frame
from tailrace.wire.messages import Trace
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import RollBack, SnapshotStartMessage, StreamEnd, StreamOk, decode_seq

log = logging.getLogger("tailrace.client")

# Each barrier compares all partitions with this, so the loop over them runs in C.
_OPEN = frozenset((ConsumerState.OPEN, ConsumerState.IN_SNAPSHOT, ConsumerState.ENDED))
_state = attrgetter("state")

# The contexts kept for the next block of a stream. A node sends no more of one block.
TRACES_MAX = 16


_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class PartitionStreams:
    """The streams of all partitions, across connections.

    It owns the positions up to which the program has handled events, and the maps from ids to partitions. Each
    `ConsumedPartition` owns its own state.
    """

    def __init__(
        self,
        subscription: Subscription,
        clock: Callable[[], float],
        on_stopped: Callable[[], None],
        emit: Callable[[Iterable[Queued]], None],
        jitter: Callable[[], float] = random.random,
        *,
        has_others: bool = False,
        window_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        """Makes the streams; `begin` names their partitions.

        Args:
            subscription: The subscription of the consumer.
            clock: Returns monotonic seconds.
            on_stopped: Called when a stream stops and will be asked for again.
            emit: Takes events that no frame has brought.
            jitter: Returns a number from 0 to 1, to spread retries.
            has_others: True if other nodes could be asked.
            window_bytes: The bytes of segments that may be under way or waiting.
        """
        self._subscription = subscription
        self._clock = clock
        self._on_stopped = on_stopped
        self.emit = emit
        self._jitter = jitter
        self.has_others = has_others
        self._selects, self._keys_only = subscription.filter.selects, subscription.filter.keys_only
        self._is_timed = subscription.since_us is not None or subscription.until_us is not None
        self._handlers = self._handler_table()
        self._partitions: dict[int, ConsumedPartition] = {}
        # Invariant: a partition in WAITING is in ``_waiting``. One in REQUESTED, OPEN, IN_SNAPSHOT, REFETCHING or
        # MEASURING is in ``_by_stream``, under its ``stream_id``.
        self._by_stream: dict[int, ConsumedPartition] = {}
        self._waiting: dict[int, ConsumedPartition] = {}
        self._ids = itertools.count(1)  # of this connection's requests
        self._ended = 0  # the number of partitions in ENDED
        self._closing: list[bytes] = []  # the frames that close streams
        self._traces: dict[int, list[Trace]] = {}  # by stream: of the next block
        self._dropped_bytes = 0  # of blocks that no program gets
        self.handled: dict[int, Position] = (
            dict(subscription.since) if isinstance(subscription.since, Positions) else {}
        )
        self.node_state = subscription.state  # the state that a request wants of the node
        self.failure: TailraceError | None = None
        self.rollbacks = Rollbacks(subscription, self)
        self._ends = StreamEnds(subscription)
        self._retries = Sparing(clock)
        # Programs that only write do not need these.
        from tailrace.consuming.catch_up import CatchUp
        from tailrace.consuming.unanswered import Unanswered

        self._unanswered = Unanswered()  # a partition is added to ``_waiting`` and to it
        self.catch_up = CatchUp(subscription, self, window_bytes)
        self._on_history: Callable[[], None] | None = None
        # Makes a partition that begins at a stored position; None before `begin`.
        self._make: Callable[[int, Position | None, RingChange | None], ConsumedPartition] | None = None

    def _handler_table(self) -> dict[Opcode, Handler]:
        return HANDLERS

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that a node agrees to a stream with another log than before."""
        self._on_history = changed

    def begin(
        self,
        high_seqs: Mapping[int, int],
        logs: Mapping[int, FailoverLog],
        starts: Mapping[int, Position],
    ) -> None:
        """Makes the partitions, of their newest seqs and the logs that the node has told. ``starts`` were chosen.

        Raises UnknownFeed if the feed does not have a partition of the subscription.
        """
        subscription = self._subscription
        if subscription.until == "now":
            subscription = subscription._replace(until_logs=logs)
        ids = self.ids(high_seqs)
        ring_bytes_max, clock = RINGS_BYTES_MAX // max(len(ids), 1), self._clock  # with ``self`` it would be a cycle
        make = partial(subscribed_partition, subscription, ring_bytes_max=ring_bytes_max)
        self._make = lambda id, stored, ring: make(id, high_seqs[id], now=clock(), stored=stored, ring=ring)
        for id in () if subscription.claim else ids:
            self._partitions[id] = self._waiting[id] = self._unanswered[id] = self._make(id, starts.get(id), None)
        self.handled.update({id: start for id, start in starts.items() if start.log})

    def ids(self, known: Mapping[int, int]) -> list[int]:
        """Returns the partitions of the subscription. Raises UnknownFeed if one of them is not ``known``."""
        return self._subscription.chosen(known, self.fail)

    def connection_made(self) -> None:
        """Begins with new stream ids, since each connection has its own."""
        self._ids = itertools.count(1)

    def greeted(self, role: str, node_id: str) -> None:
        """Notes the node's role, "leader" or "follower", and its id."""
        self._ends.greeted(node_id)
        self.catch_up.greeted(node_id)
        if self._subscription.state == "any":
            self.node_state = role

    def connection_lost(self, reason: str) -> None:
        """Has all streams asked for again on the next connection."""
        self._closing.clear()
        self._traces.clear()
        self._by_stream.clear()
        self.rollbacks.connection_lost()
        self.catch_up.connection_lost()
        self._dropped_bytes = 0
        now = self._clock()
        for partition in self._partitions.values():
            if partition.state is not ConsumerState.ENDED:
                self.wait(partition, reason, now)

    def fail(self, error: TailraceError) -> NoReturn:
        """Ends the consumer for good, with ``error``."""
        if self.failure is None:
            self.failure = error
        raise error

    # State

    @property
    def partitions(self) -> list[ConsumedPartition]:
        """All partitions, by id."""
        return [partition for _, partition in sorted(self._partitions.items())]

    @property
    def total_seq(self) -> int:
        """The sum of the partitions' seqs."""
        return sum(p.position.seq for p in self._partitions.values() if p.position is not None)

    @property
    def open(self) -> bool:
        """True if every partition has an open stream or has reached its end."""
        return bool(self._partitions) and _OPEN.issuperset(map(_state, self._partitions.values()))

    @property
    def answered(self) -> bool:
        """True if every partition has an open stream, catches up, is rolled back, or has reached its end."""
        return bool(self._partitions) and not self.catch_up.is_unsure and not self._unanswered.any()

    @property
    def why_not_answered(self) -> str:
        """The reason of the first partition whose stream is not open."""
        first = self._unanswered.first()
        return "the node has not answered" if first is None else f"partition {first.id}: {first.reason}"

    @property
    def ended(self) -> bool:
        """True if every partition has reached its end."""
        return bool(self._partitions) and self._ended == len(self._partitions)

    @property
    def next_retry(self) -> float | None:
        """When ``data_to_send`` next has a request, in monotonic seconds; None if none waits for the clock."""
        return min(p.retry_at for p in self._waiting.values()) if self._waiting else None

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last STREAM_OK or ROLLBACK; at first the stored one."""
        return self._partitions[partition].log

    def take_dropped_bytes(self) -> int:
        """Returns, once, the bytes of blocks that the program does not get. They count as consumed."""
        dropped_bytes, self._dropped_bytes = self._dropped_bytes, 0
        return dropped_bytes

    # Frames out

    def data_to_send(self, feed_id: bytes) -> list[bytes]:
        """Returns the frames that are due: requests, and those that close streams."""
        out, self._closing = self._closing, []
        if self.rollbacks.to_ask:
            out += self.rollbacks.requests(feed_id)
        if self._waiting:
            now = self._clock()
            for partition in [p for p in self._waiting.values() if now >= p.retry_at]:
                del self._waiting[partition.id]
                if not self.catch_up.takes(partition):
                    out.append(self._request(partition, feed_id))
        return out + self.catch_up.requests(feed_id)

    def _request(self, partition: ConsumedPartition, feed_id: bytes) -> bytes:
        stream_id = self.register(partition)
        partition.request(stream_id)
        return stream_request(self._subscription, partition, self.node_state, feed_id).encode(stream_id)

    def register(self, partition: ConsumedPartition) -> int:
        """Returns the id of the next request. The frames that answer it go to ``partition``."""
        stream_id = self.new_id()
        self._by_stream[stream_id] = partition
        return stream_id

    def new_id(self) -> int:
        """Returns the id of a request that is not of a stream."""
        return next(self._ids)

    # Frames in

    def receive(self, frame: Frame) -> Queued | None:
        """Handles a frame of a stream. Returns its event, if any. Raises the error that ends the connection."""
        opcode, _, stream_id, body = frame
        partition = self._by_stream.get(stream_id)
        if partition is None:  # the stream was closed meanwhile, or it is an answer about segments
            if opcode is Opcode.BLOCK:
                self._dropped_bytes += len(body)
            else:
                self.catch_up.receive(frame)
            return None
        handler = self._handlers.get(opcode)
        if handler is None:
            raise ProtocolError(f"the node sent {opcode.name}, which is not for a consumer")
        partition.step(opcode)
        return handler(self, partition, body)

    def refused(self, stream_id: int, error: TailraceError) -> bool:
        """Asks for a stream again that the node has answered with an ERROR; or takes that as an answer about segments.

        A plain TailraceError may pass, too: a segment that cannot be read, or an error that a newer node knows.

        Returns:
            False if the error is not of a stream, or if asking this node again does not help.
        """
        if self.catch_up.refused(stream_id, error):
            return True
        partition = self._by_stream.get(stream_id)
        if partition is not None and isinstance(error, DataGone):
            partition.step(Opcode.ERROR)
            error.partition = partition.id
            self.emit([self._rows_gone(partition, error)])
            return True
        may_pass = isinstance(error, Retryable) or type(error) is TailraceError
        if partition is None or not may_pass or isinstance(error, NotLeader):  # NotLeader: another node is asked
            return False
        partition.step(Opcode.ERROR)
        self.try_again(partition, str(error))
        return True

    def _on_block(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        block = Block.parse(body)
        header, position = block.header, partition.position
        assert position is not None
        first_seq, last_seq, before_seq = header.first_seq, header.last_seq, position.seq
        gap = first_seq > before_seq + 1 and partition.in_complete_snapshot and not self._selects
        if header.partition != partition.id or gap:
            raise ProtocolError(
                f"a block of partition {header.partition} begins at seq {first_seq}, in a complete snapshot of "
                f"partition {partition.id} that has come to seq {before_seq}"
            )
        traces = self._traces.pop(partition.stream_id, ()) if self._traces else ()
        # All rows of a block are of one branch, but not always of the log's newest.
        mutations = Mutations.above(
            block,
            before_seq,
            branch=partition.log.branch_at(last_seq),
            keys_only=self._keys_only,
            traces=traces,
        )
        if mutations is None:
            self._dropped_bytes += len(body)
            return None
        if self._is_timed:
            from tailrace.consuming.time_range import TimeRange  # most programs give no times

            bounds = TimeRange(self._subscription.since_us, self._subscription.until_us)
            mutations, last_seq, is_past = bounds.cut(mutations, before_seq)
            if is_past:
                self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=partition.stream_id))
                self._end_reached(partition, "the time that was asked for is reached")
            if mutations is None:
                if last_seq > before_seq:
                    partition.advance(last_seq)
                self._dropped_bytes += len(body)
                return None
        return mutations, partition.id, partition.advance(last_seq, block), len(body)

    def _on_trace(self, partition: ConsumedPartition, body: memoryview) -> None:
        traces = self._traces.setdefault(partition.stream_id, [])
        if len(traces) < TRACES_MAX:
            traces.append(Trace.decode(body))

    def _end_reached(self, partition: ConsumedPartition, reason: str) -> None:
        self._by_stream.pop(partition.stream_id, None)
        partition.end(reason)
        self._ended += 1

    def _rows_gone(self, partition: ConsumedPartition, error: DataGone) -> Queued:
        """Begins a partition anew, or ends it alone. Fails with ``error`` if no other partition goes on."""
        self.forget(partition)
        self.rollbacks.abandon(partition)
        if self._subscription.on_data_gone == "restart":
            return self.rollbacks.begin_anew(partition, str(error))
        self._end_reached(partition, str(error))
        partition.note_end(EndReason.TRIMMED)
        if self.ended:
            self.fail(error)
        return error, partition.id, None, 0

    def _on_stream_ok(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        answer = StreamOk.decode(body)
        if partition.state is ConsumerState.ROLLING_BACK:  # it was MEASURING
            self.rollbacks.measured(partition, answer)
            return None
        if partition.position is not None:
            if answer.seq != partition.position.seq:
                raise ProtocolError(f"STREAM_OK at seq {answer.seq}, but seq {partition.position.seq} was asked for")
            decision = decide(partition.resume_state, answer)
            if decision.action is not ResumeAction.STREAM:
                self.close(partition)
                return self.rollbacks.begin(partition, decision, answer.log, "rows that were delivered above were lost")
        self.agree(partition, answer)
        if self._subscription.since == "now" and partition.id not in self.handled:
            assert partition.position is not None
            self.handled[partition.id] = partition.position
        if partition.update_end(answer):
            self.close(partition)
            self.wait(partition, "its end belongs to a history that was replaced", self._clock())
        return None

    def agree(self, partition: ConsumedPartition, answer: StreamOk) -> None:
        """Notes that the node serves the partition from the consumer's position on, with the log in ``answer``."""
        known = partition.log
        partition.open(answer, self._clock())
        if answer.log != known and self._on_history is not None:
            self._on_history()

    def close(self, partition: ConsumedPartition) -> None:
        """Closes the partition's stream, and ignores the frames that are under way."""
        self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=partition.stream_id))
        self.forget(partition)

    def forget(self, partition: ConsumedPartition) -> None:
        """Ignores further frames for the partition's last request."""
        self._by_stream.pop(partition.stream_id, None)
        self._on_stopped()

    def _on_rollback(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        answer = RollBack.decode(body)
        position = partition.position
        if position is None or answer.seq > position.seq:
            at = "has no position yet" if position is None else f"is at seq {position.seq}"
            raise ProtocolError(f"ROLLBACK to seq {answer.seq} for partition {partition.id}, which {at}")
        self.forget(partition)
        return self.rollbacks.begin(partition, decide(partition.resume_state, answer), answer.log, answer.why)

    def _on_snapshot_start(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        message = SnapshotStartMessage.decode(body)
        if message.branch != partition.branch:
            # The node's history has changed under the stream. Its rows must not be applied under the old log.
            self.close(partition)
            partition.note_end(EndReason.HISTORY_CHANGED)
            self.try_again(partition, "the partition's history has changed")
            return None
        position = partition.start_snapshot(message)
        _, complete, _, after_seq, last_seq, purge_seq, published = message
        event = _new(SnapshotStart, (partition.id, after_seq + 1, last_seq, position, complete, purge_seq, published))
        return event, partition.id, position, 0

    def _on_snapshot_end(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        _, seq = decode_seq(body, "SNAPSHOT_END")
        position = partition.position
        if partition.in_complete_snapshot and not self._selects and position is not None and position.seq < seq:
            raise ProtocolError(
                f"a complete snapshot of partition {partition.id} ends at seq {seq}, but has come to seq {position.seq}"
            )
        position = partition.end_snapshot(seq)
        event = _new(SnapshotEnd, (partition.id, partition.snapshot_after + 1, seq, position))
        return event, partition.id, position, 0

    def _on_seq_advanced(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        """Handles a snapshot whose rows are all left out: its SnapshotEnd is the only event."""
        _, seq = decode_seq(body, "SEQ_ADVANCED")
        after_seq, position = partition.skip_to(seq)
        return SnapshotEnd(partition.id, after_seq + 1, seq, position), partition.id, position, 0

    def _on_stream_end(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        end = StreamEnd.decode(body)
        partition.note_end(end.reason)
        if end.reason is EndReason.END_REACHED:
            self._end_reached(partition, end.message)
            return None
        error = self._ends.error(partition, end)
        if isinstance(error, DataGone):
            return self._rows_gone(partition, error)
        if error is not None:
            self.fail(error)
        self.try_again(partition, f"{end.reason.value}: {end.message}")
        if self._ends.leads_on(partition, end, has_others=self.has_others):
            raise NotLeader(f"partition {partition.id}: {end.message}")
        return None

    def try_again(self, partition: ConsumedPartition, reason: str) -> None:
        """Has the stream asked for again, after a pause that grows with each failure."""
        pause_s = backoff_seconds(partition.count_failure(), self._jitter)
        more = self._retries.note()
        level = logging.DEBUG if more is None else logging.INFO
        told = partition.id, self._subscription.feed, f"{pause_s:.3g}", reason, more or ""
        log.log(level, "partition %s of feed %s is asked for again in %s s: %s%s", *told)
        self.wait(partition, reason, self._clock() + pause_s)

    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None:
        """Has the stream asked for (again) at ``retry_at``, in monotonic seconds."""
        self.forget(partition)
        self.rollbacks.abandon(partition)
        self.catch_up.abandon(partition)
        partition.wait(reason, self._clock(), retry_at)
        self._waiting[partition.id] = self._unanswered[partition.id] = partition

    @property
    def now(self) -> float:
        """Monotonic seconds of the shell's clock."""
        return self._clock()

    # Events that the program has handled

    def note_handled(self, event: Given, partition: int, position: Position | None) -> None:
        """Notes that the program has handled ``event``, which leads to ``position``. A rollback may wait for it."""
        if position is not None:
            self.handled[partition] = position
        if self.rollbacks.under_way:
            self.rollbacks.handled(partition, event)

    def ring(self, partition: int) -> Ring:
        """Returns the ring of a partition."""
        return self._partitions[partition].ring


Handler: TypeAlias = "Callable[[PartitionStreams, ConsumedPartition, memoryview], Queued | None]"

HANDLERS: dict[Opcode, Handler] = {
    Opcode.BLOCK: PartitionStreams._on_block,
    Opcode.TRACE: PartitionStreams._on_trace,
    Opcode.STREAM_OK: PartitionStreams._on_stream_ok,
    Opcode.ROLLBACK: PartitionStreams._on_rollback,
    Opcode.GOT: lambda streams, partition, body: streams.rollbacks.got(partition, body),
    Opcode.SNAPSHOT_START: PartitionStreams._on_snapshot_start,
    Opcode.SNAPSHOT_END: PartitionStreams._on_snapshot_end,
    Opcode.SEQ_ADVANCED: PartitionStreams._on_seq_advanced,
    Opcode.STREAM_END: PartitionStreams._on_stream_end,
}
