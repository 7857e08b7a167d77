"""A client's connection to a node: frames in, answers and streams out.

One task reads and handles; what goes out leaves through ``Transport.send``, which never waits, so that answers and
streams can be sent from wherever their cause is (an fsync that has ended, a block that has been taken).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from tailrace import _version
from tailrace.block import Block
from tailrace.errors import Forbidden, NotDurable, Overloaded, ProtocolError, TailraceError, UnknownFeed
from tailrace.model import EndReason, Level, Version
from tailrace.transport import Transport
from tailrace.wire.frames import HELLO_BODY_BYTES_MAX, Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import (
    PROTOCOL_VERSION,
    Get,
    Got,
    Hello,
    HelloOk,
    RollBack,
    StreamEnd,
    StreamRequest,
    Write,
    WriteFlag,
    Written,
    decode_cookie,
    decode_json,
    decode_number,
    encode_error,
    encode_json,
)
from tailrace.wire.opcodes import Opcode
from tailrace_server.feed import Feed
from tailrace_server.lookup import Lookup
from tailrace_server.partition import CONDITIONS, Partition, Taken
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.resume import answer_request
from tailrace_server.stream.rounds import Rounds

if TYPE_CHECKING:
    from tailrace_server.node import Node

log = logging.getLogger("tailrace.server")

# Streams send about this much, then whoever else is ready has a turn of the loop.
PUMP_BYTES = 1024 * 1024
# A body smaller than this is copied out of the chunk that it came in, which it would otherwise keep in memory.
COPY_BYTES_MAX = 16 * 1024
# A peer that is told why its connection ends has this long to read it; what it goes on sending meanwhile is dropped.
LINGER_SECONDS = 5.0
# One turn of catching up with the by-key index, or of looking keys up.
STEP_SECONDS = 0.002

# Does a part of something, until the given function says that time is up; True once all is done.
_Step = Callable[[Callable[[], bool]], bool]


class Connection:
    """The server's side of one connection."""

    def __init__(self, node: Node, transport: Transport, nursery: trio.Nursery) -> None:
        self.node = node
        self.transport = transport
        self.name = ""
        self.opened_at = self.received_at = self.sent_at = node.clock.monotonic()
        self.rounds = Rounds(0)
        self._nursery = nursery
        self._decoder = FrameDecoder(HELLO_BODY_BYTES_MAX)
        self._answers: list[bytes] = []
        self._answer_bytes = 0  # of answers that have not left, those included that wait for an fsync
        self._greeted = False
        self._closing = False
        self._closing_at = 0.0
        self._draining = False
        self._waiting_requests = 0
        self._drained = trio.Event()
        self._room = trio.Event()
        transport.on_drained = self._on_drained

    # Reading

    async def run(self) -> None:
        """Reads and handles frames until either side closes."""
        try:
            while True:
                data = await self.transport.receive()
                if not data:
                    return
                if self._closing:
                    continue  # a connection that is closed with something unread is reset, and the reason gets lost
                self.received_at = self.node.clock.monotonic()
                await self._handle_data(data)
                self.node.turn_ended(self)
                await self._wait_for_room()
        except OSError:
            return  # the peer is gone: nobody is left to tell
        finally:
            self.rounds.close_all()

    async def drained(self) -> None:
        """Returns once all that was sent has left."""
        self._drained = trio.Event()
        if self.transport.backlog_bytes:
            await self._drained.wait()

    @property
    def _has_room(self) -> bool:
        """The peer has taken most of what it was answered, so that it may ask for more."""
        return self._answer_bytes + self.transport.backlog_bytes <= self.node.config.limits.backlog_bytes_max

    async def _wait_for_room(self) -> None:
        """A checkpoint only where it has to wait."""
        while not self._has_room and not self._closing:
            if self._room.is_set():
                self._room = trio.Event()
            await self._room.wait()

    def _on_drained(self) -> None:
        self._drained.set()
        self._room.set()
        if self._closing:
            self.transport.finish()
        else:
            self.pump()

    async def _handle_data(self, data: bytes) -> None:
        try:
            for frame in self._decoder.receive_data(data):
                self._handle(frame)
                if not self._has_room:
                    self.node.turn_ended(self)
                    await self._wait_for_room()
                if self._closing:
                    return
        except TailraceError as error:
            self.fail(error)

    def _handle(self, frame: Frame) -> None:
        """One frame. An error of a request is its answer; an error of the protocol ends the connection."""
        if not self._greeted and frame.opcode is not Opcode.HELLO:
            raise ProtocolError(f"{frame.opcode.name} before HELLO")
        handler = _HANDLERS.get(frame.opcode)
        if handler is None:
            raise ProtocolError(f"{frame.opcode.name} is not for a server")
        try:
            handler(self, frame)
        except ProtocolError:
            raise
        except TailraceError as error:
            self.answer_error(error, frame.id)

    # Sending

    def answer(self, data: bytes) -> None:
        """Queues an answer; ``flush`` sends it together with others. Nothing is said after the last word."""
        if self._closing:
            return
        self._answers.append(data)
        self._answer_bytes += len(data)
        self.node.to_flush[self] = None

    def answer_error(self, error: TailraceError, id: int) -> None:
        """Queues an ERROR."""
        self.answer(encode_error(error, id))

    def has_news(self) -> None:
        """A stream of this connection has something to send."""
        self.node.to_flush[self] = None

    def flush(self) -> None:
        """Sends what is queued: streams first, since a consumer has done its waiting."""
        if self._closing:
            return
        if self.rounds.has_news:
            self.pump()
        if self._answers:
            self._send_answers()

    def _send_answers(self, last: bytes = b"") -> None:
        answers, self._answers = self._answers, []
        self._answer_bytes -= sum(map(len, answers))
        if last:
            answers.append(last)
        self.sent_at = self.node.clock.monotonic()
        self.transport.send(b"".join(answers) if len(answers) > 1 else answers[0])
        self._room.set()

    def pump(self) -> None:
        """Sends what the streams have, as far as the consumer has granted room and the socket takes it."""
        while self.rounds.has_news and not self.transport.backlog_bytes:
            buffers = self.rounds.next_buffers(PUMP_BYTES)
            if not buffers:
                return
            self.sent_at = self.node.clock.monotonic()
            self.transport.send(*_coalesced(buffers))

    def fail(self, error: TailraceError) -> None:
        """Names what was wrong, then closes."""
        log.info("connection of %s ends: %s", self.transport.peer, error)
        self.close_with(encode_error(error))

    def close_with(self, last: bytes) -> None:
        """Sends ``last`` and closes once the peer has it."""
        self._closing = True
        self._closing_at = self.node.clock.monotonic()
        self.rounds.close_all()
        self._send_answers(last)
        if not self.transport.backlog_bytes:
            self.transport.finish()

    def drain(self) -> None:
        """Ends every stream, since the node is about to stop; none opens any more, and no barrier comes back."""
        self._draining = True
        for stream_id in list(self.rounds.streams):
            self.rounds.close(stream_id, EndReason.DRAINING, "the node is stopping")
        self.pump()
        self.flush()

    def feed_dropped(self, feed: Feed) -> None:
        """Ends the streams of a feed that is no more."""
        for stream in list(self.rounds.streams.values()):
            if stream.partition.feed_id == feed.info.feed_id:
                self.rounds.close(stream.id, EndReason.FEED_DROPPED, f"feed {feed.info.name!r} was dropped")
        self.has_news()

    def status(self, now: float) -> dict[str, Any]:
        """This connection as status shows it."""
        return {
            "peer": self.transport.peer,
            "name": self.name,
            "age_s": now - self.opened_at,
            "streams": len(self.rounds.streams),
            "barriers": len(self.rounds.barriers),
            "outstanding_bytes": self.rounds.outstanding_bytes,
            "backlog_bytes": self.transport.backlog_bytes,
            "slow": self.rounds.window_full,
        }

    def tick(self, now: float) -> None:
        """Called now and then: says something on an idle connection, and drops a peer that is silent."""
        limits = self.node.config.limits
        if self._closing:
            if now - self._closing_at > LINGER_SECONDS:
                self.transport.close()
        elif not self._greeted and now - self.opened_at > limits.hello_timeout_s:
            self.fail(ProtocolError(f"no HELLO within {limits.hello_timeout_s:g} s"))
        elif now - self.received_at > 3 * limits.noop_interval_s:
            self.fail(ProtocolError(f"nothing heard for {now - self.received_at:.0f} s"))
        elif now - self.sent_at >= limits.noop_interval_s:
            self.sent_at = now
            self.transport.send(encode_frame(Opcode.NOOP))

    # Handlers

    def _on_hello(self, frame: Frame) -> None:
        if self._greeted:
            raise ProtocolError("a second HELLO")
        hello = Hello.decode(frame.body)
        if PROTOCOL_VERSION not in hello.versions:
            raise ProtocolError(
                f"the client speaks versions {list(hello.versions)} of the protocol, this node {PROTOCOL_VERSION}"
            )
        if hello.token is not None:
            raise Forbidden("a token was given, and this node knows no tokens: connect without one")
        limits = self.node.config.limits
        self.name = hello.name
        self.rounds.window_bytes = min(hello.window_bytes, limits.window_bytes_max)
        self._decoder.body_bytes_max = limits.frame_body_bytes_max
        self._greeted = True
        identity = self.node.identity
        self.answer(
            HelloOk(
                PROTOCOL_VERSION,
                identity.node_id.hex(),
                identity.cluster_id.hex(),
                f"tailrace/{_version.__version__}",
                limits.frame_body_bytes_max,
                limits.noop_interval_s,
                ("memory", "disk"),
                self.rounds.window_bytes,
            ).encode()
        )

    def _on_noop(self, frame: Frame) -> None:
        """Nothing: it was heard."""

    def _on_create_feed(self, frame: Frame) -> None:
        feed = self.node.create_feed(decode_json(frame.body, "CREATE_FEED"))
        self._answer_when_durable(encode_json(Opcode.RESULT, self.node.feed_to_json(feed), frame.id), frame.id)

    def _on_drop_feed(self, frame: Frame) -> None:
        value = decode_json(frame.body, "DROP_FEED")
        try:
            feed_id = bytes.fromhex(value["feed_id"])
        except (KeyError, TypeError, ValueError):
            raise ProtocolError("DROP_FEED: field 'feed_id' is missing, or not hex") from None
        self.node.drop_feed(feed_id)
        self._answer_when_durable(encode_json(Opcode.RESULT, {}, frame.id), frame.id)

    def _on_list_feeds(self, frame: Frame) -> None:
        feeds = [self.node.feed_to_json(feed) for feed in self.node.feeds]
        self.answer(encode_json(Opcode.RESULT, {"feeds": feeds}, frame.id))

    def _on_partitions(self, frame: Frame) -> None:
        value = decode_json(frame.body, "PARTITIONS")
        feed = self.node.feeds.named(str(value.get("name")))
        self.answer(encode_json(Opcode.RESULT, self.node.partitions_to_json(feed), frame.id))

    def _on_status(self, frame: Frame) -> None:
        self.answer(encode_json(Opcode.RESULT, self.node.status(), frame.id))

    def _on_write(self, frame: Frame) -> None:
        write = Write.decode(frame.body)
        data = write.block
        block = Block.parse(data if len(data) > COPY_BYTES_MAX else memoryview(bytes(data)))
        partition = self.node.feeds.partition(write.feed_id, block.header.partition)
        if write.level == Level.QUORUM:
            raise NotDurable("level quorum needs a set of nodes, and this node is alone: use level disk")
        if write.flags & CONDITIONS:
            if block.header.rows != 1:
                raise ProtocolError("WRITE: a condition is for a block of one row")
            self._when_level(partition, frame.id, lambda: self._take(frame.id, write, partition, block))
        else:
            self._take(frame.id, write, partition, block)

    def _take(self, id: int, write: Write, partition: Partition, block: Block) -> None:
        node = self.node
        if node.committer.failure is not None:
            raise node.committer.failure
        if_version = Version(partition.id, write.branch, write.seq) if write.flags & WriteFlag.IF_VERSION else None
        try:
            taken: Taken = partition.take(
                block,
                node.journal,
                now_us=node.clock.wall_us(),
                now=node.clock.monotonic(),
                flags=write.flags,
                if_version=if_version,
            )
        except TailraceError as error:
            if not write.flags & CONDITIONS:
                raise
            # What a refusal tells of other writes must not be lost any more when it is told.
            refusal = encode_error(error, id)
            self._answer_when_durable(refusal, id)
            return
        if taken.fresh:
            node.committer.note(partition)
        answer = Written(*taken.versions).encode(id)
        if write.level == Level.MEMORY:
            self.answer(answer)
        else:
            self._answer_when_durable(answer, id)

    def _answer_when_durable(self, answer: bytes, id: int) -> None:
        self._answer_bytes += len(answer)

        def durable(error: TailraceError | None) -> None:
            self._answer_bytes -= len(answer)
            self.answer(answer if error is None else encode_error(error, id))

        self.node.committer.when_durable(durable)

    def _on_get(self, frame: Frame) -> None:
        get = Get.decode(frame.body)
        if get.level == Level.QUORUM:
            raise NotDurable("level quorum needs a set of nodes, and this node is alone: use level disk")
        feed = self.node.feeds.of_id(get.feed_id)
        count = feed.info.partitions
        partitions = [feed.partitions[number] for number in self.node.routes(get.keys, count)]
        lookup = Lookup(get.keys, partitions)

        def answer_get() -> None:
            answer = Got(lookup.items).encode(frame.id)
            if get.level > Level.MEMORY and lookup.is_in_flight:
                self._answer_when_durable(answer, frame.id)
            else:
                self.answer(answer)

        self._waiting(frame.id, lookup.step, answer_get)

    # Waiting for the by-key index

    def _when_level(self, partition: Partition, id: int, then: Callable[[], None]) -> None:
        """Runs ``then`` once the index is level with the tree, with nothing in between."""
        self._waiting(id, lambda out_of_time: partition.keys.catch_up(partition.tree, out_of_time), then)

    def _waiting(self, id: int, step: _Step, then: Callable[[], None]) -> None:
        """Runs ``then`` at once where one ``step`` is enough; else steps in a task, with the loop free in between."""
        if step(self._out_of_time()):
            then()
            return
        if self._waiting_requests >= self.node.config.limits.waiting_requests_max:
            raise Overloaded(f"{self._waiting_requests} requests of this connection are waiting; wait for answers")
        self._waiting_requests += 1
        self._nursery.start_soon(self._step_until, id, step, then)

    def _out_of_time(self) -> Callable[[], bool]:
        """True from about 2 ms on."""
        clock = self.node.clock
        deadline = clock.monotonic() + STEP_SECONDS
        return lambda: clock.monotonic() >= deadline

    async def _step_until(self, id: int, step: _Step, then: Callable[[], None]) -> None:
        try:
            while True:
                await trio.lowlevel.checkpoint()
                await self._wait_for_room()
                if step(self._out_of_time()):
                    break
            then()
        except ProtocolError as error:
            self.fail(error)
        except TailraceError as error:
            self.answer_error(error, id)
        finally:
            self._waiting_requests -= 1
        self.node.turn_ended()

    # Streams

    def _on_stream_request(self, frame: Frame) -> None:
        request = StreamRequest.decode(frame.body)
        rounds = self.rounds
        if frame.id in rounds.streams:
            raise ProtocolError(f"STREAM_REQUEST: stream {frame.id} is open already")
        if self._draining:
            self.answer(StreamEnd(request.partition, EndReason.DRAINING, "the node is stopping").encode(frame.id))
            return
        try:
            feed = self.node.feeds.of_id(request.feed_id)
        except UnknownFeed as error:
            self.answer(StreamEnd(request.partition, EndReason.FEED_DROPPED, str(error)).encode(frame.id))
            return
        if request.partition >= len(feed.partitions):
            message = f"feed {feed.info.name!r} has no partition {request.partition} here"
            self.answer(StreamEnd(request.partition, EndReason.NOT_MY_PARTITION, message).encode(frame.id))
            return
        if request.level == Level.QUORUM:
            raise NotDurable("visibility quorum needs a set of nodes, and this node is alone: use disk")
        if len(rounds.streams) >= self.node.config.limits.streams_max:
            raise Overloaded(f"{len(rounds.streams)} streams are open on this connection; use another one")
        partition = feed.partitions[request.partition]
        answer = answer_request(
            request,
            log=partition.log,
            state="leader",
            high_seq=partition.high_seq,
            visible_seq=partition.visible_seq(request.level),
            purge_seq=partition.purge_seq,
        )
        self.answer(answer.encode(frame.id))
        if isinstance(answer, StreamEnd | RollBack):
            return
        # A consumer that has a part of a snapshot needs the rest before it stands anywhere.
        promised = request.snapshot_last if request.snapshot_first < answer.seq else answer.seq
        stream = PartitionStream(frame.id, partition, request.level, answer.seq, request.end_seq, promised)
        # The answer has to leave before anything of the stream.
        self._send_answers()
        rounds.open(stream, self.has_news)
        if request.level == Level.DISK and partition.high_seq > partition.durable_seq:
            self.node.committer.hurry()

    def _on_stream_close(self, frame: Frame) -> None:
        self.rounds.close(frame.id, EndReason.CLOSED, "closed by the client")
        self.has_news()

    def _on_credit(self, frame: Frame) -> None:
        self.rounds.credit(decode_number(frame.body, "CREDIT"))
        self.has_news()

    def _on_barrier(self, frame: Frame) -> None:
        cookie = decode_cookie(frame.body, "BARRIER")
        if self._draining:
            self.answer(encode_frame(Opcode.BARRIER_LOST, cookie))
            return
        if len(self.rounds.barriers) >= self.node.config.limits.barriers_max:
            raise ProtocolError(f"{len(self.rounds.barriers)} barriers are outstanding; wait for some to come back")
        self.rounds.barrier(cookie)
        self.has_news()
        if self.rounds.barriers:
            self.node.committer.hurry()


_HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.HELLO: Connection._on_hello,
    Opcode.NOOP: Connection._on_noop,
    Opcode.CREATE_FEED: Connection._on_create_feed,
    Opcode.DROP_FEED: Connection._on_drop_feed,
    Opcode.LIST_FEEDS: Connection._on_list_feeds,
    Opcode.PARTITIONS: Connection._on_partitions,
    Opcode.STATUS: Connection._on_status,
    Opcode.WRITE: Connection._on_write,
    Opcode.GET: Connection._on_get,
    Opcode.STREAM_REQUEST: Connection._on_stream_request,
    Opcode.STREAM_CLOSE: Connection._on_stream_close,
    Opcode.CREDIT: Connection._on_credit,
    Opcode.BARRIER: Connection._on_barrier,
}


def _coalesced(buffers: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """The same bytes in fewer buffers: small neighbours are joined, large ones stay as they are."""
    if len(buffers) <= 8:
        return buffers
    joined: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if len(buffer) < COPY_BYTES_MAX:
            small.append(buffer)
            continue
        if small:
            joined.append(b"".join(small))
            small = []
        joined.append(buffer)
    if small:
        joined.append(b"".join(small))
    return joined
