"""A consumer's conversation with a node, across connections. Sans-IO: bytes in, events and bytes out.

    connection_made: HELLO ── HELLO_OK ── PARTITIONS ── RESULT ── the streams of the partitions (``streams``)
    beside them: ROUND_COMPLETE, barriers, credit, noops

``positions`` moves when the event that follows is asked for: it covers what has been handled, never what is being.
Source: docs/protocol/streams.md.
"""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable
from typing import Any

from tailrace.consuming.events import Event, LeaderCheck, ReplicaEvent, Rollback, RoundComplete
from tailrace.consuming.partition import PartitionStatus
from tailrace.consuming.replica import ReplicaStreams
from tailrace.consuming.ring import RingChange
from tailrace.consuming.rollbacks import Queued
from tailrace.consuming.streams import FINAL, PartitionStreams
from tailrace.consuming.wanted import Wanted
from tailrace.errors import (
    BadPosition,
    NotLeader,
    ProtocolError,
    Retryable,
    StreamEnded,
    TailraceError,
    TooLarge,
    UnknownFeed,
)
from tailrace.link.backoff import backoff_seconds
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.requests.replies import partition_map
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import PROTOCOL_VERSION, Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import decode_cookie, decode_number, encode_number

__all__ = ["FINAL", "ConsumerSession", "Event", "Wanted"]

_MAP_ID = 0xFFFFFFFF  # the request for the partition map; streams have the ids below


