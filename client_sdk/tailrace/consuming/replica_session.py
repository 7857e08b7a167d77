"""A node's conversation with the node that it copies feeds from. Sans-IO: bytes in, frames for each feed, bytes out.

    HELLO ── HELLO_OK ── of each feed: PARTITIONS ── RESULT, if its partitions may be held back ── STREAM_REQUESTs
    beside them: LEADER_CHECK, credit, noops

The feeds share the connection: the ids of requests, the window, and a bound of the requests without an answer. A frame
goes to its feed by its id, and waits there. LEADER_CHECK is told of when it comes, so no feed can hold it up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from tailrace.consuming.replica import ReplicaStreams
from tailrace.consuming.subscription import Subscription
from tailrace.errors import ProtocolError
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import decode_number, encode_number

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_BLOCK = Opcode.BLOCK

# The requests without an answer, above which no further feed asks. Their answers take about 1 MiB.
REQUESTS_MAX = 1_024
# The requests without an answer, and feeds that are to ask, from which on no further feed should be copied yet: about
# 0.1 s of both nodes. A feed that is asked for next waits for these.
ASKED_MAX = 256
# The consumed bytes of a feed that are credited to its streams when no block of it waits. Of small blocks, fewer frames
# go back than come.
STREAM_CREDIT_BYTES = 16 * 1024


class ReplicaSession:
    """One connection. Only this file sets its fields."""

    def __init__(
        self,
        hello: Hello,
        check: Callable[[HelloOk], None],
        on_check: Callable[[int], None],
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        """Makes a session.

        Args:
            hello: The first message.
            check: Raises NotLeader or Unreachable if the node that has said hello is not the one to copy from.
            on_check: Called with the number of each LEADER_CHECK, at once. `confirm` answers it.
            clock: Returns monotonic seconds.
            jitter: Returns a number from 0 to 1, to spread retries.
        """
        self.hello = hello
        self.peer: HelloOk | None = None
        self._check = check
        self._on_check = on_check
        self._clock = clock
        self._jitter = jitter
        self._decoder = FrameDecoder()
        self._out: list[bytes] = [hello.encode()]
        self._ids = itertools.count(1)
        self._feeds: dict[int, ReplicaStreams] = {}  # by the ids of their streams and requests
        self._unanswered: set[int] = set()
        self.asked_at = clock()  # when the last request was made
        self._due: dict[ReplicaStreams, None] = {}  # feeds with frames to send, in their turn
        self._timed: list[tuple[float, int, ReplicaStreams]] = []  # a heap of those that have some at a time
        self._waiting_bytes = 0  # of blocks that have come and are not handled
        self._consumed_bytes = 0  # handled and not credited yet
        self._window_bytes = 0  # which the node may have made smaller

    def copy(self, subscription: Subscription) -> ReplicaStreams:
        """Returns the streams of a feed. They are asked for with the next `data_to_send`."""
        streams = ReplicaStreams(subscription, self, self._clock, self._jitter)
        streams.ask()
        return streams

    # Bytes in

    def receive_data(self, data: bytes | memoryview) -> list[ReplicaStreams]:
        """Takes bytes of the node. Returns the feeds that have frames to handle.

        Raises ProtocolError, TooLarge, and an ERROR of the connection as the error that it has.
        """
        found: dict[ReplicaStreams, None] = {}
        for frame in self._decoder.receive_data(data):
            streams = self._feeds.get(frame.id)
            if streams is not None:
                self._unanswered.discard(frame.id)
                if frame.opcode is _BLOCK:
                    self._waiting_bytes += len(frame.body)
                streams.arrived(frame)
                found[streams] = None
            elif frame.id:
                self._drop(frame)
            else:
                self._receive(frame)
        if self._waiting_bytes > self.hello.window_bytes + FRAME_BODY_BYTES_MAX:
            window = f"the window is {self.hello.window_bytes} bytes"
            raise ProtocolError(f"the node has sent blocks of {self._waiting_bytes} bytes, but {window}")
        return list(found)

    def _drop(self, frame: Frame) -> None:
        """Handles a frame of a stream that was closed meanwhile."""
        if frame.opcode is _BLOCK:
            self._waiting_bytes += len(frame.body)
            self.consumed(len(frame.body))

    def _receive(self, frame: Frame) -> None:
        """Handles a frame of the connection."""
        if frame.opcode is Opcode.HELLO_OK:
            self._greeted(HelloOk.decode(frame.body))
        elif frame.opcode is Opcode.LEADER_CHECK:
            self._on_check(decode_number(frame.body, "LEADER_CHECK"))
        elif frame.opcode is Opcode.ERROR:
            raise decode_error(frame.body)
        elif frame.opcode not in (Opcode.NOOP, Opcode.ROUND_COMPLETE):
            raise ProtocolError(f"the node sent {frame.opcode.name}, which is not for a replica")

    def _greeted(self, peer: HelloOk) -> None:
        peer.check_version()
        self._check(peer)
        self.peer = peer
        self._window_bytes = min(self.hello.window_bytes, peer.window_bytes)

    # Bytes out

    def data_to_send(self) -> list[bytes]:
        """Returns the frames that are due."""
        if self.peer is not None:
            self._send_requests()
            if self._consumed_bytes and self._consumed_bytes >= self._credit_bytes:
                self._out.append(encode_number(Opcode.CREDIT, self._consumed_bytes))
                self._consumed_bytes = 0
        out, self._out = self._out, []
        return out

    @property
    def _credit_bytes(self) -> int:
        """The consumed bytes from which on they are credited: a quarter of the window, or half of what is in motion.

        Blocks of a feed that is held up may leave little of the window for the others.
        """
        return min(self._window_bytes // 4, max(self._window_bytes - self._waiting_bytes, 0) // 2)

    def _send_requests(self) -> None:
        if self._timed:
            now = self._clock()
            while self._timed and self._timed[0][0] <= now:
                self._due[heapq.heappop(self._timed)[2]] = None
        while self._due and len(self._unanswered) < REQUESTS_MAX:
            streams = next(iter(self._due))
            del self._due[streams]
            self._out += streams.frames_to_send()

    @property
    def next_retry(self) -> float | None:
        """When `data_to_send` next has a request, in monotonic seconds; None if none waits for the clock."""
        return self._timed[0][0] if self._timed else None

    @property
    def retries(self) -> int:
        """How many requests wait for their time."""
        return len(self._timed)

    @property
    def has_room(self) -> bool:
        """True if a feed that is copied now is asked for soon."""
        return len(self._unanswered) + len(self._due) < ASKED_MAX

    @property
    def awaits_answers(self) -> bool:
        """True if a request has no answer yet."""
        return bool(self._unanswered)

    def noop(self) -> None:
        """Queues a NOOP, which shows the node that this side is alive."""
        self._out.append(encode_frame(Opcode.NOOP))

    def confirm(self, number: int) -> None:
        """Queues the answer to a LEADER_CHECK: the node is still followed."""
        self.send(encode_number(Opcode.LEADER_CONFIRM, number))

    # For the feeds

    def new_id(self, streams: ReplicaStreams) -> int:
        """Returns the id of a request whose answer goes to ``streams``."""
        id = next(self._ids)
        self._feeds[id] = streams
        self._unanswered.add(id)
        self.asked_at = self._clock()
        return id

    def forget(self, id: int) -> None:
        """Drops further frames of this id."""
        self._feeds.pop(id, None)
        self._unanswered.discard(id)

    def discard(self) -> None:
        """Lets go of the streams of a connection that has ended."""
        self._feeds.clear()
        self._due.clear()
        self._timed.clear()

    def is_due(self, streams: ReplicaStreams, at: float | None) -> None:
        """Notes that ``streams`` has frames to send at ``at``, in monotonic seconds; None: now."""
        if at is None or at <= self._clock():
            self._due[streams] = None
        else:
            heapq.heappush(self._timed, (at, next(self._ids), streams))

    @property
    def credits_streams(self) -> bool:
        """Whether the node knows a CREDIT of a stream."""
        return self.peer is not None and self.peer.takes_stream_credit

    @property
    def stream_credit_bytes(self) -> int:
        """The consumed bytes of a feed from which on they are credited when none of its blocks waits."""
        return min(STREAM_CREDIT_BYTES, self._window_bytes // 8)

    def send(self, frame: bytes) -> None:
        """Queues a frame."""
        self._out.append(frame)

    def consumed(self, nbytes: int) -> None:
        """Notes the bytes of blocks that were handled. They are credited with the next sending."""
        self._waiting_bytes -= nbytes
        self._consumed_bytes += nbytes
