"""A connection to another node of the cluster, for requests whose answers come in their order.

It tries nothing again. After an error its answers are out of step, so the caller makes another connection.
"""

from __future__ import annotations

import collections

import trio

from tailrace.errors import ProtocolError, Unreachable
from tailrace.link.rules import SILENT_INTERVALS_MAX
from tailrace.trio.transport import Transport
from tailrace.wire.frames import Frame, FrameDecoder, encode_frame
from tailrace.wire.messages import Hello, HelloOk, decode_error
from tailrace.wire.opcodes import Opcode


class PeerConnection:
    """Sends requests on ``transport``, and takes the answers one by one. One task uses it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._decoder = FrameDecoder()
        self._frames: collections.deque[Frame] = collections.deque()
        self._interval_s = 3.0  # until the node has told its interval
        self._id = 0

    async def greet(self, hello: Hello) -> HelloOk:
        """Greets the node, and returns its answer."""
        self._transport.send(hello.encode())
        frame = await self._next()
        if frame.opcode is not Opcode.HELLO_OK:
            raise ProtocolError(f"the answer to HELLO is {frame.opcode.name}")
        peer = HelloOk.decode(frame.body)
        self._interval_s = peer.noop_interval_s
        return peer

    async def _next(self) -> Frame:
        """Returns the next frame. Raises an ERROR as the error that it has."""
        silent = 0
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.opcode is Opcode.ERROR:
                    raise decode_error(frame.body)
                if frame.opcode is not Opcode.NOOP:
                    return frame
            data = None
            with trio.move_on_after(self._interval_s / 2):
                data = await self._transport.receive()
            if data is None:
                silent += 1
                if silent > 2 * SILENT_INTERVALS_MAX:
                    raise Unreachable(f"{self._transport.peer} is silent")
                self._transport.send(encode_frame(Opcode.NOOP))
                continue
            if not data:
                raise Unreachable(f"{self._transport.peer} has closed the connection")
            silent = 0
            self._frames.extend(self._decoder.receive_data(data))
