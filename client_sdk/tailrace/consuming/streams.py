"""The streams of a consumer's partitions on one connection: requests out, frames in, events out. Sans-IO.

    a STREAM_REQUEST for each partition
    then: STREAM_OK, or ROLLBACK and what follows from it (``rollbacks``), or an end, and a request again after a while
    then: SNAPSHOT_START, BLOCK ..., SNAPSHOT_END as events

Every end of a stream leads to another request but those in ``FINAL``. Source: docs/protocol/streams.md.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import NoReturn

from tailrace.block import Block
from tailrace.consuming.events import Event, Mutations, ReplicaEvent, Rollback, SnapshotEnd, SnapshotStart
from tailrace.consuming.partition import ConsumedPartition, State
from tailrace.consuming.resume import Move, decide
from tailrace.consuming.ring import RINGS_BYTES_MAX, Ring
from tailrace.consuming.rollbacks import Queued, Rollbacks
from tailrace.consuming.wanted import Wanted, stream_request, wanted_partition
from tailrace.errors import (
    DataGone,
    Forbidden,
    NotLeader,
    ProtocolError,
    Retryable,
    TailraceError,
    UnknownFeed,
)
from tailrace.link.backoff import backoff_seconds
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.frames import Frame, encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import RollBack, SnapshotStartMessage, StreamEnd, StreamOk, decode_seq

FINAL: dict[EndReason, Callable[[str], TailraceError]] = {
    EndReason.TRIMMED: DataGone,
    EndReason.FORBIDDEN: Forbidden,
    EndReason.FEED_DROPPED: UnknownFeed,
}

# What another node may have: one that is behind, or that has no such partition, may be about to get it. So another one
# is asked after so many tries.
_LACKING = frozenset((EndReason.BEHIND, EndReason.NOT_MY_PARTITION))
_LACKING_TRIES = 3

# Asked of all partitions for each barrier, so without a step of Python for each.
_OPEN = frozenset((State.OPEN, State.IN_SNAPSHOT, State.ENDED))
_state = attrgetter("state")

_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class PartitionStreams:
    """See the module.

    ``handled`` has the position of each partition up to which the program has handled events. ``on_stopped`` is called
    where a stream stops, to be asked for again, and ``emit`` with events that no frame has made at once.
    ``dropped_bytes`` counts blocks that nobody gets.
    """

    def __init__(
        self,
        wanted: Wanted,
        clock: Callable[[], float],
        handled: dict[int, Position],
        on_stopped: Callable[[], None],
        emit: Callable[[Iterable[Queued]], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._wanted = wanted
        self._clock = clock
        self._handled = handled
        self._on_stopped = on_stopped
        self.emit = emit
        self._jitter = jitter
        self._selects, self._keys_only = wanted.filter.selects, wanted.filter.keys_only
        self._is_timed = wanted.since_us is not None or wanted.until_us is not None
        self._handlers = HANDLERS
        self._partitions: dict[int, ConsumedPartition] = {}
        self._by_stream: dict[int, ConsumedPartition] = {}
        self._waiting: dict[int, ConsumedPartition] = {}  # those to be asked for, by id
        self._ids = itertools.count(1)
        self._ended = 0  # how many have reached their end
        self._closing: list[bytes] = []  # the frames that close streams
        self.dropped_bytes = 0
        self.has_others = False  # there are other nodes to ask
        self.node_state = wanted.state  # what a request asks the node to be
        self.failure: TailraceError | None = None
        self.rollbacks = Rollbacks(wanted, self)
        self._on_history: Callable[[], None] | None = None

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that a stream was agreed to with another log than before."""
        self._on_history = changed

    def begin(self, high_seqs: Mapping[int, int], logs: Mapping[int, FailoverLog]) -> None:
        """The partitions are known; ``logs`` as far as the node has told them with the seqs.

        Raises UnknownFeed where one that is wanted is not there.
        """
        wanted, now = self._wanted, self._clock()
        if wanted.until == "now":
            wanted = wanted._replace(until_logs=logs)
        missing = (wanted.partitions or frozenset()) - high_seqs.keys()
        if missing:
            self.fail(UnknownFeed(f"feed {wanted.feed!r} has no partition {min(missing)}: it has {len(high_seqs)}"))
        ids = sorted(high_seqs if wanted.partitions is None else wanted.partitions)
        for id in ids:
            partition = wanted_partition(wanted, id, high_seqs[id], RINGS_BYTES_MAX // len(ids), now)
            self._partitions[id] = self._waiting[id] = partition

    def connection_made(self) -> None:
        """A new connection: its streams have ids of its own."""
        self._ids = itertools.count(1)

    def greeted(self, role: str) -> None:
        """The node has said what it is."""
        if self._wanted.state == "any":
            self.node_state = role

    def connection_lost(self, reason: str) -> None:
        """The connection is gone: all streams are to be asked for again."""
        self._closing.clear()
        self._by_stream.clear()
        self.rollbacks.connection_lost()
        self.dropped_bytes = 0
        now = self._clock()
        for partition in self._partitions.values():
            if partition.state is not State.ENDED:
                self.wait(partition, reason, now)

    def fail(self, error: TailraceError) -> NoReturn:
        """Ends everything for good."""
        if self.failure is None:
            self.failure = error
        raise error

    # How they are

    @property
    def partitions(self) -> list[ConsumedPartition]:
        """All partitions, by id."""
        return [partition for _, partition in sorted(self._partitions.items())]

    @property
    def total_seq(self) -> int:
        """The sum of the seqs that the partitions have come to."""
        return sum(p.position.seq for p in self._partitions.values() if p.position is not None)

    @property
    def open(self) -> bool:
        """Every partition has an open stream, or has reached its end."""
        return bool(self._partitions) and _OPEN.issuperset(map(_state, self._partitions.values()))

    @property
    def answered(self) -> bool:
        """Every partition has been agreed to, has reached its end, or waits until a rollback is handled."""
        return bool(self._partitions) and not any(
            p.state in (State.WAITING, State.REQUESTED) for p in self._partitions.values()
        )

    @property
    def why_not_answered(self) -> str:
        """What keeps the first partition that has not been agreed to."""
        waiting = (p for p in self._partitions.values() if p.state in (State.WAITING, State.REQUESTED))
        return next((f"partition {p.id}: {p.reason}" for p in waiting), "the node has not answered")

    @property
    def ended(self) -> bool:
        """Every partition has reached its end."""
        return bool(self._partitions) and self._ended == len(self._partitions)

    @property
    def next_retry(self) -> float | None:
        """When ``data_to_send`` will next have a request; None: not by the clock alone."""
        return min(p.retry_at for p in self._waiting.values()) if self._waiting else None

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last STREAM_OK or ROLLBACK; at first the stored one."""
        return self._partitions[partition].log

    # Frames out

    def data_to_send(self, feed_id: bytes) -> list[bytes]:
        """The requests whose time has come, and the ends of streams."""
        out, self._closing = self._closing, []
        if self.rollbacks.to_ask:
            out += self.rollbacks.requests(feed_id)
        if self._waiting:
            now = self._clock()
            out += [self._request(p, feed_id) for p in list(self._waiting.values()) if now >= p.retry_at]
        return out

    def _request(self, partition: ConsumedPartition, feed_id: bytes) -> bytes:
        del self._waiting[partition.id]
        stream_id = self.new_id(partition)
        partition.state = State.REQUESTED
        return stream_request(self._wanted, partition, self.node_state, feed_id).encode(stream_id)

    def new_id(self, partition: ConsumedPartition) -> int:
        """An id for the partition's next request, whose answer is then for it."""
        partition.stream_id = stream_id = next(self._ids)
        self._by_stream[stream_id] = partition
        return stream_id

    # Frames in

    def receive(self, frame: Frame) -> Queued | None:
        """Handles a frame of a stream; the event that it makes. Raises what ends the connection."""
        opcode, _, stream_id, body = frame
        partition = self._by_stream.get(stream_id)
        if partition is None:  # of a stream that was closed meanwhile
            if opcode is Opcode.BLOCK:
                self.dropped_bytes += len(body)
            return None
        handler = self._handlers.get(opcode)
        if handler is None:
            raise ProtocolError(f"{opcode.name} is not for a consumer")
        partition.step(opcode)
        return handler(self, partition, body)

    def refused(self, stream_id: int, error: TailraceError) -> bool:
        """An ERROR that may be of a stream; False where it is not one that is mended by asking again.

        One without a kind of its own may be: a segment that cannot be read, or what a newer node has to say.
        """
        partition = self._by_stream.get(stream_id)
        mended = isinstance(error, Retryable) or type(error) is TailraceError
        if partition is None or not mended or isinstance(error, NotLeader):  # which another node is asked for
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
                f"a block of partition {header.partition} from seq {first_seq} on, in a complete snapshot of "
                f"partition {partition.id} that has come to {before_seq}"
            )
        # The log's newest branch is that of the newest rows only. (A block is of one branch.)
        mutations = Mutations.above(
            block, before_seq, branch=partition.log.branch_at(last_seq), keys_only=self._keys_only
        )
        if mutations is None:
            self.dropped_bytes += len(body)
            return None
        if self._is_timed:
            mutations, last_seq = self._in_time(partition, mutations)
            if mutations is None:
                if last_seq > before_seq:
                    partition.advanced(last_seq)
                self.dropped_bytes += len(body)
                return None
        partition.ring.add_columns(block.columns())
        return mutations, partition.id, partition.advanced(last_seq), len(body)

    def _in_time(self, partition: ConsumedPartition, mutations: Mutations) -> tuple[Mutations | None, int]:
        """Those of ``mutations`` that are not too early nor too late, and how far the consumer has come with them.

        The first one that is too late ends the stream: all after it are.
        """
        since_us, until_us = self._wanted.since_us, self._wanted.until_us
        position, last_seq = partition.position, mutations.last_seq
        assert position is not None
        kept: Mutations | None = mutations
        if until_us is not None:
            kept = mutations.stamped_before(until_us)
            if kept is not mutations:
                last_seq = position.seq if kept is None else kept.last_seq
                self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=partition.stream_id))
                self._end_reached(partition, "the time that was asked for is reached")
        if since_us is not None and kept is not None:
            kept = kept.stamped_since(since_us)
        return kept, last_seq

    def _end_reached(self, partition: ConsumedPartition, reason: str) -> None:
        self._by_stream.pop(partition.stream_id, None)
        partition.last_end = EndReason.END_REACHED
        partition.state, partition.reason = State.ENDED, reason
        self._ended += 1

    def _on_stream_ok(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        answer = StreamOk.decode(body)
        if partition.state is State.ROLLING_BACK:
            self.rollbacks.measured(partition, answer)
            return None
        if partition.position is not None:
            if answer.seq != partition.position.seq:
                raise ProtocolError(f"STREAM_OK at seq {answer.seq}, asked for {partition.position.seq}")
            decision = decide(partition.record, answer)
            if decision.move is not Move.STREAM:
                self.close(partition)
                return self.rollbacks.begin(partition, decision, answer.log, "what it was given above was lost")
        known = partition.log
        partition.opened(answer, self._clock())
        if answer.log != known and self._on_history is not None:
            self._on_history()
        if self._wanted.since == "now" and partition.id not in self._handled:
            assert partition.position is not None
            self._handled[partition.id] = partition.position
        if partition.end_has_moved(answer):
            self.close(partition)
            self.wait(partition, "what was to be its end is of another history", self._clock())
        return None

    def close(self, partition: ConsumedPartition) -> None:
        """Nothing more of the partition's stream is taken."""
        self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=partition.stream_id))
        self.stopped(partition)

    def stopped(self, partition: ConsumedPartition) -> None:
        """The partition's stream, or what else was asked for it, has no more answers."""
        self._by_stream.pop(partition.stream_id, None)
        self._on_stopped()

    def _on_rollback(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        answer = RollBack.decode(body)
        position = partition.position
        if position is None or answer.seq > position.seq:
            raise ProtocolError(f"ROLLBACK of partition {partition.id} to seq {answer.seq}, where it is not")
        self.stopped(partition)
        return self.rollbacks.begin(partition, decide(partition.record, answer), answer.log, answer.why)

    def _on_got(self, partition: ConsumedPartition, body: memoryview) -> None:
        self.rollbacks.got(partition, body)

    def _on_snapshot_start(self, partition: ConsumedPartition, body: memoryview) -> Queued | None:
        message = SnapshotStartMessage.decode(body)
        if message.branch != partition.branch:
            # The node's history has changed under the stream: nothing of it may be applied under the old log.
            self.close(partition)
            partition.last_end = EndReason.HISTORY_CHANGED
            self.try_again(partition, "the partition's history has changed")
            return None
        position = partition.snapshot_started(message)
        _, complete, _, after_seq, last_seq, purge_seq, published = message
        event = _new(SnapshotStart, (partition.id, after_seq + 1, last_seq, position, complete, purge_seq, published))
        return event, partition.id, position, 0

    def _on_snapshot_end(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        _, seq = decode_seq(body, "SNAPSHOT_END")
        position = partition.position
        if partition.in_complete_snapshot and not self._selects and position is not None and position.seq < seq:
            raise ProtocolError(
                f"a complete snapshot of partition {partition.id} ends at seq {seq}, and has come to {position.seq}"
            )
        position = partition.at_end_of_run(seq)
        event = _new(SnapshotEnd, (partition.id, partition.snapshot_after + 1, seq, position))
        return event, partition.id, position, 0

    def _on_seq_advanced(self, partition: ConsumedPartition, body: memoryview) -> Queued:
        """A snapshot of which nothing is sent: all of it is an event."""
        _, seq = decode_seq(body, "SEQ_ADVANCED")
        after_seq, position = partition.passed_over(seq)
        return SnapshotEnd(partition.id, after_seq + 1, seq, position), partition.id, position, 0

    def _on_stream_end(self, partition: ConsumedPartition, body: memoryview) -> None:
        end = StreamEnd.decode(body)
        partition.last_end = end.reason
        if end.reason is EndReason.END_REACHED:
            self._end_reached(partition, end.message)
        elif end.reason is EndReason.TRIMMED:
            self.fail(DataGone(end.message, first_seq=end.first_seq))
        elif end.reason in FINAL:
            self.fail(FINAL[end.reason](end.message))
        else:
            self.try_again(partition, f"{end.reason.value}: {end.message}")
            self._move_on(partition, end)

    def _move_on(self, partition: ConsumedPartition, end: StreamEnd) -> None:
        """Raises NotLeader, which ends the connection, where another node should be asked."""
        lacking = end.reason in _LACKING and self.has_others and partition.tries >= _LACKING_TRIES
        if lacking or end.reason is EndReason.WRONG_STATE:
            raise NotLeader(f"partition {partition.id}: {end.message}")

    def try_again(self, partition: ConsumedPartition, reason: str) -> None:
        """The stream is asked for again after a while."""
        partition.tries += 1
        self.wait(partition, reason, self._clock() + backoff_seconds(partition.tries, self._jitter))

    def wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None:
        """The stream is asked for (again) at ``retry_at``."""
        self.stopped(partition)
        self.rollbacks.abandon(partition)
        partition.wait(reason, self._clock(), retry_at)
        self._waiting[partition.id] = partition

    @property
    def now(self) -> float:
        """Monotonic seconds of the shell's clock."""
        return self._clock()

    # Events that a rollback waits for

    def handled(self, event: Event | ReplicaEvent | bytes, partition: int) -> None:
        """The program has handled ``event``, for which a rollback may have waited."""
        if self.rollbacks.under_way and partition in self._partitions:
            self.rollbacks.handled(self._partitions[partition], event)

    def settle(self, event: Rollback, point: int | None) -> Position | None:
        """How far the index has gone back for ``event`` (None: not by itself); the position that follows from it."""
        return self.rollbacks.settle(self._partitions[event.partition], event, point)

    def ring(self, partition: int) -> Ring:
        """The ring of a partition."""
        return self._partitions[partition].ring


Handler = Callable[[PartitionStreams, ConsumedPartition, memoryview], Queued | None]

HANDLERS: dict[Opcode, Handler] = {
    Opcode.BLOCK: PartitionStreams._on_block,
    Opcode.STREAM_OK: PartitionStreams._on_stream_ok,
    Opcode.ROLLBACK: PartitionStreams._on_rollback,
    Opcode.GOT: PartitionStreams._on_got,
    Opcode.SNAPSHOT_START: PartitionStreams._on_snapshot_start,
    Opcode.SNAPSHOT_END: PartitionStreams._on_snapshot_end,
    Opcode.SEQ_ADVANCED: PartitionStreams._on_seq_advanced,
    Opcode.STREAM_END: PartitionStreams._on_stream_end,
}