class ConsumerSession:
    """See the module. Times are monotonic seconds of the shell's clock."""

    def __init__(
        self,
        hello: Hello,
        wanted: Wanted,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        check: Callable[[HelloOk], None] = lambda _: None,
        *,
        has_others: bool = False,
    ) -> None:
        """``check`` raises where the node that has said hello is not the one to ask; ``has_others``: there are more."""
        self.hello = hello  # what this side says first
        self._check = check
        self._wanted = wanted
        self._decoder = FrameDecoder()
        self._out: list[bytes] = []
        self._frames: collections.deque[Frame] = collections.deque()  # that have arrived and are not handled
        self._queue: collections.deque[Queued] = collections.deque()  # handled before they were asked for
        self._handing: Queued | None = None
        self._handled: dict[int, Position] = {}
        self._barriers: dict[bytes, Callable[[], None]] = {}
        self._sent_barriers: dict[bytes, bytes] = {}  # what was sent, and the barrier that it is for
        self._barrier_tries = 0  # that were lost in a row
        self._barriers_at = 0.0  # when the next ones may be sent
        self._clock = clock
        self._jitter = jitter
        self._cookies = itertools.count(1)
        self._waiting_bytes = 0  # of blocks that have come on this connection before the program asked for events
        self._consumed_bytes = 0
        self._credit_bytes = 1  # so much is consumed before it is told
        self._begun_at = 0  # the sum of the partitions' seqs at the beginning of the connection
        self._greeted = self._linked = False
        self._error: TailraceError | None = None
        self.peer: HelloOk | None = None
        self.feed_id = wanted.feed_id
        if isinstance(wanted.since, Positions):
            self._handled = dict(wanted.since)
        # Once a stream has stopped, an answer to a barrier that was sent before counts for nothing: the node may have
        # given it because it had no such stream any more.
        kind = PartitionStreams if wanted.replica is None else ReplicaStreams
        self._streams = kind(wanted, clock, self._handled, self._sent_barriers.clear, self._queue.extend, jitter)
        self._streams.has_others = has_others

    # The link

    @property
    def has_progressed(self) -> bool:
        """Some partition has come further on the present connection than it was before."""
        return self._streams.total_seq > self._begun_at

    def connection_made(self) -> None:
        """A new connection: says hello."""
        self._begun_at = self._streams.total_seq
        self._waiting_bytes = 0
        self._decoder = FrameDecoder()
        self._out = [self.hello.encode()]
        self._streams.connection_made()

    def connection_lost(self, reason: str) -> None:
        """The connection is gone. Events are still handed out; what was not handled comes again."""
        self._greeted = self._linked = False
        self._out = []
        self._frames.clear()
        self._error = None
        self._consumed_bytes = 0
        self._sent_barriers.clear()
        self._barrier_tries, self._barriers_at = 0, 0.0
        self._streams.connection_lost(reason)

    def receive_data(self, data: bytes) -> None:
        """Takes what the node has sent; it is handled as events are asked for. Raises ProtocolError, TooLarge."""
        self._frames.extend(self._decoder.receive_data(data))

    def handle_all(self) -> None:
        """Handles all that has arrived, before the program asks for events. Raises as ``next_event``.

        A node may have blocks of a window under way, and one more, for which no credit was given: more than that is
        refused with ProtocolError, as nothing else would bound what waits here.
        """
        while self._frames:
            queued = self._receive(self._frames.popleft())
            if queued is not None:
                self._queue.append(queued)
                self._waiting_bytes += queued[3]
                if self._waiting_bytes > self.hello.window_bytes + FRAME_BODY_BYTES_MAX:
                    window = f"the window is of {self.hello.window_bytes} bytes"
                    raise ProtocolError(f"the node has sent blocks of {self._waiting_bytes} bytes, and {window}")

    def data_to_send(self) -> list[bytes]:
        """What has to be sent now: requests whose time has come, credit, barriers."""
        if self._linked:
            assert self.feed_id is not None
            self._out += self._streams.data_to_send(self.feed_id)
            if self._barriers:
                self._send_barriers()
            consumed_bytes = self._consumed_bytes + self._streams.dropped_bytes
            if consumed_bytes >= self._credit_bytes:
                self._out.append(encode_number(Opcode.CREDIT, consumed_bytes))
                self._consumed_bytes = self._streams.dropped_bytes = 0
        out, self._out = self._out, []
        return out

    def noop(self) -> None:
        """Says something, so that the node knows that this side lives."""
        if self._linked:
            self._out.append(encode_frame(Opcode.NOOP))

    @property
    def failure(self) -> TailraceError | None:
        """What has ended the stream for good, once everything before it has been handed out."""
        return self._streams.failure

    # What the shell wants to know

    @property
    def greeted(self) -> bool:
        """The node at the other end has said hello, and is the one to ask."""
        return self._greeted

    @property
    def answered(self) -> bool:
        """Every partition has been agreed to, or has reached its end."""
        return self._streams.answered

    @property
    def why_not_answered(self) -> str:
        """What keeps the first partition that has not been agreed to."""
        return self._streams.why_not_answered

    @property
    def finished(self) -> bool:
        """Every partition has reached its end, and every event was handed out."""
        return not self._queue and not self._frames and self._streams.ended

    @property
    def next_retry(self) -> float | None:
        """When ``data_to_send`` will next have a request to send; None: not by the clock alone."""
        if not self._linked:
            return None
        at = self._streams.next_retry
        if not self._barriers_due:
            return at
        return self._barriers_at if at is None else min(at, self._barriers_at)

    @property
    def positions(self) -> Positions:
        """Where the consumer stands: covers the events before the one that is being handled."""
        return self._to_positions(self._handled)

    @property
    def latest_positions(self) -> Positions:
        """As ``positions``, with the event that is being handled."""
        if self._handing is None:
            return self.positions
        _, partition, position, _ = self._handing
        return self.positions if position is None else self._to_positions({**self._handled, partition: position})

    def _to_positions(self, positions: dict[int, Position]) -> Positions:
        if isinstance(self._wanted.since, Positions) and (self.peer is None or self.feed_id is None):
            return self._wanted.since
        if self.peer is None or self.feed_id is None:
            raise StreamEnded("the stream has not begun: it has no positions yet", reason=EndReason.CLOSED)
        return Positions(bytes.fromhex(self.peer.cluster_id), self.feed_id, positions)

    def status(self) -> list[PartitionStatus]:
        """The state of each partition, by id."""
        return [partition.status() for partition in self._streams.partitions]

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last answer for ``partition``; at first the stored one."""
        return self._streams.failover_log(partition)

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that the log of a partition has changed without an event that tells of it."""
        self._streams.watch_history(changed)

    # Events

    def next_event(self) -> Event | ReplicaEvent | None:
        """The next event, None where nothing has arrived. The one before it counts as handled from now on.

        What it raises ends the connection; ``failure`` says whether it is final.
        """
        if self._handing is not None:
            handled, partition, position, credit_bytes = self._handing
            self._handing = None
            self._consumed_bytes += credit_bytes
            if position is not None:
                self._handled[partition] = position
            self._streams.handled(handled, partition)
        while True:
            if self._queue:
                queued: Queued | None = self._queue.popleft()
            elif self._error is not None:
                error, self._error = self._error, None
                raise error
            elif self._frames:
                frame = self._frames.popleft()
                handler = _HANDLERS.get(frame.opcode)  # as _receive, a call less for each event
                queued = self._streams.receive(frame) if handler is None else handler(self, frame)
            else:
                return None
            if queued is None:
                continue
            event = queued[0]
            if not isinstance(event, bytes):
                self._handing = queued
                return event
            self._barrier_reached(event)

    def has_event(self) -> bool:
        """Something has arrived that ``next_event`` would give."""
        while True:
            if any(not isinstance(event, bytes) for event, *_ in self._queue):
                return True
            if not self._frames or self._error is not None:
                return False
            try:
                queued = self._receive(self._frames.popleft())
            except TailraceError as error:
                self._error = error  # next_event raises it, when it has come so far
            else:
                if queued is not None:
                    self._queue.append(queued)

    # Rollbacks, for who follows with an index

    def settle(self, event: Rollback, point: int | None) -> None:
        """The index has gone back to ``point``, or cannot go back by itself (None); ``event`` is being handled."""
        position = self._streams.settle(event, point)
        if position is not None and self._handing is not None and self._handing[0] is event:
            self._handing = (event, event.partition, position, 0)

    def ring_floor(self, partition: int) -> int:
        """The seq above which the ring of a partition knows every key."""
        return self._streams.ring(partition).floor_seq

    def ring_change(self, partition: int) -> RingChange | None:
        """How the ring has changed with the last refetched event; None where there was none since this was asked."""
        return self._streams.rollbacks.changes.pop(partition, None)

    # For a replica

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> None:
        """Queues that the replica has ``partition`` on disk up to ``seq`` of ``branch``, where its stream is open."""
        frame = self._replica_streams.acknowledge(partition, branch, seq)
        if frame:
            self._out.append(frame)

    def resume(self, partition: int, position: Position) -> None:
        """Has a partition of which a stream has failed asked for again, from ``position``, after a pause."""
        self._replica_streams.resume(partition, position)

    def confirm(self, number: int) -> None:
        """Queues the answer to a LeaderCheck."""
        if self._linked:
            self._out.append(encode_number(Opcode.LEADER_CONFIRM, number))

    @property
    def _replica_streams(self) -> ReplicaStreams:
        assert isinstance(self._streams, ReplicaStreams), "this is for a replica"
        return self._streams

    # Barriers

    def barrier(self, cookie: bytes, reached: Callable[[], None]) -> None:
        """Calls ``reached`` once everything that was acknowledged before has been handed out and handled."""
        self._barriers[cookie] = reached

    def forget_barrier(self, cookie: bytes) -> None:
        """Nobody waits for it any more."""
        self._barriers.pop(cookie, None)
        for sent in [sent for sent, barrier in self._sent_barriers.items() if barrier == cookie]:
            del self._sent_barriers[sent]

    @property
    def waits(self) -> bool:
        """A barrier has not come back yet."""
        return bool(self._barriers)

    @property
    def _barriers_due(self) -> bool:
        """Some barrier is not under way, and all streams are open, so that it can be sent."""
        return len(self._sent_barriers) < len(self._barriers) and self._streams.open

    def _send_barriers(self) -> None:
        """Sends those that are not under way, each under a new name; after a pause if the last ones were lost."""
        if not self._barriers_due or self._clock() < self._barriers_at:
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

    # Frames in

    def _receive(self, frame: Frame) -> Queued | None:
        handler = _HANDLERS.get(frame.opcode)
        return self._streams.receive(frame) if handler is None else handler(self, frame)

    def _on_noop(self, frame: Frame) -> None:
        """It has been heard, which is all that it is for."""

    def _on_hello_ok(self, frame: Frame) -> None:
        peer = HelloOk.decode(frame.body)
        if peer.version != PROTOCOL_VERSION:
            message = f"the node speaks version {peer.version} of the protocol, not {PROTOCOL_VERSION}"
            self._streams.fail(ProtocolError(message))
        self._check(peer)
        # Before the feed was found nothing is of a cluster: a node that was new then may have joined its own since.
        if self.feed_id is not None and self.peer is not None and self.peer.cluster_id != peer.cluster_id:
            message = f"this node is of cluster {peer.cluster_id}, the stream is of {self.peer.cluster_id}"
            if self._streams.has_others:  # one that is new is of no cluster yet
                raise NotLeader(message)
            self._streams.fail(BadPosition(message))
        self.peer = peer
        self._streams.greeted(peer.role)
        self._greeted = True
        # A part of the window, which the node may have made smaller.
        self._credit_bytes = max(min(self.hello.window_bytes, peer.window_bytes) // 4, 1)
        asked: dict[str, Any] = {"name": self._wanted.feed}
        if self._wanted.replica is not None:
            asked["replica"] = True
        self._out.append(encode_json(Opcode.PARTITIONS, asked, _MAP_ID))

    def _on_result(self, frame: Frame) -> Queued | None:
        if frame.id != _MAP_ID:
            return self._streams.receive(frame)
        feed_id, high_seqs, logs = partition_map(decode_json(frame.body, "RESULT"))
        if self.feed_id is not None and self.feed_id != feed_id:
            message = f"feed {self._wanted.feed!r} was dropped, and another one made under its name"
            self._streams.fail(UnknownFeed(message))
        since = self._wanted.since
        if self._wanted.replica is not None and isinstance(since, Positions) and since.feed_id != feed_id:
            self._streams.fail(UnknownFeed(f"feed {self._wanted.feed!r} has another id there: {feed_id.hex()}"))
        self.feed_id = feed_id
        self._linked = True
        if not self._streams.partitions:
            self._check_stored(feed_id)
            self._streams.begin(high_seqs, logs)
        return None

    def _check_stored(self, feed_id: bytes) -> None:
        assert self.peer is not None
        for positions in self._wanted.stored:
            try:
                positions.require_feed(bytes.fromhex(self.peer.cluster_id), feed_id)
            except BadPosition as error:
                self._streams.fail(error)

    def _on_error(self, frame: Frame) -> None:
        error = decode_error(frame.body)
        if self._streams.refused(frame.id, error):
            return
        # What ends a connection (silence, damage on the way) need not end the next one, once a node has said hello.
        of_connection = frame.id == 0 and self.peer is not None and isinstance(error, ProtocolError | TooLarge)
        if of_connection or isinstance(error, Retryable):
            raise error
        self._streams.fail(error)

    def _on_round_complete(self, frame: Frame) -> Queued:
        event = tuple.__new__(RoundComplete, (decode_number(frame.body, "ROUND_COMPLETE"),))
        return event, -1, None, 0

    def _on_leader_check(self, frame: Frame) -> Queued:
        if self._wanted.replica is None:
            raise ProtocolError("LEADER_CHECK is for a replica")
        return LeaderCheck(decode_number(frame.body, "LEADER_CHECK")), -1, None, 0

    def _on_barrier_reached(self, frame: Frame) -> Queued | None:
        cookie = self._sent_barriers.get(decode_cookie(frame.body, "BARRIER_REACHED"))
        if cookie is None:
            return None
        self._barrier_tries = 0
        return cookie, -1, None, 0

    def _on_barrier_lost(self, frame: Frame) -> None:
        if self._sent_barriers.pop(decode_cookie(frame.body, "BARRIER_LOST"), None) is None:
            return
        now = self._clock()
        if now >= self._barriers_at:  # the others that were under way are lost for the same reason
            self._barrier_tries += 1
            self._barriers_at = now + backoff_seconds(self._barrier_tries, self._jitter)


_HANDLERS: dict[Opcode, Callable[[ConsumerSession, Frame], Queued | None]] = {
    Opcode.NOOP: ConsumerSession._on_noop,
    Opcode.HELLO_OK: ConsumerSession._on_hello_ok,
    Opcode.RESULT: ConsumerSession._on_result,
    Opcode.ERROR: ConsumerSession._on_error,
    Opcode.ROUND_COMPLETE: ConsumerSession._on_round_complete,
    Opcode.LEADER_CHECK: ConsumerSession._on_leader_check,
    Opcode.BARRIER_REACHED: ConsumerSession._on_barrier_reached,
    Opcode.BARRIER_LOST: ConsumerSession._on_barrier_lost,
}
