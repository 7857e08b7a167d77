"""A request other than a write, on its way: its frame, its answer and its tries. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrace.errors import ProtocolError, TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace.wire.frames import Frame

if TYPE_CHECKING:
    from tailrace.wire.segment_messages import SegmentFetch


class Sequence:
    """Requests that the node takes in their order only: one that is refused for now delays those behind it."""

    __slots__ = ("hold_until", "tries")

    def __init__(self) -> None:
        self.hold_until = 0.0
        self.tries = 0

    def refused(self, now: float, jitter: Callable[[], float]) -> None:
        """A request has to be sent again. Refusals of the requests behind it count as the same refusal."""
        if now >= self.hold_until:
            self.tries += 1
            self.hold_until = now + backoff_seconds(self.tries, jitter)


# Called once with the answer to a request or a step: its result, or the error.
Answered: TypeAlias = Callable[[Any, TailraceError | None], None]

# Makes a request's frame with this id. Two buffers avoid a copy of a large body.
Encode: TypeAlias = Callable[[int], bytes | tuple[bytes, bytes | memoryview]]


class Request:
    """A request other than a write: makes its frame, and reads its answer. ``order`` rises with each request."""

    __slots__ = (
        "deadline",
        "decode",
        "done",
        "encode",
        "hold_until",
        "in_doubt",
        "is_read",
        "order",
        "sent",
        "sequence",
        "tries",
    )

    def __init__(
        self,
        encode: Encode,
        decode: Callable[[Frame], Any],
        done: Answered,
        deadline: float,
        *,
        is_read: bool = False,
    ) -> None:
        self.encode = encode
        self.decode = decode
        self.done = done
        self.deadline = deadline
        self.sequence: Sequence | None = None
        self.order = 0
        self.is_read = is_read  # a follower may answer it
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets earlier tries: the request is new, or has its answer and asks for more."""
        self.hold_until = 0.0
        self.sent = False
        self.in_doubt = False  # an earlier try may have had an effect
        self.tries = 0


class PartRequest(Request):
    """A request for a part of a segment's file, which is handed over as it arrives.

    If the connection breaks, the next one is asked for the rest only. ``receive`` is called with one piece after the
    other, and so has each byte once. ``patience_s`` is the time from one piece to the next after which it is given up.
    """

    __slots__ = ("_left", "_receive", "patience_s")

    def __init__(
        self,
        fetch: SegmentFetch,
        receive: Callable[[memoryview], None],
        done: Answered,
        deadline: float,
        patience_s: float,
    ) -> None:
        super().__init__(self._encode, self._finish, done, deadline)
        self.patience_s = patience_s
        self._left = fetch
        self._receive = receive

    def add(self, piece: memoryview) -> None:
        """Hands over a piece that is not the last one. Raises ProtocolError if the answer is too long."""
        if len(piece) >= self._left.nbytes:
            raise ProtocolError(f"SEGMENT_DATA: {len(piece)} bytes and more, and {self._left.nbytes} were asked for")
        self._take(piece)

    def _take(self, piece: memoryview) -> None:
        fetch = self._left
        self._left = fetch._replace(offset=fetch.offset + len(piece), nbytes=fetch.nbytes - len(piece))
        self._receive(piece)

    def _encode(self, id: int) -> bytes:
        return self._left.encode(id)

    def _finish(self, frame: Frame) -> None:
        self._take(self._left.decode_answer(frame))
