"""Frames: a 16-byte header and a body. Pure: bytes in, frames out. Layout: docs/formats/frame.md."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection
from typing import NamedTuple

import xxhash

from tailrace.errors import ProtocolError, TooLarge
from tailrace.wire.opcodes import Opcode

# body bytes u32, opcode u8, flags u8, reserved u16, request or stream id u32, check u32
FRAME_HEADER_FORMAT = "<IBBHII"
_CHECKED = struct.Struct(FRAME_HEADER_FORMAT[:-1])  # what the check is of
_HEADER = struct.Struct(FRAME_HEADER_FORMAT)
FRAME_HEADER_BYTES = _HEADER.size

# A whole block of the largest size (32 MiB raw, stored as it is) with the fixed part of a WRITE around it.
FRAME_BODY_BYTES_MAX = 33 * 1024 * 1024
# The longest body before HELLO: room for a token and a name, and harmless from an unknown peer.
HELLO_BODY_BYTES_MAX = 64 * 1024

# The greatest id of a request.
ID_MAX = 0xFFFFFFFF

# Each opcode may have a body of this length: packed integers, a name, an address, a few settings.
SMALL_BODY_BYTES = 4 * 1024

# In the flags of a Frame, above those of the wire: the body goes on in a later Frame of the same id.
FRAME_GOES_ON = 0x100

_OPCODES = {int(opcode): opcode for opcode in Opcode}
_xxh3 = xxhash.xxh3_64_intdigest
_digest = xxhash.xxh3_64_digest  # the same as 8 bytes, the highest first


class Frame(NamedTuple):
    """One frame. ``body`` is a view of the received bytes, and keeps all of them in memory.

    With FRAME_GOES_ON in ``flags`` it is a piece of a frame: the rest of the body has not arrived yet.
    """

    opcode: Opcode
    flags: int
    id: int
    body: memoryview


def frame_header(opcode: int, body_bytes: int, id: int = 0, flags: int = 0) -> bytes:
    """Returns the 16 bytes before a body of ``body_bytes`` bytes."""
    start = _CHECKED.pack(body_bytes, opcode, flags, 0, id)
    return start + _digest(start)[:3:-1]


def header_check(data: bytes | memoryview) -> int:
    """Returns the check that the header at the beginning of ``data`` has to have."""
    return _xxh3(data[:12]) & 0xFFFFFFFF


def frame_id(data: bytes) -> int:
    """Returns the id of a whole frame."""
    found: int = _HEADER.unpack_from(data)[4]
    return found


def encode_frame(opcode: int, body: bytes = b"", id: int = 0, flags: int = 0) -> bytes:
    """Returns a whole frame. For a large body, send ``frame_header`` and the body instead, without a copy."""
    return frame_header(opcode, len(body), id, flags) + body


# Smaller pieces of a frame are joined as they come, because each object would take up to 250 bytes more.
_JOINED_BYTES_MAX = 4 * 1024


class _Begun:
    """The beginning of a frame, in pieces: it costs at most twice its length in memory."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._pieces: list[bytes | bytearray | memoryview] = []

    def add(self, data: bytes | memoryview, start: int, end: int) -> None:
        """Adds bytes ``start`` to ``end`` of ``data``."""
        piece = memoryview(data)[start:end]
        nbytes = end - start
        self.nbytes += nbytes
        if nbytes > _JOINED_BYTES_MAX:
            # A view keeps all bytes of ``data`` in memory.
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
        """Drops all pieces."""
        self.nbytes = 0
        self._pieces = []


