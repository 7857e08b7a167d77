"""Cuts frames from a stream of bytes, and has those of large frames received to their last place. Pure.

    a large frame begins ──> next_place: the free end of a buffer ──> receive_data ──> the frames, views of it
                                             ^                             │
                                             └── the bytes of a frame that has no room move to another buffer,
                                                 of which no view is left

So most bytes are written to memory once, by the system, and to memory that is in use already.
"""

from __future__ import annotations

import collections
import sys

from tailrace.wire.frames import FRAME_HEADER_BYTES, Frame, FrameDecoder

# Frames are received to buffers when one begins of which so many bytes are missing.
PLACED_BYTES_MIN = 16 * 1024
# A larger frame is joined of pieces as they come: its header alone should not make this side allocate so much.
PLACED_BYTES_MAX = 4 * 1024 * 1024
# The least size of a buffer, at first and while reads come back full. A frame that is larger gets one of its size.
READ_BYTES_MIN = 64 * 1024
READ_BYTES_MAX = 1024 * 1024
# A buffer with less room behind its last frame is given up for another one: a read should bring more.
ROOM_BYTES_MIN = 16 * 1024
# Sizes of buffers are multiples of this. So a buffer fits blocks that differ a little.
STEP_BYTES = 64 * 1024
# The bytes of buffers that are kept for later frames, if more than two are.
KEPT_BYTES_MAX = 8 * 1024 * 1024
# The buffers that are looked at before a new one is made.
LOOKED_AT_MAX = 3
# After this many small reads, one after the other, bytes are not received to a buffer any more.
SMALL_READS_MAX = 4
# After this many, the buffers are given back.
IDLE_READS = 8


