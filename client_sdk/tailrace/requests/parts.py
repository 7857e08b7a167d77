"""The requests for parts of segments' files: their bytes are handed over as they arrive. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import ProtocolError, TailraceError
from tailrace.requests.request import Answered, Request
from tailrace.wire.frames import Frame

if TYPE_CHECKING:
    from tailrace.wire.segment_messages import SegmentFetch


class Places(Protocol):
    """Buffers for the bytes of parts, so that they are received to where they stay, and the memory is used again."""

    def next(self) -> memoryview | None:
        """Returns the buffer that comes next, without taking it; None if all are in use."""
        ...

    def take(self) -> None:
        """Takes the buffer that ``next`` has returned: bytes have been received into it."""
        ...


class PartRequest(Request):
    """A request for a part of a segment's file, which is handed over as it arrives.

    If the connection breaks, the next one is asked for the rest only. ``receive`` is called with one piece after the
    other, and so has each byte once. ``patience_s`` is the time from one piece to the next after which it is given up.
    If there are ``places``, the bytes should be received into them.
    """

    __slots__ = ("_done", "_left", "_places", "_receive", "patience_s")

    def __init__(
        self,
        fetch: SegmentFetch,
        receive: Callable[[memoryview], None],
        done: Answered,
        deadline: float,
        patience_s: float,
        places: Places | None = None,
    ) -> None:
        super().__init__(deadline)
        self._done = done
        self._places = places
        self.patience_s = patience_s
        self._left = fetch
        self._receive = receive

    def next_place(self) -> memoryview | None:
        """Returns a buffer for the next bytes; None if none is free."""
        return None if self._places is None else self._places.next()

    def take_place(self) -> None:
        """Takes the buffer that ``next_place`` has returned: the next piece is in it."""
        if self._places is not None:
            self._places.take()

    def add(self, piece: memoryview) -> None:
        """Hands over a piece that is not the last one. Raises ProtocolError if the answer is too long."""
        if len(piece) >= self._left.nbytes:
            raise ProtocolError(f"SEGMENT_DATA: {len(piece)} bytes and more, and {self._left.nbytes} were asked for")
        self._take(piece)

    def _take(self, piece: memoryview) -> None:
        fetch = self._left
        self._left = fetch._replace(offset=fetch.offset + len(piece), nbytes=fetch.nbytes - len(piece))
        self._receive(piece)

    def encode(self, id: int) -> bytes:
        """Returns the frame that asks for what is left."""
        return self._left.encode(id)

    def decode(self, frame: Frame) -> None:
        """Hands over the last piece."""
        self._take(self._left.decode_answer(frame))

    def done(self, result: None, error: TailraceError | None) -> None:
        """Tells the caller that all has come, or the error."""
        self._done(result, error)


class ArrivingParts:
    """When bytes of the parts of a session have come. While they come, no part is given up."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._came_at = 0.0  # monotonic; on any connection
        self.have_come = False  # on this connection

    def request(
        self,
        fetch: SegmentFetch,
        receive: Callable[[memoryview], None],
        done: Answered,
        deadline: float,
        places: Places | None,
    ) -> PartRequest:
        """Makes a request, as `PartRequest`. Later parts have its time from now to ``deadline`` after each piece."""

        def take(piece: memoryview) -> None:
            self.have_come, self._came_at = True, self._clock()
            receive(piece)

        return PartRequest(fetch, take, done, deadline, deadline - self._clock(), places)

    def connection_made(self) -> None:
        """Notes that on this connection no bytes have come."""
        self.have_come = False

    def are_waited_for(self, request: PartRequest, now: float) -> bool:
        """Tells whether bytes have come so lately that ``request`` is not given up."""
        return now < self._came_at + request.patience_s

    def postpone(self, seconds: float) -> None:
        """Leaves out ``seconds`` during which the program has moved no bytes."""
        self._came_at += seconds
