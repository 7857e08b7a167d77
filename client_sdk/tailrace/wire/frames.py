"""Frames: a 16-byte header and a body. Pure: bytes in, frames out. Layout: docs/formats/frame.md."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import NamedTuple

import xxhash

from tailrace.errors import ProtocolError, TooLarge
from tailrace.wire.opcodes import Opcode

# body bytes u32, opcode u8, flags u8, reserved u16, request or stream id u32, check u32
_HEADER = struct.Struct("<IBBHII")
_CHECKED = struct.Struct("<IBBHI")
FRAME_HEADER_BYTES = _HEADER.size

# A whole block of the largest size (32 MiB raw, stored as it is) with the fixed part of a WRITE around it.
FRAME_BODY_BYTES_MAX = 33 * 1024 * 1024
# What a peer may send before it has said HELLO: enough for a token and a name, too little to hurt.
HELLO_BODY_BYTES_MAX = 64 * 1024

# Every opcode has room for this much: packed integers, a name, an address, a few settings.
SMALL_BODY_BYTES = 4 * 1024

_OPCODES = {int(opcode): opcode for opcode in Opcode}
_xxh3 = xxhash.xxh3_64_intdigest
_digest = xxhash.xxh3_64_digest  # the same as 8 bytes, the highest first


class Frame(NamedTuple):
    """One frame; ``body`` is a view of what was received and keeps that alive."""

    opcode: Opcode
    flags: int
    id: int
    body: memoryview


def frame_header(opcode: int, body_bytes: int, id: int = 0, flags: int = 0) -> bytes:
    """The 16 bytes that go before a body of ``body_bytes`` bytes."""
    start = _CHECKED.pack(body_bytes, opcode, flags, 0, id)
    return start + _digest(start)[:3:-1]


def encode_frame(opcode: int, body: bytes = b"", id: int = 0, flags: int = 0) -> bytes:
    """A whole frame as bytes; for bodies that are large already, send ``frame_header`` and the body instead."""
    return frame_header(opcode, len(body), id, flags) + body


# Pieces of a frame that are smaller are joined as they come: each would cost up to 250 bytes besides.
_JOINED_BYTES_MAX = 4 * 1024


class _Begun:
    """The beginning of a frame, in pieces: it costs at most twice its length in memory."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._pieces: list[bytes | bytearray | memoryview] = []

    def add(self, data: bytes, start: int, end: int) -> None:
        """Adds bytes ``start`` to ``end`` of ``data``."""
        piece = memoryview(data)[start:end]
        nbytes = end - start
        self.nbytes += nbytes
        if nbytes > _JOINED_BYTES_MAX:
            # A piece keeps all that it was received with alive.
            self._pieces.append(piece if 2 * nbytes > len(data) else bytes(piece))
            return
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, bytearray) and len(last) < _JOINED_BYTES_MAX:
            last += piece
        else:
            self._pieces.append(bytearray(piece))

    def join(self) -> bytes:
        """Returns all of it, and keeps it as one piece."""
        whole = b"".join(self._pieces)
        self._pieces = [whole]
        return whole

    def clear(self) -> None:
        """Forgets it."""
        self.nbytes = 0
        self._pieces = []


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    ``body_bytes_max`` bounds the body of every frame; it may be raised once the peer is known. ``bound_of`` bounds a
    body by its opcode besides; it is asked about bodies above SMALL_BODY_BYTES only.

    What it holds costs at most twice what was received and has not been cut.
    """

    def __init__(
        self, body_bytes_max: int = FRAME_BODY_BYTES_MAX, bound_of: Callable[[Opcode], int] | None = None
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self._bound_of = bound_of
        self._begun = _Begun()
        self._needed_bytes = FRAME_HEADER_BYTES  # of that frame, as far as it is known
        self._data = b""  # what was fed last, of which everything from ``_offset`` on is still to be cut
        self._offset = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that were received and not cut: of a frame that is not complete, and of those that nobody took yet."""
        return self._begun.nbytes + len(self._data) - self._offset

    def receive_data(self, data: bytes) -> list[Frame]:
        """Returns all frames that are complete with ``data``, in order.

        Raises ProtocolError (bad check, unknown opcode, reserved bits) or TooLarge; the connection is then of no use.
        """
        self.feed(data)
        return self.next_frames()

    def feed(self, data: bytes) -> None:
        """Adds what was received. All frames of what was fed before have to be taken by then."""
        assert self._offset == len(self._data), "frames of what was fed before are left"
        self._data, self._offset = data, 0

    def next_frames(self, frames_max: int = sys.maxsize) -> list[Frame]:
        """Returns the next frames that are complete, in order, ``frames_max`` at most; none: more has to be fed.

        Raises as ``receive_data``.
        """
        frames: list[Frame] = []
        if self._begun.nbytes:
            self._complete_begun(frames, frames_max)
        data = self._data
        if self._offset < len(data):
            self._offset = self._cut(data, self._offset, frames, frames_max)
            if len(frames) < frames_max and self._offset < len(data):
                self._begun.add(data, self._offset, len(data))
                self._offset = len(data)
        if self._offset == len(data):
            self._data, self._offset = b"", 0
        return frames

    def _complete_begun(self, frames: list[Frame], frames_max: int) -> None:
        """Adds to the frame that has begun, and cuts it once it is whole.

        It takes no more than that frame needs: most bytes of a large frame are copied once, and those of the frames
        behind it not at all.
        """
        begun, data = self._begun, self._data
        while begun.nbytes and self._offset < len(data):
            end = min(self._offset + max(self._needed_bytes - begun.nbytes, 0), len(data))
            begun.add(data, self._offset, end)
            self._offset = end
            if begun.nbytes < self._needed_bytes:
                return
            # If nothing is cut, it was a header; how much more is needed is known now.
            if self._cut(begun.join(), 0, frames, frames_max):
                begun.clear()

    def _cut(self, data: bytes, offset: int, frames: list[Frame], frames_max: int) -> int:
        """Adds the whole frames from ``offset`` on to ``frames``; returns where the rest begins."""
        view = memoryview(data)
        size = len(data)
        self._needed_bytes = FRAME_HEADER_BYTES
        while size - offset >= FRAME_HEADER_BYTES and len(frames) < frames_max:
            body_bytes, code, flags, reserved, id, check = _HEADER.unpack_from(data, offset)
            if _xxh3(view[offset : offset + 12]) & 0xFFFFFFFF != check:
                raise ProtocolError("a frame's header does not match its check: this is no frame, or it was damaged")
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise ProtocolError(f"unknown opcode 0x{code:02x}")
            if reserved:
                raise ProtocolError(f"{opcode.name}: reserved bits of the frame's header are set")
            if body_bytes > SMALL_BODY_BYTES or body_bytes > self.body_bytes_max:
                self._check_length(opcode, body_bytes)
            end = offset + FRAME_HEADER_BYTES + body_bytes
            if end > size:
                self._needed_bytes = end - offset
                break
            # NamedTuple's own constructor takes twice as long.
            frames.append(tuple.__new__(Frame, (opcode, flags, id, view[offset + FRAME_HEADER_BYTES : end])))
            offset = end
        return offset

    def _check_length(self, opcode: Opcode, body_bytes: int) -> None:
        bound = self.body_bytes_max if self._bound_of is None else min(self.body_bytes_max, self._bound_of(opcode))
        if body_bytes > bound:
            raise TooLarge(f"{opcode.name} of {body_bytes} bytes; at most {bound} are accepted")
