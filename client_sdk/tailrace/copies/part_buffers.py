"""Buffers for the bytes of parts on their way from the socket to the disk.

    next ──> received into ──> take ──> stored ──> give_back ──┐
     ^──────────────────────────────────────────────────────────┘

New memory for each read would cost half as much again as reading and writing: the system clears each page first.
"""

from __future__ import annotations

import collections

# The bytes that are received at a time at most.
BUFFER_BYTES = 1024 * 1024


class PartBuffers:
    """At most ``buffers_max`` buffers of BUFFER_BYTES each. One task receives; others may give buffers back."""

    def __init__(self, buffers_max: int) -> None:
        self._left = buffers_max  # that were not made yet
        self._free: collections.deque[bytearray] = collections.deque()  # the first one is the next one
        self._taken: dict[int, bytearray] = {}  # those in use, by their identity

    def next(self) -> memoryview | None:
        """Returns the buffer that comes next, without taking it; None if all are in use."""
        if not self._free:
            if not self._left:
                return None
            self._left -= 1
            self._free.append(bytearray(BUFFER_BYTES))
        return memoryview(self._free[0])

    def take(self) -> None:
        """Takes the buffer that ``next`` has returned: bytes have been received into it."""
        buffer = self._free.popleft()
        self._taken[id(buffer)] = buffer

    def give_back(self, piece: memoryview) -> None:
        """Lets the buffer of ``piece`` be used again. Does nothing if ``piece`` is of other bytes. Any thread."""
        # Bytes that were decrypted are in a bytearray, too, of which other pieces are still in use.
        buffer = self._taken.pop(id(piece.obj), None)
        if buffer is not None:
            self._free.append(buffer)
