"""A consumer's conversation with a node, across connections. Sans-IO: bytes in, events and bytes out.

    connection_made: HELLO ── HELLO_OK ── PARTITIONS ── RESULT ── the streams of the partitions (``streams``)
    beside them: ROUND_COMPLETE, barriers, credit, noops

An event counts as handled when the program asks for the next one; then ``positions`` covers it.
Source: docs/protocol/streams.md.
"""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from tailrace.consuming.barriers import Barriers
from tailrace.consuming.credit import Credit
from tailrace.consuming.events import CaughtUp, Event, ReplicaEvent, Rollback, RoundComplete
from tailrace.consuming.in_hand import InHand
from tailrace.consuming.ring import RingChange
from tailrace.consuming.rollbacks import Queued
from tailrace.consuming.streams import PartitionStreams
from tailrace.consuming.subscription import Subscription
from tailrace.errors import (
    BadPosition,
    Forbidden,
    NotLeader,
    ProtocolError,
    Retryable,
    StreamEnded,
    TailraceError,
    TooLarge,
    UnknownFeed,
)
from tailrace.link.backoff import earliest
from tailrace.link.place import Place
from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace.requests.replies import partition_map
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, Frame, encode_frame
from tailrace.wire.messages import TRACING_MODULE, Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import decode_cookie, decode_number, encode_number

if TYPE_CHECKING:
    from tailrace.consuming.chosen_starts import Starts
    from tailrace.consuming.stream_status import SessionStatus
    from tailrace.errors import DataGone

__all__ = ["ConsumerSession", "Event", "Subscription"]

_MAP_ID = 0xFFFFFFFF  # of the request for the partition map; the ids of streams are below
_CAUGHT_UP = b"caught up"  # the cookie of the barrier that becomes an event; those of programs have 8 bytes