class FrameBuffers:
    """Buffers for frames. One is used again when no view of its bytes is left, however long a program keeps them."""

    def __init__(self) -> None:
        self._kept: collections.deque[bytearray] = collections.deque()  # mostly that of the oldest frame first

    @property
    def kept_bytes(self) -> int:
        """The bytes of all buffers that are kept for later frames."""
        return sum(map(len, self._kept))

    def take(self, nbytes: int) -> bytearray:
        """Returns a buffer of ``nbytes`` bytes at least, of which there is no view."""
        for _ in range(min(LOOKED_AT_MAX, len(self._kept))):
            if not _is_free(self._kept[0]):
                self._kept.rotate(-1)
                continue
            if len(self._kept) > 2 and _is_free(self._kept[1]):  # the program kept more of them before
                self._kept.popleft()
            buffer = self._kept.popleft()
            if len(buffer) >= nbytes:
                self._kept.append(buffer)
                return buffer
            break  # frames have become larger
        buffer = bytearray(-(-nbytes // STEP_BYTES) * STEP_BYTES)
        self._kept.append(buffer)
        while self.kept_bytes > KEPT_BYTES_MAX and len(self._kept) > 2:
            self._kept.popleft()
        return buffer

    def forget(self) -> None:
        """Keeps no buffer any more. Those with views stay as long as these."""
        self._kept.clear()


def _is_free(buffer: bytearray) -> bool:
    """Tells whether there is no view of ``buffer``: only then Python lets its length change."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True


class PlacingDecoder(FrameDecoder):
    """A decoder that has bytes received to buffers while large frames come.

    A frame of up to PLACED_BYTES_MAX bytes gets its buffer when its header has come. The bodies of frames cannot be
    written to.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buffers = FrameBuffers()
        self._buffer: bytearray | None = None  # that is received to
        self._begin = self._end = 0  # of its bytes that are not cut yet
        self._read_bytes = READ_BYTES_MIN
        self._small_reads = 0  # since the last large one

    @property
    def held_bytes(self) -> int:
        """The number of received bytes that are not cut."""
        return super().held_bytes + self._end - self._begin

    @property
    def is_between_frames(self) -> bool:
        """Whether all received bytes are cut, so that the next ones begin a frame."""
        return self._begin == self._end and super().is_between_frames

    def receive_data(self, data: bytes | memoryview) -> list[Frame]:
        """Returns all frames that are complete with ``data``, in order. Raises as `FrameDecoder.receive_data`.

        ``data`` may be the first bytes of ``next_place``: they are in their place already.
        """
        buffer = self._buffer
        if buffer is None:
            return self._receive_elsewhere(data)
        if isinstance(data, memoryview) and data.obj is buffer:
            return self._received(buffer, len(data))
        begun_bytes, count = self._end - self._begin, len(data)
        if begun_bytes:
            count = min(self._needed_bytes - begun_bytes, count)
        elif count >= PLACED_BYTES_MIN:  # a shell that has no use for places: whole frames stay in its bytes
            self._leave()
            return self._receive_elsewhere(data)
        count = min(len(buffer) - self._end, count)
        buffer[self._end : self._end + count] = data[:count]
        frames = self._received(buffer, count)
        return frames if count == len(data) else frames + self.receive_data(memoryview(data)[count:])

    def next_place(self) -> memoryview | None:
        """Returns where to receive the next bytes; None if no large frames come."""
        return None if self._buffer is None else memoryview(self._buffer)[self._end :]

    def anew(self) -> PlacingDecoder:
        """Returns the decoder of a new connection, with the same buffers."""
        decoder = PlacingDecoder()
        decoder._buffers = self._buffers
        return decoder

    def _receive_elsewhere(self, data: bytes | memoryview) -> list[Frame]:
        missing_bytes = FRAME_HEADER_BYTES - self._begun.nbytes
        if 0 < missing_bytes < min(FRAME_HEADER_BYTES, len(data)):  # a header was cut: what comes behind it?
            header = b"".join((self._begun.join(), data[:missing_bytes]))
            self._begun.clear()
            return super().receive_data(header) + self.receive_data(memoryview(data)[missing_bytes:])
        self._small_reads += 1
        if self._small_reads == IDLE_READS:
            self._buffers.forget()
        return super().receive_data(data)

    def _keep(self, data: bytes | memoryview, offset: int) -> None:
        count = len(data) - offset
        if count < FRAME_HEADER_BYTES or not PLACED_BYTES_MIN + count <= self._needed_bytes <= PLACED_BYTES_MAX:
            super()._keep(data, offset)
            return
        self._small_reads = 0
        self._move(memoryview(data)[offset:])

    def _move(self, begun: memoryview) -> None:
        """Goes on in another buffer, with the bytes of a frame that has begun."""
        # The view keeps its own buffer from being taken.
        buffer = self._buffer = self._buffers.take(max(self._needed_bytes, self._read_bytes))
        self._begin, self._end = 0, len(begun)
        buffer[: self._end] = begun

    def _received(self, buffer: bytearray, count: int) -> list[Frame]:
        """Cuts the frames that are complete with ``count`` more bytes of the buffer."""
        self._end += count
        self._small_reads = 0 if count >= PLACED_BYTES_MIN else self._small_reads + 1
        if self._end == len(buffer):
            self._read_bytes = min(2 * self._read_bytes, READ_BYTES_MAX)
        frames: list[Frame] = []
        view = memoryview(buffer).toreadonly()
        begin = self._begin = self._cut(view[: self._end], self._begin, frames, sys.maxsize)
        if begin == self._end and self._small_reads >= SMALL_READS_MAX:
            self._leave()
        elif self._needed_bytes > PLACED_BYTES_MAX:
            begun = view[begin : self._end]
            self._leave()
            self._begun.add(begun, 0, len(begun))
        elif len(buffer) - begin < max(self._needed_bytes, 0 if begin < self._end else ROOM_BYTES_MIN):
            self._move(view[begin : self._end])
        return frames

    def _leave(self) -> None:
        """Receives to no buffer any more."""
        self._buffer, self._begin, self._end, self._read_bytes = None, 0, 0, READ_BYTES_MIN
