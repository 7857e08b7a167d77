"""A look at another node of a set while a connection serves: is there a later leader? Pure; see `finder`."""

from __future__ import annotations

from tailrace.errors import Unreachable
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import HelloOk, decode_error
from tailrace.wire.opcodes import Opcode


class Greeting:
    """Reads the answer to a HELLO from the bytes of a connection."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()

    def receive_data(self, data: bytes | memoryview) -> HelloOk | None:
        """Returns the node's answer once all of it has arrived; ``b""`` is the end of the connection.

        Raises the error that the node answers with, Unreachable at the end, or ProtocolError.
        """
        if not data:
            raise Unreachable("the node has closed the connection")
        for frame in self._decoder.receive_data(data):
            if frame.opcode is Opcode.ERROR:
                raise decode_error(frame.body)
            if frame.opcode is Opcode.HELLO_OK:
                peer = HelloOk.decode(frame.body)
                peer.check_version()
                return peer
        return None