class ConsumerSession:
    """A consumer: the connection's state, and the queue of events. Only this file sets its fields.

    Times are monotonic seconds of the shell's clock. The session is not locked: one task or thread uses it at a time.
    """

    def __init__(
        self,
        hello: Hello,
        subscription: Subscription,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        check: Callable[[HelloOk], None] = lambda _: None,
        *,
        has_others: bool = False,
    ) -> None:
        """Makes a session without a connection.

        Args:
            hello: The first message of each connection.
            subscription: The subscription of the consumer.
            clock: Returns monotonic seconds.
            jitter: Returns a number from 0 to 1, to spread retries.
            check: Raises NotLeader or Unreachable if another node should be asked than the one that has said hello.
            has_others: True if other nodes could be asked.
        """
        from tailrace.link.placing import PlacingDecoder  # programs that only write do not need it

        self.hello = hello
        self._clock = clock
        self._check = check
        self._subscription = subscription
        self.feed_id = subscription.feed_id
        self.peer: HelloOk | None = None  # the node of this connection, or of the last one
        self.last_error: TailraceError | None = None  # how the last try has ended; None after a hello

        # The last error of a connection or try, with its time; it stays after a hello.
        self._failure: tuple[TailraceError, float] | None = None
        self._since = clock()  # when the connection came to its present stage
        self._came_at = self._since  # when the first of the present frames has come

        # Of this connection. Invariant: ``_linked`` (the partitions are known) implies ``_greeted`` (HELLO_OK came).
        self._greeted = self._linked = False
        self._decoder = PlacingDecoder()
        self._out: list[bytes] = []
        self._frames: collections.deque[Frame] = collections.deque()  # not handled yet
        self._error: TailraceError | None = None  # for `next_event` to raise, after the events before it
        self._begun_at = 0  # the sum of the partitions' seqs when the connection was made
        self._waiting_bytes = 0  # of blocks that have come before the program asked for events
        self._is_leaving = False
        self._starts: Starts | None = None  # while the node is asked for a chosen start
        self.credit = Credit(self._since)

        self._queue: collections.deque[Queued] = collections.deque()  # events that the program has not had
        self._in_hand = InHand()
        self._barriers = Barriers(clock, jitter)
        if subscription.caught_up:
            self._barriers.add(_CAUGHT_UP, lambda: None)
        emit, stopped = self._queue.extend, self._barriers.stream_stopped
        self._streams = self._streams_of(
            subscription, clock, stopped, emit, jitter, has_others=has_others, window_bytes=hello.window_bytes
        )

    _streams_of: type[PartitionStreams] = PartitionStreams  # the class of its streams

    # The link

    @property
    def has_progressed(self) -> bool:
        """True if a partition has come further on this connection."""
        return self._streams.total_seq > self._begun_at

    def connection_made(self) -> None:
        """Begins a connection, with HELLO."""
        self._begun_at = self._streams.total_seq
        self._waiting_bytes = 0
        self._decoder = self._decoder.anew()
        self._out = [self.hello._replace(takes_traces=TRACING_MODULE in sys.modules).encode()]
        self._streams.connection_made()

    def connection_lost(self, error: TailraceError) -> None:
        """Ends the connection. Queued events are still delivered; the node sends the unhandled ones again."""
        self.last_error = error
        self._failure = error, self._clock()
        if self._greeted:
            self._since = self._failure[1]
        self._greeted = self._linked = False
        self._out = []
        self._frames.clear()
        self._error = self._starts = None
        self.credit.forget()
        self._barriers.connection_lost()
        self._streams.connection_lost(str(error))

    def receive_data(self, data: bytes | memoryview) -> None:
        """Takes bytes of the node. `next_event` handles the frames. Raises ProtocolError, TooLarge."""
        if not self._frames:
            self._came_at = self._clock()
        self._frames.extend(self._decoder.receive_data(data))

    def place(self) -> Place | None:
        """Returns a place for the next bytes, if large frames come; None: ``receive_data`` gets them."""
        body = self._decoder.next_place()
        return None if body is None else Place(body, self.receive_data, self.receive_data)

    def handle_all(self) -> None:
        """Handles all frames that have arrived, before the program asks for events. Raises as ``next_event``.

        Raises ProtocolError, which bounds the queue, if the node has sent more blocks than the window and one block.
        """
        while self._frames:
            if (queued := self._receive(self._frames.popleft())) is not None:
                self._queue.append(queued)
                self._waiting_bytes += queued[3]
                if self._waiting_bytes > self.hello.window_bytes + FRAME_BODY_BYTES_MAX:
                    window = f"the window is {self.hello.window_bytes} bytes"
                    raise ProtocolError(f"the node has sent blocks of {self._waiting_bytes} bytes, but {window}")

    def data_to_send(self) -> list[bytes]:
        """Returns the frames that are due: requests, credit, barriers."""
        if self._linked:
            assert self.feed_id is not None
            if not self._is_leaving:
                self._out += self._streams.data_to_send(self.feed_id)
            if self._barriers_due and not self._is_leaving:
                self._out += [encode_frame(Opcode.BARRIER, cookie) for cookie in self._barriers.send()]
            self.credit.dropped(self._streams.take_dropped_bytes())
            credited = self.credit.take(self._clock())
            if credited:
                self._out.append(encode_number(Opcode.CREDIT, credited))
        out, self._out = self._out, []
        return out

    def leave(self) -> None:
        """Credits what was handled with the next sending: the program leaves, and the node keeps how far it came.

        Nothing else is sent from then on: a stream that is asked for now would only be closed.
        """
        self.credit.leave()
        self._is_leaving = True

    def noop(self) -> None:
        """Queues a NOOP, which shows the node that this side is alive."""
        if self._linked:
            self._out.append(encode_frame(Opcode.NOOP))

    def expire(self) -> None:
        """Does nothing: a stream's requests have no deadlines."""

    def is_final(self, error: TailraceError) -> bool:
        """Tells whether the stream ends for good with ``error``, which is of its connection or of its bytes."""
        return self.failure is not None or isinstance(error, Forbidden)

    @property
    def failure(self) -> TailraceError | None:
        """The error that ends the stream for good, after all events before it; None while it goes on."""
        return self._streams.failure

    # State, for the shell

    @property
    def is_open(self) -> bool:
        """True if the node has said hello and is the one to ask."""
        return self._greeted

    @property
    def has_frames(self) -> bool:
        """True if frames have arrived that are not handled yet."""
        return bool(self._frames)

    @property
    def answered(self) -> bool:
        """True if every partition has an open stream, has reached its end, or is rolled back."""
        return self._streams.answered

    @property
    def why_not_answered(self) -> str:
        """The reason of the first partition whose stream is not open."""
        return self._streams.why_not_answered

    @property
    def finished(self) -> bool:
        """True if every partition has reached its end and every event was delivered."""
        return not self._queue and not self._frames and self._streams.ended

    @property
    def next_retry(self) -> float | None:
        """When ``data_to_send`` next has a frame, in monotonic seconds; None if none waits for the clock."""
        if not self._linked:
            return None
        barrier_at = self._barriers.next_at if self._barriers_due else None
        return earliest(self._streams.next_retry, barrier_at, self.credit.due_at)

    @property
    def positions(self) -> Positions:
        """The positions that cover the events before those that the program handles now."""
        return self._to_positions(self._streams.handled)

    @property
    def latest_positions(self) -> Positions:
        """The positions that also cover the events that the program handles now."""
        reached = self._in_hand.reached
        return self._to_positions({**self._streams.handled, **reached}) if reached else self.positions

    def _to_positions(self, positions: dict[int, Position]) -> Positions:
        if isinstance(self._subscription.since, Positions) and (self.peer is None or self.feed_id is None):
            return self._subscription.since
        if self.peer is None or self.feed_id is None:
            raise StreamEnded("the stream has not begun: it has no positions yet", reason=EndReason.CLOSED)
        return Positions(bytes.fromhex(self.peer.cluster_id), self.feed_id, positions)

    def status(self) -> SessionStatus:
        """Returns the state of the connection and of each partition."""
        from tailrace.consuming.stream_status import SessionStatus  # most programs never ask

        has_begun = self.feed_id is not None or isinstance(self._subscription.since, Positions)
        return SessionStatus(
            is_open=self._greeted,
            is_linked=self._linked,
            since=self._since,
            came_at=self._came_at if self._queue or self._frames else None,
            failure=self._failure,
            partitions=tuple(partition.status() for partition in self._streams.partitions),
            positions=self.positions if has_begun and self.peer is not None else None,
        )

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last answer for ``partition``; at first the stored one."""
        return self._streams.failover_log(partition)

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that the log of a partition has changed without an event."""
        self._streams.watch_history(changed)

    # Events

    def next_event(self) -> Event | ReplicaEvent | DataGone | None:
        """Returns the next event; None if none has arrived. The event before it counts as handled from now on.

        An error that it raises ends the connection; ``failure`` says whether it is final.
        """
        in_hand = self._in_hand
        if in_hand.last is not None:
            for handled, partition, position, nbytes in in_hand.take_before() if in_hand.before else ():
                self.credit.handled(nbytes)
                self._streams.note_handled(handled, partition, position)
            handled, partition, position, nbytes = in_hand.last
            in_hand.last = None
            if nbytes:
                self.credit.handled(nbytes)
            self._streams.note_handled(handled, partition, position)
        while True:
            if self._queue:
                queued: Queued | None = self._queue.popleft()
            elif self._error is not None:
                error, self._error = self._error, None
                raise error
            elif self._frames:
                frame = self._frames.popleft()
                handler = _HANDLERS.get(frame.opcode)  # as `_receive`, with a call less for each event
                queued = self._streams.receive(frame) if handler is None else handler(self, frame)
            elif self._streams.catch_up.hand_out():
                continue
            else:
                return None
            if queued is None:
                continue
            event = queued[0]
            if not isinstance(event, bytes):
                in_hand.last = queued
                return event
            self._barriers.reach(event)

    def take_together(self, rows_max: int) -> list[Event]:
        """Returns the event in hand and those behind it that have arrived, with at most ``rows_max`` rows.

        The program handles them together. Of an event in hand with more rows, the rest is the next event.
        """
        return self._in_hand.take_together(self._queue, self.has_event, rows_max, self._streams.handled)

    def has_event(self) -> bool:
        """Tells whether ``next_event`` has an event."""
        while True:
            if any(not isinstance(event, bytes) for event, *_ in self._queue):
                return True
            if self._error is not None:
                return False
            try:
                if not self._frames:
                    if self._streams.catch_up.hand_out():
                        continue
                    return False
                queued = self._receive(self._frames.popleft())
            except TailraceError as error:
                self._error = error
            else:
                if queued is not None:
                    self._queue.append(queued)

    # Rollbacks, for an index

    def settle(self, event: Rollback, point: int | None) -> None:
        """Notes how far an index has gone back for the Rollback that it handles now.

        Args:
            event: The Rollback.
            point: The seq that the index has gone back to; None if it cannot go back by itself.
        """
        position = self._streams.rollbacks.settle(event, point)
        if position is not None:
            self._in_hand.settle(event, position)

    def ring_floor(self, partition: int) -> int:
        """Returns the seq above which the ring of a partition has every key."""
        return self._streams.ring(partition).floor_seq

    def ring(self, partition: int) -> RingChange:
        """Returns the recent keys of a partition, for a consumer that goes on from its position."""
        return self._streams.ring(partition).whole()

    def ring_change(self, partition: int) -> RingChange | None:
        """Returns, once, how the last refetched event has changed the ring of a partition; None if it did not."""
        return self._streams.rollbacks.take_ring_change(partition)

    # Barriers

    def barrier(self, cookie: bytes, reached: Callable[[], None]) -> None:
        """Calls ``reached`` once the program has handled every write that was acknowledged before this call."""
        self._barriers.add(cookie, reached)

    def forget_barrier(self, cookie: bytes) -> None:
        """Drops a barrier for which no task waits any more."""
        self._barriers.forget(cookie)

    @property
    def waiting(self) -> Collection[object]:
        """The cookies of the barriers that have not come back yet."""
        return self._barriers.cookies

    @property
    def _barriers_due(self) -> bool:
        """True if a barrier is not under way and all streams are open."""
        return self._barriers.unsent and self._streams.open

    # Frames in

    def _receive(self, frame: Frame) -> Queued | None:
        handler = _HANDLERS.get(frame.opcode)
        return self._streams.receive(frame) if handler is None else handler(self, frame)

    def _on_noop(self, frame: Frame) -> None:
        """Does nothing: the shell has noted already that the node is alive."""

    def _on_hello_ok(self, frame: Frame) -> None:
        peer = HelloOk.decode(frame.body)
        try:
            peer.check_version()
        except ProtocolError as error:
            self._streams.fail(error)
        self._check(peer)
        # Before the feed was found, the cluster may change: a new node may have joined one since.
        if self.feed_id is not None and self.peer is not None and self.peer.cluster_id != peer.cluster_id:
            message = f"this node is of cluster {peer.cluster_id}, the stream is of {self.peer.cluster_id}"
            if self._streams.has_others:  # this node may be new, and may not have joined its cluster yet
                raise NotLeader(message)
            self._streams.fail(BadPosition(message))
        self.peer = peer
        self._streams.greeted(peer.role, peer.node_id)
        self._greeted, self.last_error, self._since = True, None, self._clock()
        self.credit.begin(min(self.hello.window_bytes, peer.window_bytes))  # the node may have made it smaller
        asked = self._subscription.map_request(is_first=self.feed_id is None)
        self._out.append(encode_json(Opcode.PARTITIONS, asked, _MAP_ID))

    def _on_result(self, frame: Frame) -> Queued | None:
        if frame.id != _MAP_ID:
            taken = self._starts is not None and self._starts.takes(frame)
            return None if taken else self._streams.receive(frame)
        found = partition_map(decode_json(frame.body, "RESULT"))
        if self.feed_id is not None and self.feed_id != found.feed_id:
            message = f"feed {self._subscription.feed!r} was dropped, and another one was created under its name"
            self._streams.fail(UnknownFeed(message))
        self.feed_id = found.feed_id
        self._linked, self._since = True, self._clock()
        self._streams.catch_up.heard_of(found.high_seqs)
        if not self._streams.partitions:
            assert self.peer is not None
            cluster_id = bytes.fromhex(self.peer.cluster_id)
            self._subscription.require_feed(cluster_id, found.feed_id, self._streams.fail)
            if self._subscription.start is None:
                self._streams.begin(found.high_seqs, found.logs, {})
            else:
                from tailrace.consuming.chosen_starts import Starts  # few programs name seqs

                self._starts = Starts(self._subscription, found, self._streams)
                self._out += self._starts.requests()
        self.when_linked(found.feed_id)
        return None

    def when_linked(self, feed_id: bytes) -> None:
        """Does what is due once a node has told the partitions; a consumer with a name claims it."""

    def _on_error(self, frame: Frame) -> None:
        error = decode_error(frame.body)
        if self._streams.refused(frame.id, error):
            return
        # Silence, or damage on the way, ends this connection only, if a node has said hello before.
        of_connection = frame.id == 0 and self.peer is not None and isinstance(error, ProtocolError | TooLarge)
        if of_connection:
            self._streams.catch_up.node_refused()
        if of_connection or isinstance(error, Retryable):
            raise error
        self._streams.fail(error)

    def _on_round_complete(self, frame: Frame) -> Queued:
        event = tuple.__new__(RoundComplete, (decode_number(frame.body, "ROUND_COMPLETE"),))
        return event, -1, None, 0

    def _on_leader_check(self, frame: Frame) -> None:
        raise ProtocolError("the node sent LEADER_CHECK, which is for a replica")

    def _on_barrier_reached(self, frame: Frame) -> Queued | None:
        cookie = self._barriers.came_back(decode_cookie(frame.body, "BARRIER_REACHED"))
        if cookie == _CAUGHT_UP:
            self._barriers.forget(cookie)
            return CaughtUp(len(self._streams.partitions)), -1, None, 0
        return None if cookie is None else (cookie, -1, None, 0)

    def _on_barrier_lost(self, frame: Frame) -> None:
        self._barriers.was_lost(decode_cookie(frame.body, "BARRIER_LOST"))


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
