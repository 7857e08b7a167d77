"""A place for the bytes that a connection receives next: they need no copy, and no memory of their own. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.wire.frames import FRAME_HEADER_BYTES


class Place:
    """``buffers`` are to be received into: one for the body that has begun, and one for the next frame's header.

    So one system call receives the rest of a body, and tells what comes next. A shell calls ``received`` after it.
    """

    __slots__ = ("_begun", "_rest", "buffers")

    def __init__(self, body: memoryview, begun: Callable[[memoryview], None], rest: Callable[[bytes], None]) -> None:
        """``begun`` is called with the bytes in ``body``, and ``rest`` with those behind it, if there are some."""
        self._begun = begun
        self._rest = rest
        self.buffers = (body, bytearray(FRAME_HEADER_BYTES))

    def received(self, count: int) -> None:
        """Hands over the first ``count`` bytes of the buffers, one at least. Raises as a session's ``receive_data``."""
        body, header = self.buffers
        self._begun(body[:count])
        if count > len(body):
            self._rest(bytes(header[: count - len(body)]))
