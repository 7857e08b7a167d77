"""A client's connection to a node: frames in, answers and streams out.

    receive ──> frames ──> handlers ──> Answers ──────────────┐
                                   └──> rounds ──> has_news ──┴──> flush ──> Transport.send

One task reads and handles; what goes out leaves through ``Transport.send``, which never waits, so that answers and
streams can be sent from wherever their cause is (an fsync that has ended, a block that has been taken).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import Forbidden, NotLeader, Overloaded, ProtocolError, TailraceError, UnknownFeed
from tailrace.model import EndReason
from tailrace.trio.tls import handshake_seconds, peer_identity
from tailrace.trio.transport import Transport, receive_each
from tailrace.wire.bounds import request_bound
from tailrace.wire.frames import (
    FRAME_GOES_ON,
    HELLO_BODY_BYTES_MAX,
    SMALL_BODY_BYTES,
    Frame,
    FrameDecoder,
    encode_frame,
)
from tailrace.wire.messages import Hello, encode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.access import Access
from tailrace_server.serving.answers import Answers
from tailrace_server.serving.audit import AUDITED, asked
from tailrace_server.serving.connection_memory import ConnectionMemory
from tailrace_server.serving.deadline_timer import DeadlineTimer
from tailrace_server.serving.follower_barriers import FollowerBarriers
from tailrace_server.serving.missing_feeds import MissingFeeds
from tailrace_server.serving.segment_sender import SegmentSender
from tailrace_server.serving.served_replica import ServedReplica
from tailrace_server.serving.stream_pump import StreamPump
from tailrace_server.serving.waiting_requests import PendingStreams, WaitingRequests
from tailrace_server.state.principal import WITHOUT_HELLO
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.peer_progress import PeerProgress
from tailrace_server.stream.replication_stream import ReplicationStream
from tailrace_server.stream.rounds import Rounds

if TYPE_CHECKING:
    from tailrace.wire.messages import Trace
    from tailrace.wire.replica_messages import Replica
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.services import Services
    from tailrace_server.stream.told_progress import ToldProgress

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_HELLO = Opcode.HELLO
_OPCODE_AT = 4  # in a frame
_NO_SHORT_WAYS: Mapping[int, Callable[[Any, bytes], int]] = {}

log = logging.getLogger("tailrace.server")

# The seconds for which a connection handles requests before others have their turn of the loop. A turn costs 20 µs, far
# less, and an fsync or a slice of a look-up holds up the loop for as long.
TURN_SECONDS = 0.002
# The most frames that are cut at a time: a read may have 65,536 of them, which take 50 ms and 15 MiB.
CUT_FRAMES_MAX = 256
# The streams of a connection that is closing are forgotten so many at a time: about 10 ms of the processor.
CLOSED_TOGETHER = 256
# A peer that is told why its connection ends has this many seconds to read it. Its own frames are dropped meanwhile.
LINGER_SECONDS = 5.0
_STOPPING = "the node is stopping"


class Connection:
    """The server's side of one connection."""

    # More than 30 fields in a dict of each connection take 1.3 KB more. The Board refers to connections weakly.
    # fmt: off
    __slots__ = (
        "__weakref__", "_closing_at", "_cut", "_drained", "_is_behind", "_is_refused", "_progress", "_short_ways",
        "_stream_pump", "access", "answers", "changes", "deadline_timer", "decoder", "draining", "follower_barriers",
        "greeted", "has_news", "is_closing", "is_of_node", "memory", "missing_feeds", "name", "node", "nursery",
        "opened_at", "pending_streams", "progress", "pump", "received_at", "replica", "rounds", "segments",
        "sent_at", "session", "takes_ttls", "traced", "transport", "unnamed", "waiting"
    )
    # fmt: on

    def __init__(self, node: Services, transport: Transport, nursery: trio.Nursery, unnamed: Leadership) -> None:
        """``unnamed``: the leadership that messages are about if they name no group."""
        self.node = node
        self.unnamed = unnamed
        # Notes that there is something to send to a client.
        self.has_news: Callable[[], None] = partial(node.connections.has_news, self)
        self.answers = Answers(node, self.has_news, self.pass_answer)
        self.is_closing = self._is_refused = False  # the last frame was sent; a refused HELLO is told later (both)
        self.transport = transport
        self.nursery = nursery
        self.name = self.session = ""  # the session: the name that the client's next connection gives too; "" for none
        self.received_at = self.sent_at = node.clock.monotonic()
        # The time to HELLO counts from the beginning of the handshake.
        self.opened_at = self.received_at - handshake_seconds(transport)
        self.decoder = FrameDecoder(HELLO_BODY_BYTES_MAX, request_bound)
        self._cut: list[Frame] = []  # frames that are not handled yet, the last one first
        self._is_behind = False  # complete frames wait for another turn
        self.rounds = Rounds(0)
        self.progress: ToldProgress | None = None  # of a consumer that handles rows elsewhere
        self.memory = ConnectionMemory(node, transport, self.answers, self.rounds)
        self._progress = PeerProgress(self.opened_at)
        self.deadline_timer = DeadlineTimer(self)
        self.follower_barriers = FollowerBarriers(self)
        self.missing_feeds = MissingFeeds(self)
        self.segments = SegmentSender(self)
        self.replica: ServedReplica | None = None  # once one has asked for a stream
        self.greeted = False
        self._short_ways = _NO_SHORT_WAYS  # of requests about all keys and feeds, which need no look at rights
        self.is_of_node = False  # another node has said hello
        self.takes_ttls = False  # the peer has said that it reads blocks with ttls
        self.access = Access(WITHOUT_HELLO, node.feeds)  # until HELLO
        self.changes: dict[int, int] = {}  # `Leaderships.changes` as it was at the client's HELLO
        self.draining = False
        self.traced: tuple[int, Trace] | None = None  # the next request's id and context
        self.waiting = WaitingRequests(node.config.limits.waiting_requests_max)
        self.pending_streams = PendingStreams()
        self._closing_at = 0.0
        self._drained: trio.Event | None = None  # while the end of the streams is waited for
        self._stream_pump = StreamPump(self, self._note_drained)
        self.pump: Callable[[], None] = self._stream_pump.pump
        transport.on_drained = self._on_drained

    # Reading

    async def run(self) -> None:
        """Reads and handles frames until either side closes.

        A cancellation drops the requests that were received and not handled yet.
        """
        try:
            while await receive_each(self.transport, self._received):
                await self._handle_rest()
                if self.transport.is_broken:
                    return
        except OSError:
            return  # the peer is gone
        finally:
            self.answers.stop_waiting()
            self._note_stopped()
            self.node.consumers.ended(self)
            self.is_closing = True
            with trio.CancelScope(shield=True):
                await self._close_streams()

    def _received(self, data: bytes | memoryview) -> bool:
        """Handles bytes of the peer. Returns False if the next ones have to wait."""
        if self.is_closing:
            return True  # a connection that is closed with something unread is reset, and the reason gets lost
        take = self._short_ways.get(data[_OPCODE_AT]) if len(data) > _OPCODE_AT else None
        if take is not None and type(data) is bytes and not self._cut and self.decoder.is_between_frames:
            taken = 0 if self.transport.is_broken else take(self, data)
            if taken:
                self.received_at = self.node.turn.now
                if taken == len(data):
                    return self._turn_ended()
                data = data[taken:]
        self.decoder.feed(data)
        return self._handle_turn()

    async def _handle_rest(self) -> None:
        """Waits until the peer may ask for more, and handles the frames that are left in further turns.

        Others have the loop in between.
        """
        while True:
            if self._is_behind:
                await trio.lowlevel.checkpoint()
            await self.memory.wait_for_room()
            if not self._is_behind:
                return
            self._handle_turn()

    def _handle_turn(self) -> bool:
        """Handles complete frames. Returns False if some are left, or if the peer may not ask for more now."""
        try:
            self._is_behind = not self._handle_frames()
        except TailraceError as error:
            self._is_behind = False
            self.fail(error)
        return self._turn_ended()

    def _turn_ended(self) -> bool:
        self.node.connections.turn_ended(self)
        return not (self._is_behind or self.memory.lacks_room() or self.transport.is_broken)

    def _handle_frames(self) -> bool:
        """Handles the frames that are complete, for TURN_SECONDS and while there is room. Returns whether that was all.

        It drops them if the connection closes or the peer is gone: the answers could not be delivered.
        """
        turn, monotonic, cut = self.node.turn, self.node.clock.monotonic, self._cut
        self.received_at = turn.begin()
        turn_ends_at, is_last = self.received_at + TURN_SECONDS, False
        while not (self.is_closing or self.transport.is_broken):
            if not cut:
                cut.extend(self.decoder.next_frames(CUT_FRAMES_MAX))
                cut.reverse()
                is_last = len(cut) < CUT_FRAMES_MAX
                if not cut:
                    return True
            self._handle(cut.pop())
            if is_last and not cut:  # most often the first frame is the only one
                return True
            if self.memory.lacks_room() or monotonic() >= turn_ends_at:
                return False
        cut.clear()
        return True

    @property
    def is_level(self) -> bool:
        """Whether no bytes of requests wait behind the one that is handled."""
        return not self._cut and self.decoder.is_between_frames

    async def drained(self) -> None:
        """Returns once every stream has ended and all that was sent has left."""
        while self.rounds.slots or self.transport.backlog_bytes:
            self._drained = trio.Event()
            await self._drained.wait()

    def _note_drained(self) -> None:
        if self._drained is not None:
            self._drained.set()

    def _on_drained(self) -> None:
        self._note_drained()
        self.memory.drained()
        if self._is_refused:
            return
        if self.is_closing:
            self.transport.finish()
        else:
            self.pump()
            if self.replica is not None:
                self.flush()
        self.segments.drained()

    def _handle(self, frame: Frame) -> None:
        """Handles a frame. An error of a request is its answer; an error of the protocol ends the connection."""
        opcode = frame.opcode
        if frame.flags & FRAME_GOES_ON:
            return  # of a request that the role lacks: its last piece is answered
        self.node.traffic.request(opcode)
        if not self.greeted and opcode is not _HELLO:
            raise ProtocolError(f"{opcode.name} before HELLO")
        handler = self.node.handlers.get(opcode)
        if handler is None:
            raise ProtocolError(f"{opcode.name} is not for a server")
        if opcode in AUDITED:
            what, who, peer = asked(frame, self.node.feeds), self.access.principal, self.transport.peer
            self.answers.watch(frame.id, partial(self.node.audit.write, who, peer, what))
        if opcode not in self.access.permitted:
            self.answers.add_error(self.access.refusal(opcode), frame.id)
            return
        try:
            handler(self, frame)
        except ProtocolError:
            raise
        except UnknownFeed as error:
            self._answer_unknown(error, frame.id)
        except TailraceError as error:
            self.answers.add_error(error, frame.id)

    def _answer_unknown(self, unknown: UnknownFeed, id: int) -> None:
        """Answers a request of an unknown feed, after the leader or a majority has confirmed that it is missing."""

        def answer(failure: TailraceError | None) -> None:
            self.answers.add_error(unknown if failure is None else failure, id)

        try:
            self.missing_feeds.confirm(answer)
        except Overloaded as error:
            self.answers.add_error(error, id)

    def greet(self, hello: Hello, access: Access) -> None:
        """Takes the client's HELLO: its names, its window, its rights, and frames of full size from now on."""
        limits = self.node.config.limits
        self.name, self.session, self.access = hello.name, hello.session, access
        self.rounds.set_window(min(hello.window_bytes, limits.window_bytes_max))
        if hello.takes_traces:
            self.rounds.send_traces(self.node.traces)
        self.decoder.body_bytes_max, self.decoder.in_pieces = limits.frame_body_bytes_max, access.dropped
        self.is_of_node, self.takes_ttls = hello.of_node and access.is_of_node, hello.takes_ttls
        short_ways = self.node.short_ways
        if not access.is_limited and access.permitted >= short_ways.keys():
            self._short_ways = short_ways if limits.frame_body_bytes_max >= SMALL_BODY_BYTES else _NO_SHORT_WAYS
        self.greeted, self.changes = True, self.node.leaderships.changes()
        self.node.connections.greeted(self)

    def note_progress(self, progress: ToldProgress) -> None:
        """Takes over what the consumer tells of itself, in place of what it told before."""
        self.progress = progress

    def trace_next(self, id: int, trace: Trace) -> None:
        """Keeps the context of the next request, which has this id."""
        self.traced = id, trace

    def take_trace(self, id: int) -> Trace | None:
        """Returns the context of this request, once; None if the last TRACE was not about it."""
        traced, self.traced = self.traced, None
        return traced[1] if traced is not None and traced[0] == id else None

    def require_node(self, what: str) -> None:
        """Raises Forbidden if nodes have certificates, and the peer has shown none. ``what``: its message."""
        tls = self.node.host.tls
        if tls is None or not tls.requires_node_certificates or tls.is_node(peer_identity(self.transport)):
            return
        raise Forbidden(
            f"{what}: this node takes it only from nodes that show a certificate of its --tls-peer-ca or "
            "--tls-client-ca: start the other node with --tls-cert, and with --tls-peer-ca or --tls-client-ca"
        )

    # Sending

    def has_replica_news(self) -> None:
        """Notes that there is something to send to the node at the other end."""
        self.node.connections.has_replica_news(self)

    def has_later_replica_news(self) -> None:
        """Notes that there is something to send to the node at the other end, which may wait."""
        self.node.connections.has_later_replica_news(self)

    def require_writable(self, leadership: Leadership) -> None:
        """Raises as ``Leadership.require_writable``; and NotLeader if the node came to lead the group after HELLO.

        Its request may have been on the way since then, and the client may have written elsewhere meanwhile.
        """
        leadership.require_writable()
        leadership.require_sure(self.node.turn.now)
        if self.changes.get(leadership.group.number) != leadership.changes:
            raise NotLeader(
                f"this node came to lead in term {leadership.term} after this connection had its HELLO: connect anew"
            )

    def flush(self) -> None:
        """Sends the queued frames: streams first, since their consumers wait longest."""
        if self.is_closing:
            return
        if self.replica is not None:
            self._queue_replica_frames(self.replica)
        if self.rounds.has_news and not self._stream_pump.goes_on_soon:
            self.pump()
        if self.answers.queued:
            self.send_answers()

    def _queue_replica_frames(self, replica: ServedReplica) -> None:
        """Queues the frames that a replica gets after the blocks. If it does not read now, they go out once it does."""
        if not self.transport.backlog_bytes:
            for data in replica.frames():
                self.answers.add_beside(data)

    def serve_replica(self, stream: ReplicationStream, replica: Replica, leadership: Leadership) -> None:
        """``stream``, which has just begun, is a replica's of this leader, in the group of ``leadership``."""
        if self.replica is None:
            self.replica = ServedReplica(self, leadership)
            self.memory.always_read()
        self.replica.open(stream, replica)

    def send_answers(self, last: bytes = b"") -> None:
        """Sends the answers that are queued, and ``last`` after them. Streams are not looked at."""
        data = self.answers.take()
        self.sent_at = self.node.turn.now
        self.transport.send(data + last if last else data)
        if data:
            self.memory.sent(len(data))

    def send(self, buffers: Sequence[bytes | memoryview], answer_bytes: int) -> None:
        """Sends ``buffers``, ``answer_bytes`` of which are answers."""
        self.sent_at = self.node.turn.now
        self.transport.send(*buffers)
        if answer_bytes:
            self.memory.sent(answer_bytes)

    def pass_answer(self, data: bytes) -> bool:
        """Sends an answer at once. Returns False, and does nothing, if something is to be sent before it."""
        if not self.answers.may_pass or self.is_closing or self.replica is not None or self.rounds.has_news:
            return False
        self.send((data,), len(data))
        return True

    # Ending

    def fail(self, error: TailraceError) -> None:
        """Sends the error, then closes."""
        if self.greeted:
            log.info("connection of %s ends: %s", self.transport.peer, error)
        else:
            self.node.connections.ended_before_hello(self.transport.peer, error)
        self.node.traffic.error(error)
        self.close_with(encode_error(error))

    def close_with(self, last: bytes) -> None:
        """Sends ``last`` and closes once the peer has it."""
        self._note_stopped()
        self.is_closing = True
        self.memory.close()
        self.answers.close()
        self._closing_at = self.node.clock.monotonic()
        if self.rounds.close_some(CLOSED_TOGETHER):
            self.nursery.start_soon(self._close_streams)
        self.send_answers(last)
        if not self.transport.backlog_bytes:
            self.transport.finish()

    def _note_stopped(self) -> None:
        """Notes how far the consumer has come whose connection ends, unless that was done."""
        if not self.is_closing and self.replica is None and (self.rounds.slots or self.progress):
            self.node.stopped.note(self.name, self.rounds, self.progress, self.node)

    async def _close_streams(self) -> None:
        """Forgets all streams, a few in a turn; the connection is closing, so they send nothing meanwhile."""
        while self.rounds.close_some(CLOSED_TOGETHER):
            await trio.lowlevel.checkpoint()

    def drain(self) -> None:
        """Ends each stream at the end of its snapshot, since the node is about to stop.

        None opens any more, and no barrier comes back.
        """
        self.draining = True
        self.rounds.drain(_STOPPING)
        self.pump()
        self.flush()

    def refuse(self, error: TailraceError, after_s: float) -> None:
        """Ends a connection whose HELLO was refused, ``after_s`` seconds from now. Its frames are dropped meanwhile."""
        if after_s <= 0:
            self.fail(error)
            return
        self.is_closing = self._is_refused = True
        self._closing_at = self.node.clock.monotonic() + after_s
        self.nursery.start_soon(self._refuse_later, error, after_s)

    async def _refuse_later(self, error: TailraceError, after_s: float) -> None:
        await trio.sleep(after_s)
        self._is_refused = False
        self.fail(error)

    def expel(self, message: str) -> None:
        """Ends all streams and the connection, whose client may not use it any more."""
        self.end_streams(lambda stream: True, EndReason.FORBIDDEN, message)
        self.pump()
        self.flush()
        if not self.is_closing:
            self.fail(Forbidden(message))

    def end_drained(self) -> None:
        """Ends those in the middle of a snapshot too: the node waits no longer."""
        self.end_streams(lambda stream: True, EndReason.DRAINING, _STOPPING)
        self.pump()
        self.flush()

    def end_streams(
        self,
        which: Callable[[PartitionStream], bool],
        reason: EndReason,
        message: str,
        *,
        feed_id: bytes | None = None,
    ) -> None:
        """Ends the streams for which ``which`` is true, of one feed or of all; the next flush sends the end."""
        if self.is_closing:  # nothing more is sent, and all are forgotten soon
            return
        for slot in list(self.rounds.slots.values()) if feed_id is None else self.rounds.slots_of(feed_id):
            if which(slot.stream):
                self.rounds.close(slot.stream.id, reason, message)
                self.has_news()

    def stuck_seconds(self, now: float) -> float:
        """Returns for how many seconds something has waited for the peer, which has taken nothing."""
        rounds, backlog = self.rounds, self.transport.backlog_bytes
        self._progress.look(now, rounds.waits_for_credit or backlog > 0, rounds.window.credited_bytes, backlog)
        return self._progress.stuck_seconds(now)

    def tick(self, now: float) -> None:
        """Sends NOOP on an idle connection, and drops a peer that is silent. Called now and then."""
        limits = self.node.config.limits
        self.stuck_seconds(now)  # which looks for progress
        self.deadline_timer.check()
        if self.memory.waits_for_writes:
            self.received_at = now
        if self.is_closing:
            if now - self._closing_at > LINGER_SECONDS:
                self.transport.close()
        elif not self.greeted and now - self.opened_at > limits.hello_timeout_s:
            self.fail(ProtocolError(f"no HELLO within {limits.hello_timeout_s:g} s"))
        elif now - self.received_at > 3 * limits.noop_interval_s:
            self.fail(ProtocolError(f"nothing heard for {now - self.received_at:.0f} s"))
        elif now - self.sent_at >= limits.noop_interval_s:
            self.sent_at = now
            self.transport.send(encode_frame(Opcode.NOOP))
