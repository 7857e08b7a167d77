"""Cuts frames from a stream of bytes, and has large ones received to where they stay. Pure.

    a header has come ──> next_place: the rest of the frame, in a buffer ──> receive_data ──> the frame, a view of it
                                                 ^
                                                 └── a buffer that no view of an earlier frame keeps any more

So most bytes are written to memory once, by the system, and to memory that is in use already.
"""

from __future__ import annotations

import collections

from tailrace.wire.frames import FRAME_HEADER_BYTES, Frame, FrameDecoder, whole_frame

# Fewer missing bytes of a frame are received with those behind them: a system call is worth more than their copy.
PLACED_BYTES_MIN = 16 * 1024
# A larger frame is joined of pieces as they come: its header alone should not make this side allocate so much.
PLACED_BYTES_MAX = 4 * 1024 * 1024
# The bytes of buffers that are kept for later frames, if more than two are.
KEPT_BYTES_MAX = 8 * 1024 * 1024
# Sizes of buffers are multiples of this. So a buffer fits blocks that differ a little.
_STEP_BYTES = 64 * 1024
# The buffers that are looked at before a new one is made.
LOOKED_AT_MAX = 3
# So many small reads are tried behind a large frame: the next one may come.
SMALL_READS_MAX = 4
# After so many small reads, one after the other, the buffers are given back.
IDLE_READS = 8


class FrameBuffers:
    """Buffers for frames. One is used again when no view of its bytes is left, however long a program keeps them."""

    def __init__(self) -> None:
        self._kept: collections.deque[bytearray] = collections.deque()  # mostly that of the oldest frame first
        self._kept_bytes = 0  # Invariant: the sum of their lengths

    @property
    def kept_bytes(self) -> int:
        """The bytes of all buffers that are kept for later frames."""
        return self._kept_bytes

    def take(self, nbytes: int) -> bytearray:
        """Returns a buffer of ``nbytes`` bytes at least, of which there is no view."""
        for _ in range(min(LOOKED_AT_MAX, len(self._kept))):
            if not _is_free(self._kept[0]):
                self._kept.rotate(-1)
                continue
            if len(self._kept) > 2 and _is_free(self._kept[1]):  # the program kept more of them before
                self._kept_bytes -= len(self._kept.popleft())
            buffer = self._kept.popleft()
            if len(buffer) >= nbytes:
                self._kept.append(buffer)
                return buffer
            self._kept_bytes -= len(buffer)  # frames have become larger
            break
        buffer = bytearray(-(-nbytes // _STEP_BYTES) * _STEP_BYTES)
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 2:
            self._kept_bytes -= len(self._kept.popleft())
        return buffer

    def forget(self) -> None:
        """Keeps no buffer any more. Those with views stay as long as these."""
        self._kept.clear()
        self._kept_bytes = 0


def _is_free(buffer: bytearray) -> bool:
    """Tells whether there is no view of ``buffer``: only then Python lets its length change."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


class PlacingDecoder(FrameDecoder):
    """A decoder that has the rest of a large frame received into a buffer.

    A frame of up to PLACED_BYTES_MAX bytes gets its buffer when its header has come. The bodies of frames cannot be
    written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers = FrameBuffers()
        self._placed: bytearray | None = None  # the buffer of the frame that has begun
        self._placed_bytes = 0  # of it that have come
        self._frame_bytes = 0  # its length
        self._small: bytearray | None = None  # the buffer between two large frames
        self._small_reads = 0  # since the last placed frame

    @property
    def held_bytes(self) -> int:
        """The number of received bytes that are not cut."""
        return super().held_bytes + (0 if self._placed is None else self._placed_bytes)

    @property
    def is_between_frames(self) -> bool:
        """Whether all received bytes are cut, so that the next ones begin a frame."""
        return self._placed is None and super().is_between_frames

    def receive_data(self, data: bytes | memoryview) -> list[Frame]:
        """Returns all frames that are complete with ``data``, in order. Raises as `FrameDecoder.receive_data`.

        ``data`` may be the first bytes of ``next_place``: they are where they belong already.
        """
        placed = self._placed
        if placed is None:
            missing_bytes = FRAME_HEADER_BYTES - self._begun.nbytes
            if 0 < missing_bytes < min(FRAME_HEADER_BYTES, len(data)):  # a header was cut: what comes behind it?
                header = b"".join((self._begun.join(), data[:missing_bytes]))
                self._begun.clear()
                return super().receive_data(header) + self.receive_data(memoryview(data)[missing_bytes:])
            self._small_reads += 1
            if self._small_reads == IDLE_READS:
                self._buffers.forget()
            if isinstance(data, memoryview) and data.obj is self._small:
                data = bytes(data)  # the next bytes are received over them
            return super().receive_data(data)
        begin = self._placed_bytes
        count = min(self._frame_bytes - begin, len(data))
        if not (isinstance(data, memoryview) and data.obj is placed):
            placed[begin : begin + count] = data[:count]
        self._placed_bytes += count
        if self._placed_bytes < self._frame_bytes:
            return []
        self._placed = None
        frames = [whole_frame(memoryview(placed).toreadonly()[: self._frame_bytes])]
        return frames if count == len(data) else frames + self.receive_data(memoryview(data)[count:])

    def next_place(self) -> memoryview | None:
        """Returns where to receive the next bytes: the rest of a large frame that has begun.

        Behind such a frame, it is a buffer for the beginning of the next one. None if no large frames come.
        """
        if self._placed is not None:
            return memoryview(self._placed)[self._placed_bytes : self._frame_bytes]
        if self._small_reads >= SMALL_READS_MAX or self._small is None:
            return None
        return memoryview(self._small)

    def anew(self) -> PlacingDecoder:
        """Returns the decoder of a new connection, with the same buffers."""
        decoder = PlacingDecoder()
        decoder._buffers = self._buffers
        return decoder

    def _keep(self, data: bytes | memoryview, offset: int) -> None:
        needed_bytes, count = self._needed_bytes, len(data) - offset
        if count < FRAME_HEADER_BYTES or not PLACED_BYTES_MIN + count <= needed_bytes <= PLACED_BYTES_MAX:
            super()._keep(data, offset)
            return
        self._small_reads = 0
        if self._small is None:
            self._small = bytearray(PLACED_BYTES_MIN)
        self._placed, self._placed_bytes, self._frame_bytes = self._buffers.take(needed_bytes), count, needed_bytes
        self._placed[:count] = memoryview(data)[offset:]
