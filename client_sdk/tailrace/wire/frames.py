"""Frames: a 16-byte header and a body. Pure: bytes in, frames out. Layout: docs/formats/frame.md."""

from __future__ import annotations

import struct
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


# The beginning of a frame that is held keeps what it was read with alive, unless it is that small.
_COPIED_BYTES_MAX = 64 * 1024


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    ``body_bytes_max`` bounds what a peer can make this side hold; it may be raised once the peer is known.
    """

    def __init__(self, body_bytes_max: int = FRAME_BODY_BYTES_MAX) -> None:
        self.body_bytes_max = body_bytes_max
        self._chunks: list[bytes | memoryview] = []
        self._held_bytes = 0
        self._needed_bytes = FRAME_HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that has begun and is not complete."""
        return self._held_bytes

    def receive_data(self, data: bytes) -> list[Frame]:
        """The frames that are complete with ``data``, in order.

        Raises ProtocolError (bad check, unknown opcode, reserved bits) or TooLarge; the connection is then of no use.
        """
        frames: list[Frame] = []
        offset = 0
        while self._chunks:
            # Of a frame that has begun no more is joined than it needs: most bytes of a large one are copied once, and
            # those of the frames behind it not at all.
            part = memoryview(data)[offset : offset + self._needed_bytes - self._held_bytes]
            offset += len(part)
            self._chunks.append(part)
            self._held_bytes += len(part)
            if self._held_bytes < self._needed_bytes:
                return frames
            whole = b"".join(self._chunks)
            used = self._cut(whole, 0, frames)
            # Where nothing was cut it was a header, and it is known now how much more is needed.
            self._hold([] if used else [whole])
        used = self._cut(data, offset, frames)
        rest = memoryview(data)[used:]
        if rest:
            self._hold([rest if len(rest) > _COPIED_BYTES_MAX else bytes(rest)])
        return frames

    def _hold(self, chunks: list[bytes | memoryview]) -> None:
        """Keeps the beginning of a frame."""
        self._chunks = chunks
        self._held_bytes = sum(map(len, chunks))

    def _cut(self, data: bytes, offset: int, frames: list[Frame]) -> int:
        """Adds the whole frames from ``offset`` on to ``frames``; where the rest begins."""
        view = memoryview(data)
        size = len(data)
        self._needed_bytes = FRAME_HEADER_BYTES
        while size - offset >= FRAME_HEADER_BYTES:
            body_bytes, code, flags, reserved, id, check = _HEADER.unpack_from(data, offset)
            if _xxh3(view[offset : offset + 12]) & 0xFFFFFFFF != check:
                raise ProtocolError("a frame's header does not match its check: this is no frame, or it was damaged")
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise ProtocolError(f"unknown opcode 0x{code:02x}")
            if reserved:
                raise ProtocolError(f"{opcode.name}: reserved bits of the frame's header are set")
            if body_bytes > self.body_bytes_max:
                raise TooLarge(f"{opcode.name} of {body_bytes} bytes; at most {self.body_bytes_max} are accepted")
            end = offset + FRAME_HEADER_BYTES + body_bytes
            if end > size:
                self._needed_bytes = end - offset
                break
            # NamedTuple's own constructor takes twice as long.
            frames.append(tuple.__new__(Frame, (opcode, flags, id, view[offset + FRAME_HEADER_BYTES : end])))
            offset = end
        return offset