class FrameDecoder:
    """Cuts a stream of bytes into frames.

    ``body_bytes_max`` bounds all bodies; it may be raised once the peer is known. ``bound_of`` also bounds a body by
    its opcode; it is called for bodies above SMALL_BODY_BYTES only. Frames of the opcodes ``in_pieces`` are handed over
    in pieces, as their bytes arrive; these may become others between two frames. A caller may receive the rest of such
    a body into a buffer of its own (``receive_piece``).

    The decoder takes at most twice the memory of the bytes that it has received and not cut.
    """

    def __init__(
        self,
        body_bytes_max: int = FRAME_BODY_BYTES_MAX,
        bound_of: Callable[[Opcode], int] | None = None,
        in_pieces: Collection[Opcode] = (),
    ) -> None:
        self.body_bytes_max = body_bytes_max
        self._bound_of = bound_of
        self.in_pieces = in_pieces
        self._piece = (Opcode.NOOP, 0, 0)  # opcode, flags and id of the frame that comes in pieces
        self.left_bytes = 0  # of its body that have not arrived
        self._begun = _Begun()
        self._needed_bytes = FRAME_HEADER_BYTES  # of the frame in ``_begun``, as far as they are known
        self._data: bytes | memoryview = b""  # the last bytes; those from ``_offset`` on are not cut yet
        self._offset = 0

    @property
    def held_bytes(self) -> int:
        """The number of received bytes that are not cut: of an incomplete frame, and of frames not taken yet."""
        return self._begun.nbytes + len(self._data) - self._offset

    @property
    def is_between_frames(self) -> bool:
        """Whether all received bytes are cut, so that the next ones begin a frame."""
        return self._offset == len(self._data) and not (self._begun.nbytes or self.left_bytes)

    def receive_data(self, data: bytes | memoryview) -> list[Frame]:
        """Returns all frames that are complete with ``data``, in order.

        Raises ProtocolError (bad check, unknown opcode, reserved bits) or TooLarge; the connection is then of no use.
        """
        assert self._offset == len(self._data), "frames of earlier bytes are left"
        self._data, self._offset = data, 0
        return self.next_frames()

    @property
    def begun_piece(self) -> tuple[int, int]:
        """The id of the frame that comes in pieces, and the bytes of its body that have not arrived; 0 if none has."""
        return self._piece[2], self.left_bytes

    def receive_piece(self, piece: memoryview) -> Frame:
        """Returns the frame of the next bytes of the body in ``begun_piece``: ``piece`` has them, and no others.

        All frames of the bytes before have to be taken already.
        """
        assert self._offset == len(self._data), "frames of earlier bytes are left"
        assert 0 < len(piece) <= self.left_bytes, "these bytes are of the body"
        return self._next_piece(piece)

    def feed(self, data: bytes | memoryview) -> None:
        """Adds received bytes. All frames of the bytes before have to be taken already."""
        assert self._offset == len(self._data), "frames of earlier bytes are left"
        self._data, self._offset = data, 0

    def next_frames(self, frames_max: int = sys.maxsize) -> list[Frame]:
        """Returns the next frames that are complete, in order, ``frames_max`` at most.

        Fewer than ``frames_max`` if more bytes are needed for the next one. Raises as ``receive_data``.
        """
        frames: list[Frame] = []
        if self._begun.nbytes:
            self._complete_begun(frames, frames_max)
        if self.left_bytes and len(frames) < frames_max:
            self._add_piece(frames)
        data, size = self._data, len(self._data)
        if self._offset < size:
            self._offset = self._cut(data, self._offset, frames, frames_max)
            if self._offset < size and len(frames) < frames_max:
                self._keep(data, self._offset)
                self._offset = size
        if self._offset == size:
            self._data, self._offset = b"", 0
        return frames

    def _keep(self, data: bytes | memoryview, offset: int) -> None:
        """Keeps the bytes of ``data`` from ``offset`` on: they begin a frame."""
        self._begun.add(data, offset, len(data))

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

    def _begin_pieces(self, first: Frame, left_bytes: int, frames: list[Frame]) -> None:
        """Adds the first piece of a frame that comes in pieces; ``left_bytes`` of its body have not arrived."""
        self._piece, self.left_bytes = first[:3], left_bytes
        if first.body:
            frames.append(first._replace(flags=first.flags | FRAME_GOES_ON))

    def _next_piece(self, body: memoryview) -> Frame:
        opcode, flags, id = self._piece
        self.left_bytes -= len(body)
        return Frame(opcode, flags | FRAME_GOES_ON if self.left_bytes else flags, id, body)

    def _add_piece(self, frames: list[Frame]) -> None:
        """Adds the next piece of the frame that comes in pieces, if bytes of it have arrived."""
        body = memoryview(self._data)[self._offset : self._offset + self.left_bytes]
        if body:
            self._offset += len(body)
            frames.append(self._next_piece(body))

    def _cut(self, data: bytes | memoryview, offset: int, frames: list[Frame], frames_max: int) -> int:
        """Appends the whole frames from ``offset`` on to ``frames``. Returns the offset of the rest."""
        view = memoryview(data)
        size = len(data)
        self._needed_bytes = FRAME_HEADER_BYTES
        while size - offset >= FRAME_HEADER_BYTES and len(frames) < frames_max:
            body_bytes, code, flags, reserved, id, check = _HEADER.unpack_from(data, offset)
            if _xxh3(view[offset : offset + 12]) & 0xFFFFFFFF != check:
                raise ProtocolError("a frame's header does not match its check: this is not a frame, or it was damaged")
            opcode = _OPCODES.get(code)
            if opcode is None:
                raise ProtocolError(f"unknown opcode 0x{code:02x}")
            if reserved:
                raise ProtocolError(f"{opcode.name}: reserved bits of the frame's header are set")
            if body_bytes > SMALL_BODY_BYTES or body_bytes > self.body_bytes_max:
                self._check_length(opcode, body_bytes)
            end = offset + FRAME_HEADER_BYTES + body_bytes
            if end > size:
                if opcode in self.in_pieces:
                    self._begin_pieces(
                        Frame(opcode, flags, id, view[offset + FRAME_HEADER_BYTES :]), end - size, frames
                    )
                    return size
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
