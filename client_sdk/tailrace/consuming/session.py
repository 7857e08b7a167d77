"""A consumer's conversation with a node, across connections. Sans-IO: bytes in, events and bytes out.

    connection_made: HELLO ── HELLO_OK ── PARTITIONS ── RESULT ── a STREAM_REQUEST for each partition
    then: STREAM_OK, or ROLLBACK and a request from the beginning, or an end, and a request again after a while
    then: SNAPSHOT_START, BLOCK ..., SNAPSHOT_END, ROUND_COMPLETE ... as events

``positions`` moves when the event that follows is asked for: it covers what has been handled, never what is being.
Every end of a stream leads to another request but those in ``FINAL``. Source: docs/streams.md.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tailrace.backoff import backoff_seconds
from tailrace.block import Block
from tailrace.consuming.partition import ConsumedPartition, PartitionStatus, State
from tailrace.errors import (
    BadPosition,
    DataGone,
    Forbidden,
    ProtocolError,
    Retryable,
    StreamEnded,
    TailraceError,
    TooLarge,
    UnknownFeed,
)
from tailrace.events import Mutations, Rollback, RoundComplete, SnapshotEnd, SnapshotStart
from tailrace.failover import SEQ_MAX, FailoverLog, request_bounds
from tailrace.model import FEED_ID_BYTES, EndReason, Level
from tailrace.position import PARTITION_MAX, Position, Positions
from tailrace.wire.frames import Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import (
    PROTOCOL_VERSION,
    Hello,
    HelloOk,
    RollBack,
    SnapshotStartMessage,
    StreamEnd,
    StreamOk,
    StreamRequest,
    decode_cookie,
    decode_error,
    decode_json,
    decode_number,
    decode_seq,
    encode_json,
    encode_number,
)
from tailrace.wire.opcodes import Opcode

Event = Mutations | SnapshotStart | SnapshotEnd | RoundComplete | Rollback

_MAP_ID = 0xFFFFFFFF  # the request for the partition map; streams have the ids below

FINAL: dict[EndReason, Callable[[str], TailraceError]] = {
    EndReason.TRIMMED: DataGone,
    EndReason.FORBIDDEN: Forbidden,
    EndReason.FEED_DROPPED: UnknownFeed,
}


class Wanted(NamedTuple):
    """What a consumer asks for. ``since``: "beginning", "now" or positions; ``until``: None, "now" or the

    last seq of each partition."""

    feed: str
    since: str | Positions = "beginning"
    until: str | Mapping[int, int] | None = None
    partitions: frozenset[int] | None = None
    visibility: Level = Level.DISK
    on_rollback: str = "follow"
    stored: tuple[Positions, ...] = ()  # what was given as positions: has to be of this feed


class _Queued(NamedTuple):
    """An event that waits to be asked for, the position that it leads to, and the bytes that it frees."""

    event: Event | bytes  # bytes: the cookie of a barrier that has come back
    partition: int = -1
    position: Position | None = None
    credit_bytes: int = 0


class ConsumerSession:
    """See the module. Times are monotonic seconds of the shell's clock."""

    def __init__(self, hello: Hello, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._hello = hello
        self._wanted = wanted
        self._clock = clock
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._frames: collections.deque[Frame] = collections.deque()  # that have arrived and are not handled
        self._queue: collections.deque[_Queued] = collections.deque()
        self._handing: _Queued | None = None
        self._partitions: dict[int, ConsumedPartition] = {}
        self._by_stream: dict[int, ConsumedPartition] = {}
        self._waiting: dict[int, ConsumedPartition] = {}  # those to be asked for, by id
        self._handled: dict[int, Position] = {}
        self._barriers: dict[bytes, Callable[[], None]] = {}
        self._sent_barriers: dict[bytes, bytes] = {}  # what was sent, and the barrier that it is for
        self._cookies = itertools.count(1)
        self._stream_ids = itertools.count(1)
        self._consumed_bytes = 0
        self._linked = False
        self._failure: TailraceError | None = None
        self._error: TailraceError | None = None
        self.peer: HelloOk | None = None
        self.feed_id: bytes | None = None
        if isinstance(wanted.since, Positions):
            self._handled = dict(wanted.since)

    # The link

    def connection_made(self) -> None:
        """A new connection: says hello."""
        self._decoder = FrameDecoder()
        self._out = [self._hello.encode()]
        self._stream_ids = itertools.count(1)

    def connection_lost(self, reason: str) -> None:
        """The connection is gone. Events are still handed out; what was not handled comes again."""
        self._linked = False
        self._out = []
        self._frames.clear()
        self._error = None
        self._consumed_bytes = 0
        self._sent_barriers.clear()
        self._by_stream.clear()
        now = self._clock()
        for partition in self._partitions.values():
            if partition.state is not State.ENDED:
                self._wait(partition, reason, now)

    def receive_data(self, data: bytes) -> None:
        """Takes what the node has sent; it is handled as events are asked for. Raises ProtocolError, TooLarge."""
        self._frames.extend(self._decoder.receive_data(data))

    def handle_all(self) -> None:
        """Handles all that has arrived. Raises as ``next_event``."""
        while self._frames:
            self._receive(self._frames.popleft())

    def data_to_send(self) -> list[bytes]:
        """What has to be sent now: requests whose time has come, credit, barriers."""
        if self._linked:
            if self._waiting:
                self._request_waiting()
            self._send_barriers()
            if self._consumed_bytes >= self._credit_bytes:
                self._send_credit()
        out, self._out = self._out, []
        return out

    @property
    def _credit_bytes(self) -> int:
        """So much is consumed before it is told: a part of the window, which the node may have made smaller."""
        window_bytes = self._hello.window_bytes
        return max((window_bytes if self.peer is None else min(window_bytes, self.peer.window_bytes)) // 4, 1)

    def noop(self) -> None:
        """Says something, so that the node knows that this side lives."""
        if self._linked:
            self._out.append(encode_frame(Opcode.NOOP))

    @property
    def failure(self) -> TailraceError | None:
        """What has ended the stream for good, once everything before it has been handed out."""
        return self._failure

    # What the shell wants to know

    @property
    def answered(self) -> bool:
        """Every partition has been agreed to, or has reached its end."""
        return bool(self._partitions) and all(
            p.state in (State.OPEN, State.IN_SNAPSHOT, State.ENDED) for p in self._partitions.values()
        )

    @property
    def why_not_answered(self) -> str:
        """What keeps the first partition that has not been agreed to."""
        waiting = (p for p in self._partitions.values() if p.state in (State.WAITING, State.REQUESTED))
        return next((f"partition {p.id}: {p.reason}" for p in waiting), "the node has not answered")

    @property
    def finished(self) -> bool:
        """Every partition has reached its end, and every event was handed out."""
        return (
            bool(self._partitions)
            and not self._queue
            and not self._frames
            and all(p.state is State.ENDED for p in self._partitions.values())
        )

    @property
    def next_retry(self) -> float | None:
        """When ``data_to_send`` will next have a request to send; None: not by the clock alone."""
        if not self._linked:
            return None
        return min((p.retry_at for p in self._waiting.values()), default=None)

    @property
    def positions(self) -> Positions:
        """Where the consumer stands: covers the events before the one that is being handled."""
        return self._to_positions(self._handled)

    @property
    def latest_positions(self) -> Positions:
        """As ``positions``, with the event that is being handled."""
        handing = self._handing
        if handing is None or handing.position is None:
            return self.positions
        return self._to_positions({**self._handled, handing.partition: handing.position})

    def _to_positions(self, positions: dict[int, Position]) -> Positions:
        if isinstance(self._wanted.since, Positions) and (self.peer is None or self.feed_id is None):
            return self._wanted.since
        if self.peer is None or self.feed_id is None:
            raise StreamEnded("the stream has not begun: it has no positions yet", reason=EndReason.CLOSED)
        return Positions(bytes.fromhex(self.peer.cluster_id), self.feed_id, positions)

    def status(self) -> list[PartitionStatus]:
        """The state of each partition, by id."""
        return [partition.status() for _, partition in sorted(self._partitions.items())]

    # Events

    def next_event(self) -> Event | None:
        """The next event, None where nothing has arrived. The one before it counts as handled from now on.

        What it raises ends the connection; ``failure`` says whether it is final.
        """
        self._settle()
        while True:
            while self._queue:
                queued = self._queue.popleft()
                if isinstance(queued.event, bytes):
                    self._barrier_reached(queued.event)
                    continue
                self._handing = queued
                return queued.event
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if not self._frames:
                return None
            self._receive(self._frames.popleft())

    def has_event(self) -> bool:
        """Something has arrived that ``next_event`` would give."""
        while True:
            if any(not isinstance(queued.event, bytes) for queued in self._queue):
                return True
            if not self._frames or self._error is not None:
                return False
            try:
                self._receive(self._frames.popleft())
            except TailraceError as error:
                self._error = error  # next_event raises it, when it has come so far

    def _settle(self) -> None:
        handing, self._handing = self._handing, None
        if handing is not None:
            self._consumed_bytes += handing.credit_bytes
            if handing.position is not None:
                self._handled[handing.partition] = handing.position

    # Barriers

    def barrier(self, cookie: bytes, reached: Callable[[], None]) -> None:
        """Calls ``reached`` once everything that was acknowledged before has been handed out and handled."""
        self._barriers[cookie] = reached

    def forget_barrier(self, cookie: bytes) -> None:
        """Nobody waits for it any more."""
        self._barriers.pop(cookie, None)
        self._sent_barriers = {sent: barrier for sent, barrier in self._sent_barriers.items() if barrier != cookie}

    def _send_barriers(self) -> None:
        """Sends those that are not under way, each time under another name.

        Once a stream has ended, an answer to what was sent before counts for nothing: the node may have given it
        because it had no such stream any more.
        """
        if len(self._sent_barriers) == len(self._barriers) or not self.answered:
            return
        under_way = set(self._sent_barriers.values())
        for cookie in [cookie for cookie in self._barriers if cookie not in under_way]:
            sent = next(self._cookies).to_bytes(8, "little")
            self._sent_barriers[sent] = cookie
            self._out.append(encode_frame(Opcode.BARRIER, sent))

    def _barrier_reached(self, cookie: bytes) -> None:
        reached = self._barriers.get(cookie)
        self.forget_barrier(cookie)
        if reached is not None:
            reached()

    # Frames out

    def _request_waiting(self) -> None:
        assert self.feed_id is not None
        now = self._clock()
        for partition in [p for p in self._waiting.values() if now >= p.retry_at]:
            del self._waiting[partition.id]
            partition.stream_id = stream_id = next(self._stream_ids)
            self._by_stream[stream_id] = partition
            partition.state = State.REQUESTED
            position = partition.position
            if position is None:
                position = Position.at(FailoverLog(), 0)
            seq, first, last = request_bounds(position.seq, position.snapshot_first, position.snapshot_last)
            request = StreamRequest(
                self.feed_id,
                partition.id,
                position.log,
                seq if partition.position is not None else None,
                first,
                last,
                position.purge_seq,
                partition.end_seq,
                self._wanted.visibility,
            )
            self._out.append(request.encode(stream_id))

    def _send_credit(self) -> None:
        self._out.append(encode_number(Opcode.CREDIT, self._consumed_bytes))
        self._consumed_bytes = 0

    # Frames in

    def _receive(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BLOCK:
            self._on_block(frame)
            return
        match frame.opcode:
            case Opcode.NOOP:
                pass
            case Opcode.HELLO_OK:
                self._on_hello_ok(HelloOk.decode(frame.body))
            case Opcode.RESULT if frame.id == _MAP_ID:
                self._on_map(decode_json(frame.body, "RESULT"))
            case Opcode.ERROR:
                self._on_error(frame)
            case Opcode.ROUND_COMPLETE:
                self._queue.append(_Queued(RoundComplete(decode_number(frame.body, "ROUND_COMPLETE"))))
            case Opcode.BARRIER_REACHED:
                cookie = self._sent_barriers.get(decode_cookie(frame.body, "BARRIER_REACHED"))
                if cookie is not None:
                    self._queue.append(_Queued(cookie))
            case Opcode.BARRIER_LOST:
                self._sent_barriers.pop(decode_cookie(frame.body, "BARRIER_LOST"), None)
            case _:
                self._on_stream_frame(frame)

    def _on_hello_ok(self, peer: HelloOk) -> None:
        if peer.version != PROTOCOL_VERSION:
            self._fail(ProtocolError(f"the node speaks version {peer.version} of the protocol, not {PROTOCOL_VERSION}"))
        if self.peer is not None and self.peer.cluster_id != peer.cluster_id:
            self._fail(
                BadPosition(f"this node is of cluster {peer.cluster_id}, the stream is of {self.peer.cluster_id}")
            )
        self.peer = peer
        self._out.append(encode_json(Opcode.PARTITIONS, {"name": self._wanted.feed}, _MAP_ID))

    def _on_map(self, value: dict[str, Any]) -> None:
        feed_id, high_seqs = _read_map(value)
        if self.feed_id is not None and self.feed_id != feed_id:
            self._fail(UnknownFeed(f"feed {self._wanted.feed!r} was dropped, and another one made under its name"))
        self.feed_id = feed_id
        self._linked = True
        if not self._partitions:
            self._begin(high_seqs)

    def _begin(self, high_seqs: dict[int, int]) -> None:
        wanted, now = self._wanted, self._clock()
        assert self.peer is not None
        assert self.feed_id is not None
        for positions in wanted.stored:
            try:
                positions.require_feed(bytes.fromhex(self.peer.cluster_id), self.feed_id)
            except BadPosition as error:
                self._fail(error)
        missing = (wanted.partitions or frozenset()) - high_seqs.keys()
        if missing:
            self._fail(UnknownFeed(f"feed {wanted.feed!r} has no partition {min(missing)}: it has {len(high_seqs)}"))
        for id in sorted(high_seqs if wanted.partitions is None else wanted.partitions):
            end_seq = None
            if wanted.until == "now":
                end_seq = high_seqs[id]
            elif wanted.until is not None:
                assert not isinstance(wanted.until, str)
                end_seq = wanted.until.get(id, 0)
            partition = ConsumedPartition(id, self._start(id), end_seq, now)
            self._partitions[id] = self._waiting[id] = partition

    def _start(self, id: int) -> Position | None:
        since = self._wanted.since
        if isinstance(since, Positions):
            return since.get(id, Position.at(FailoverLog(), 0))
        return None if since == "now" else Position.at(FailoverLog(), 0)

    def _fail(self, error: TailraceError) -> None:
        """Ends the stream for good."""
        if self._failure is None:
            self._failure = error
        raise error

    def _on_error(self, frame: Frame) -> None:
        error = decode_error(frame.body)
        partition = self._by_stream.get(frame.id)
        if partition is not None and isinstance(error, Retryable):
            partition.step(Opcode.ERROR)
            self._try_again(partition, str(error))
            return
        # What ends a connection that has been in use (silence, damage on the way) need not end the next one.
        of_connection = frame.id == 0 and self._linked and isinstance(error, ProtocolError | TooLarge)
        if of_connection or isinstance(error, Retryable):
            raise error
        self._fail(error)

    def _on_stream_frame(self, frame: Frame) -> None:
        partition = self._by_stream.get(frame.id)
        if partition is None:
            return  # of a stream that was closed meanwhile
        handler = _STREAM_HANDLERS.get(frame.opcode)
        if handler is None:
            raise ProtocolError(f"{frame.opcode.name} is not for a consumer")
        partition.step(frame.opcode)
        handler(self, partition, frame)

    def _on_block(self, frame: Frame) -> None:
        partition = self._by_stream.get(frame.id)
        if partition is None:
            self._consumed_bytes += len(frame.body)
            return
        partition.step(Opcode.BLOCK)
        block = Block.parse(frame.body)
        assert partition.position is not None
        before_seq = partition.position.seq
        if block.header.partition != partition.id or (
            block.header.first_seq > before_seq + 1 and partition.in_complete_snapshot
        ):
            raise ProtocolError(
                f"a block of partition {block.header.partition} from seq {block.header.first_seq} on, in a complete "
                f"snapshot of partition {partition.id} that has come to {before_seq}"
            )
        # The log's newest branch is that of the newest rows only. (A block is of one branch.)
        branch = partition.log.branch_at(block.header.last_seq)
        mutations = Mutations.above(block, before_seq, branch=branch)
        if mutations is None:
            self._consumed_bytes += block.nbytes
            return
        position = partition.advanced(block.header.last_seq)
        self._queue.append(_Queued(mutations, partition.id, position, block.nbytes))

    def _on_stream_ok(self, partition: ConsumedPartition, frame: Frame) -> None:
        answer = StreamOk.decode(frame.body)
        if partition.position is not None and answer.seq != partition.position.seq:
            raise ProtocolError(f"STREAM_OK at seq {answer.seq}, asked for {partition.position.seq}")
        partition.opened(answer, self._clock())
        if self._wanted.since == "now" and partition.id not in self._handled:
            assert partition.position is not None
            self._handled[partition.id] = partition.position

    def _on_rollback(self, partition: ConsumedPartition, frame: Frame) -> None:
        answer = RollBack.decode(frame.body)
        if self._wanted.on_rollback == "stop":
            message = f"partition {partition.id} would have to be rolled back to seq {answer.seq} ({answer.why})"
            self._fail(StreamEnded(message, reason=EndReason.ROLLED_BACK))
        position = partition.rolled_back(answer.log)
        self._wait(partition, f"rolled back: {answer.why}", self._clock())
        self._queue.append(_Queued(Rollback(partition.id, 0, None), partition.id, position))

    def _on_snapshot_start(self, partition: ConsumedPartition, frame: Frame) -> None:
        message = SnapshotStartMessage.decode(frame.body)
        if message.branch != partition.log.branch:
            # The node's history has changed under the stream: nothing of it may be applied under the old log.
            self._out.append(encode_frame(Opcode.STREAM_CLOSE, id=frame.id))
            self._try_again(partition, "the partition's history has changed")
            return
        position = partition.snapshot_started(message)
        event = SnapshotStart(partition.id, message.after_seq + 1, message.last_seq, position)
        self._queue.append(_Queued(event, partition.id, position))

    def _on_snapshot_end(self, partition: ConsumedPartition, frame: Frame) -> None:
        _, seq = decode_seq(frame.body, "SNAPSHOT_END")
        if partition.in_complete_snapshot and partition.position is not None and partition.position.seq < seq:
            raise ProtocolError(
                f"a complete snapshot of partition {partition.id} ends at seq {seq}, and has come to "
                f"{partition.position.seq}"
            )
        position = partition.at_end_of_run(seq)
        event = SnapshotEnd(partition.id, partition.snapshot_after + 1, seq, position)
        self._queue.append(_Queued(event, partition.id, position))

    def _on_seq_advanced(self, partition: ConsumedPartition, frame: Frame) -> None:
        _, seq = decode_seq(frame.body, "SEQ_ADVANCED")
        position = partition.at_end_of_run(seq)
        self._queue.append(_Queued(SnapshotEnd(partition.id, seq, seq, position), partition.id, position))

    def _on_stream_end(self, partition: ConsumedPartition, frame: Frame) -> None:
        end = StreamEnd.decode(frame.body)
        if end.reason is EndReason.END_REACHED:
            self._by_stream.pop(partition.stream_id, None)
            partition.state, partition.reason = State.ENDED, end.message
        elif end.reason in FINAL:
            self._fail(FINAL[end.reason](end.message))
        else:
            self._try_again(partition, f"{end.reason.value}: {end.message}")

    def _try_again(self, partition: ConsumedPartition, reason: str) -> None:
        partition.tries += 1
        self._wait(partition, reason, self._clock() + backoff_seconds(partition.tries))

    def _wait(self, partition: ConsumedPartition, reason: str, retry_at: float) -> None:
        self._by_stream.pop(partition.stream_id, None)
        self._sent_barriers.clear()
        partition.wait(reason, self._clock(), retry_at)
        self._waiting[partition.id] = partition


def _read_map(value: dict[str, Any]) -> tuple[bytes, dict[int, int]]:
    """The feed's id and the high seq of each partition."""
    try:
        feed_id = bytes.fromhex(value["feed"]["feed_id"])
        high_seqs = {p["id"]: p["high_seq"] for p in value["partitions"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the partition map cannot be read: {error!r}") from None
    numbers = [(id, PARTITION_MAX) for id in high_seqs] + [(seq, SEQ_MAX) for seq in high_seqs.values()]
    if len(feed_id) != FEED_ID_BYTES or any(type(n) is not int or not 0 <= n <= most for n, most in numbers):
        raise ProtocolError("the partition map cannot be read: an id or a seq is out of its range")
    return feed_id, high_seqs


_STREAM_HANDLERS: dict[Opcode, Callable[[ConsumerSession, ConsumedPartition, Frame], None]] = {
    Opcode.STREAM_OK: ConsumerSession._on_stream_ok,
    Opcode.ROLLBACK: ConsumerSession._on_rollback,
    Opcode.SNAPSHOT_START: ConsumerSession._on_snapshot_start,
    Opcode.SNAPSHOT_END: ConsumerSession._on_snapshot_end,
    Opcode.SEQ_ADVANCED: ConsumerSession._on_seq_advanced,
    Opcode.STREAM_END: ConsumerSession._on_stream_end,
}
