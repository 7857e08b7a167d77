"""The requests of one client to a node, across connections. Sans-IO: a shell moves the bytes and tells the time.

    new ──HELLO──> greeting ──HELLO_OK──> open ──(link lost)──> new ...
                                            │
                       unanswered requests are sent (again), in order

Every request can be sent twice: reads and metadata change nothing (a feed is created under an id that the client
chose), and writes carry producer numbers.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tailrace.block import FLAG_TTLS, Block
from tailrace.errors import NotLeader, ProtocolError, Retryable, TailraceError, TooLarge
from tailrace.link.backoff import backoff_seconds
from tailrace.link.place import Place
from tailrace.link.rules import Link, is_final
from tailrace.link.sparing import Sparing
from tailrace.model import Level, Version
from tailrace.requests.lane import DONE, Done, Lane, WriteRequest
from tailrace.requests.lone_calls import LoneLookUps, LoneWrites, receive_alone
from tailrace.requests.look_up import Found, LookUp
from tailrace.requests.offered_levels import OfferedLevels, refusal_of_ttls
from tailrace.requests.parts import PartRequest, Places
from tailrace.requests.request import Answered, Encode, PlainRequest, Request, Sequence
from tailrace.requests.request_queue import RequestQueue
from tailrace.requests.write_queue import RowWrite, WriteQueue
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.bounds import check_request
from tailrace.wire.frames import FRAME_GOES_ON, ID_MAX, Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import TRACING_MODULE, Hello, HelloOk, Written, decode_error
from tailrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from tailrace.wire.segment_messages import SegmentFetch

_OPEN = Link.OPEN  # as a global: an attribute of an Enum is slow to read
# The seconds for which a connection is used at least before a read leaves it for a node that has come further. They
# bound the connections that many waiting reads make together.
USED_SECONDS_MIN = 1.0
log = logging.getLogger("tailrace.client")

_COPIED_BYTES_MAX = 4_096  # a body up to here is joined to its frame's header: one buffer is sent faster than two


class RequestSession:
    """See the module. All times are monotonic seconds of the shell's clock; ``jitter`` spreads retries (backoff.py).

    ``state`` is the role that the node must have (`tailrace.link.finder`). ``check`` raises if another node is to be
    asked. The node recognises the connections of this session by the secret ``session`` (`Hello`). So a request on an
    earlier connection, such as a write that was given up, cannot arrive after a request on a later one.
    """

    def __init__(
        self,
        hello: Hello,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        state: str = "leader",
        check: Callable[[HelloOk], None] = lambda _: None,
        session: str = "",
    ) -> None:
        self.hello = hello  # the greeting, without ``session``
        self._id = session
        self._clock = clock
        self._jitter = jitter
        self._state = state
        self._check = check
        self._misplaced: NotLeader | None = None  # an answer that names another node to ask
        self._decoder = FrameDecoder(in_pieces=(Opcode.SEGMENT_DATA,))
        self._link = Link.DOWN
        self.connections = 0  # that were made
        self._made_at = 0.0  # the last of them
        self._out: list[bytes | memoryview] = []
        self._next_id = 1  # of the next request
        self._is_useful = False  # a request that was sent on this connection has an answer that no retry changes
        self._queue = RequestQueue(clock, jitter)  # those that are no writes
        self._writes = WriteQueue()
        self._by_id: dict[int, Request | WriteRequest | None] = {}  # None: a lone look-up
        self.levels = OfferedLevels()
        self.lone = LoneLookUps(self._by_id, self._queue, self._writes, self._is_quiet, self.get)
        self.lone_writes = LoneWrites(self._by_id, self._queue, self._writes, self.levels, self._is_quiet)
        self._refusals = Sparing(clock)
        self._sends_traces = False  # the node knows TRACE
        self.peer: HelloOk | None = None
        self.last_error: TailraceError | None = None
        self._closed: TailraceError | None = None

    # The link

    @property
    def is_open(self) -> bool:
        """The node has said hello."""
        return self._link is _OPEN

    @property
    def has_progressed(self) -> bool:
        """A request has had its final answer on the present connection, or a part of a file has begun."""
        return self._link is _OPEN and (self._is_useful or self._queue.parts.have_come)

    def know_from(self, before: RequestSession) -> None:
        """Takes over from another session what the node of its last greeting has told."""
        self.levels.know_from(before.levels)
        self.peer = before.peer

    def connection_made(self) -> None:
        """Begins a new connection with a greeting."""
        self.connections += 1
        self._made_at = self._clock()
        self._is_useful = False
        self._decoder = FrameDecoder(in_pieces=(Opcode.SEGMENT_DATA,))
        self._queue.parts.connection_made()
        self._out = [self.hello._replace(session=self._id).encode()]
        self._link = Link.GREETING
        self._misplaced = None

    def connection_lost(self, error: TailraceError) -> None:
        """The connection was lost, or could not be made."""
        unanswered = len(self._queue.requests)
        if self._link is _OPEN and unanswered:
            log.info("%s requests are sent again: the connection ended before they were answered", unanswered)
        self._link = Link.DOWN
        self.last_error = error
        self._out = []
        self._by_id.clear()
        self._queue.link_lost()
        self._writes.link_lost()

    def leave(self, why: str) -> None:
        """Leaves a node that has not come far enough for a read: its next bytes end the connection, with NotLeader.

        Another node of the URL is tried then. A connection that was made less than ``USED_SECONDS_MIN`` ago stays.
        """
        if self._link is _OPEN and self._clock() - self._made_at >= USED_SECONDS_MIN:
            self._misplaced = self._misplaced or NotLeader(why)

    def is_final(self, error: TailraceError) -> bool:
        """Tells whether no retry can mend the error that ended a connection."""
        return is_final(error, greeted=self.peer is not None)

    def receive_data(self, data: bytes | memoryview) -> None:
        """Handles bytes from the node.

        Raises ProtocolError, the error with which the node ends the connection, or NotLeader if another node is to be
        asked.
        """
        self._writes.expect_none()
        if self._decoder.is_between_frames and receive_alone(data, self._by_id, self._queue, self._writes):
            self._is_useful = True
        else:
            for frame in self._decoder.receive_data(data):
                self._receive(frame)
        if self._misplaced is not None:
            raise self._misplaced

    def place(self) -> Place | None:
        """Returns a place for the next bytes, if they are of a part; None: ``receive_data`` gets them."""
        if not self._decoder.left_bytes:
            return None
        id, left_bytes = self._decoder.begun_piece
        part = self._part(id)
        buffer = None if part is None else part.next_place()
        return None if buffer is None else Place(buffer[:left_bytes], self._receive_placed, self.receive_data)

    def _receive_placed(self, piece: memoryview) -> None:
        frame = self._decoder.receive_piece(piece)
        part = self._part(frame.id)
        if part is not None:  # it was not given up meanwhile
            part.take_place()
        self._receive(frame)

    def _part(self, id: int) -> PartRequest | None:
        """Returns the request of this id for a part; None if it was given up, or is another one."""
        part = self._by_id.get(id)
        return part if isinstance(part, PartRequest) and part in self._queue.requests else None

    def data_to_send(self, now: float | None = None) -> list[bytes | memoryview]:
        """Returns the buffers to send now. ``now`` is the time, if the caller has it."""
        if self._link is _OPEN and (self._queue.unsent or self._writes.is_holding):
            self._collect(self._clock() if now is None else now)
        out, self._out = self._out, []
        return out

    def noop(self) -> None:
        """Sends a NOOP, so that the node knows that this side lives."""
        if self._link is _OPEN:
            self._out.append(encode_frame(Opcode.NOOP))

    # Asking

    @property
    def idle(self) -> bool:
        """No request waits for an answer."""
        return not self._queue.requests and self._writes.is_idle

    def _is_quiet(self) -> bool:
        """A leader answers on this connection, nothing waits to be sent, and no bytes to be understood."""
        if self._link is not _OPEN or self._out or not self._is_useful or self._state != "leader":
            return False
        return self._closed is None and self._misplaced is None and self._decoder.is_between_frames

    @property
    def is_holding(self) -> bool:
        """A request waits to be sent, or to be sent again."""
        return bool(self._queue.unsent) or self._writes.is_holding

    @property
    def gathers(self) -> bool:
        """Queued rows may wait for those that other callers are about to put, until the turn of the loop ends."""
        return self._writes.gathers and not self._queue.unsent

    def expect_none(self) -> None:
        """Waits no longer for rows of other callers: the queued ones leave."""
        self._writes.expect_none()

    @property
    def until_deadline_s(self) -> float:
        """The seconds until the first deadline of a request; without requests, infinite."""
        deadlines = [*self._queue.deadlines, *(write.deadline for write in self._writes.requests())]
        return min(deadlines, default=math.inf) - self._clock()

    @property
    def waiting(self) -> list[object]:
        """The requests that wait for their answers: the first one, and the first of each lane."""
        return [*self._queue.first, *self._writes.first]

    def call(self, opcode: Opcode, value: dict[str, Any], done: Answered, deadline: float) -> Request:
        """Queues a metadata request and returns it; ``done`` gets the JSON object of the answer."""
        request = PlainRequest(
            lambda id: encode_json(opcode, value, id), lambda frame: decode_json(frame.body, "RESULT"), done, deadline
        )
        self._ask(request)
        return request

    def ask(
        self, encode: Encode, decode: Callable[[Frame], Any], done: Answered, sequence: Sequence | None, deadline: float
    ) -> Request:
        """Queues any other request and returns it. ``encode`` makes its frame with an id each time that it is sent."""
        request = PlainRequest(encode, decode, done, deadline)
        request.sequence = sequence
        self._ask(request)
        return request

    def fetch(
        self,
        fetch: SegmentFetch,
        receive: Callable[[memoryview], None],
        done: Answered,
        deadline: float,
        places: Places | None = None,
    ) -> Request:
        """Queues a request for a part of a file and returns it. ``receive`` gets each piece, in order, as it arrives.

        Pieces come in ``places``, as far as there are some.

        While bytes of parts arrive, no part is given up. After them, each has the time from now to ``deadline`` again.
        """
        request = self._queue.parts.request(fetch, receive, done, deadline, places)
        self._ask(request)
        return request

    def _ask(self, request: Request) -> None:
        if self._closed is not None:
            request.done(None, self._closed)
            return
        self._queue.add(request)

    def get(self, feed_id: bytes, level: Level, keys: list[bytes], done: Found, deadline: float) -> LookUp:
        """Queues a look-up of up to GET_KEYS_MAX keys and returns it. It asks again until it has the rows of all."""
        request = LookUp(feed_id, level, keys, done, deadline, self._role_of_reads, self._ask)
        self._ask(request)
        return request

    def write(
        self,
        lane: Lane,
        block: Block,
        level: Level | None,
        done: Done,
        deadline: float,
        flags: int = 0,
        if_version: Version | None = None,
        feed: str = "",
    ) -> WriteRequest:
        """Queues a block in its lane and returns the request. ``level`` None leaves the level to the node.

        ``feed`` is the name of the feed, for spans.
        """
        request = WriteRequest(lane, block, level, done, deadline, flags, if_version)
        error = self._closed
        if error is None and block.header.flags & FLAG_TTLS:
            error = refusal_of_ttls(self.peer)
        if error is not None:
            request.state = DONE
            done(None, error)
            return request
        if TRACING_MODULE in sys.modules:
            from tailrace.tracing import begin_write

            request.span = begin_write(feed, lane.partition, block.header.rows)
        self._writes.add(request)
        return request

    def write_row(
        self,
        lane: Lane,
        key: bytes,
        value: bytes | None,
        hash_: int,
        level: Level | None,
        done: Done,
        deadline: float,
        feed: str = "",
    ) -> RowWrite:
        """Queues a put or a deletion (value None) without conditions, and returns the request.

        Rows that wait for the same lane leave in one block.
        """
        row = RowWrite(lane, key, value, hash_, level, done, deadline)
        if self._closed is not None:
            row.finish(None, self._closed)
            return row
        if TRACING_MODULE in sys.modules:
            from tailrace.tracing import begin_write

            row.span = begin_write(feed, lane.partition, 1)
        if row.span is None:
            self._writes.add_row(row)
        else:
            self._writes.add_alone(row)
        return row

    def withdraw(self, request: Request | WriteRequest) -> None:
        """Gives up a request whose caller is gone: ``done`` is not called any more.

        A request that was not sent is never sent. One that was sent is not sent again. No-op if it has its answer.
        """
        if isinstance(request, WriteRequest):
            self._writes.withdraw(request)
        else:
            self._queue.withdraw(request)

    def withdraw_all(self, requests: Iterable[Request | WriteRequest]) -> None:
        """Gives up several requests, as ``withdraw``."""
        for request in requests:
            self.withdraw(request)

    def expire(self) -> None:
        """Gives up requests whose deadline has passed."""
        now = self._clock()
        if self._queue.requests:
            self._queue.expire(now, self.last_error)
        self._writes.expire(now, self.last_error)

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the writes of ``lane`` that were not sent, and sends none of the others again."""
        self._writes.withdraw_lane(lane)

    def fail_all(self, error: TailraceError) -> None:
        """Fails all requests, and every later one: the client is closing."""
        self._closed = error
        self._queue.fail_all(error)
        self._writes.fail_all(error)

    def refuse(self, error: TailraceError) -> None:
        """Fails every later request with ``error``. Requests that are queued or sent stay as they are."""
        self._closed = error

    def postpone(self, seconds: float) -> None:
        """Moves all deadlines by ``seconds``, during which the program has moved no bytes."""
        self._queue.postpone(seconds)
        self._writes.postpone(seconds)

    # Frames

    def _collect(self, now: float) -> None:
        if self._writes.is_holding:  # first: look-ups are to see what was put before them, on a new connection, too
            self._send_writes(now)
        for request in self._queue.take_due(now) if self._queue.unsent else ():
            id = self._id_for(request)
            try:
                frame = request.encode(id)
                check_request(frame)
            except (TooLarge, TypeError, ValueError) as error:  # requests of others go on, on this connection
                del self._by_id[id]
                self._queue.fail(request, error if isinstance(error, TooLarge) else _unfit(error))
                continue
            self._out += (frame,) if isinstance(frame, bytes) else frame

    def _send_writes(self, now: float) -> None:
        for write in self._writes.take(now):
            id = self._id_for(write)
            start, body = write.encode(id, self.levels.unnamed), write.block.body
            if write.span is not None and write.span.trace is not None and self._sends_traces:
                start = write.span.trace.encode(id) + start
            if len(body) <= _COPIED_BYTES_MAX:
                self._out.append(start + body)
            else:
                self._out += (start, body)

    def _id_for(self, request: Request | WriteRequest) -> int:
        while self._next_id in self._by_id:
            self._next_id = self._next_id % ID_MAX + 1
        id = self._next_id
        self._next_id = id % ID_MAX + 1
        self._by_id[id] = request
        return id

    def _receive(self, frame: Frame) -> None:
        opcode, flags, id, body = frame
        if flags & FRAME_GOES_ON:
            part = self._part(id)
            if part is not None:
                part.add(body)
            return
        if opcode is Opcode.NOOP:
            return
        if opcode is Opcode.HELLO_OK:
            self._greeted(HelloOk.decode(body))
            return
        if opcode is Opcode.ERROR and id == 0:
            raise decode_error(body)
        request = self._by_id.pop(id, None)
        if request is None:
            return  # given up meanwhile
        if opcode is Opcode.ERROR:
            self._refused(request, decode_error(body))
            return
        self._is_useful = True
        if isinstance(request, WriteRequest):
            if opcode is not Opcode.WRITTEN:
                raise ProtocolError(f"the answer to a WRITE is {opcode.name}")
            self._writes.answered(request, Written.decode(body))
        else:
            self._queue.answered(request, frame)

    def _greeted(self, peer: HelloOk) -> None:
        if self._link is not Link.GREETING:
            raise ProtocolError("HELLO_OK out of place")
        peer.check_version()
        self._check(peer)
        self.peer = peer
        self.levels.greeted(peer)
        self._sends_traces = peer.takes_traces
        self._link = _OPEN
        self.last_error = None

    def _refused(self, request: Request | WriteRequest, error: TailraceError) -> None:
        now = self._clock()
        request.tries += 1
        hold_until = now + backoff_seconds(request.tries, self._jitter)
        self._is_useful |= not isinstance(error, Retryable)
        if isinstance(error, Retryable):
            self.last_error = error
            if (more := self._refusals.note()) is not None:
                log.info("a request is sent again in a moment, since the node has refused it: %s%s", error, more)
        if isinstance(error, NotLeader) and self._moves_on(request):
            self._misplaced = error
        if isinstance(request, WriteRequest):
            # A node that led may have taken it, and refused it as it stepped down.
            led = isinstance(error, NotLeader) and self.peer is not None and self.peer.role == "leader"
            self._writes.refused(request, error, hold_until, in_doubt=led)
        else:
            self._queue.refused(request, error, now, hold_until)

    def _moves_on(self, request: Request | WriteRequest) -> bool:
        """Tells whether a node may accept ``request`` after a new search. No follower accepts a write.

        The node of a client with state "any" accepts a look-up again once a new greeting has told its present role.
        """
        return self._state == "leader" or (isinstance(request, Request) and request.is_read)

    def _role_of_reads(self) -> int:
        """Returns the role that a GET asks for: 0 leader, 1 follower."""
        if self._state == "any" and self.peer is not None:
            return int(self.peer.role == "follower")
        return int(self._state == "follower")


def _unfit(error: Exception) -> TailraceError:
    """Returns the error of a request whose body cannot be made of what the program gave, such as bytes for a name."""
    return TailraceError(f"the arguments of the call do not fit into a request: {error}")
