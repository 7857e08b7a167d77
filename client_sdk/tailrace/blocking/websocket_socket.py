"""A WebSocket that carries frames, with the methods of a socket that a link uses. It never blocks."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence

from tailrace.blocking.guard import raise_foreign
from tailrace.blocking.tls_socket import TlsSocket
from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace.link.slices import first_slice
from tailrace.websocket.engine import WebSocketEngine

_RECEIVE_BYTES = 256 * 1024


class WebSocketSocket:
    """A WebSocket over ``sock``, which is connected, does not block, and is owned by this object."""

    def __init__(self, sock: socket.socket | TlsSocket, address: Address, tunnel: str) -> None:
        """Begins with `shake`."""
        self._sock = sock
        self._engine = WebSocketEngine(address, tunnel)
        self._unsent = memoryview(b"")
        self._found = memoryview(b"")  # received, and not handed over yet

    def fileno(self) -> int:
        """Returns the descriptor, for ``select.poll``."""
        return self._sock.fileno()

    @property
    def has_unsent(self) -> bool:
        """Bytes wait until the system takes more."""
        return bool(self._unsent) or (isinstance(self._sock, TlsSocket) and self._sock.has_unsent)

    @property
    def has_unread(self) -> bool:
        """Bytes may be left that the poll object does not see."""
        return bool(self._found) or (isinstance(self._sock, TlsSocket) and self._sock.has_unread)

    def close(self) -> None:
        """Ends the connection at once."""
        self._sock.close()

    def shake(self) -> bool:
        """Goes on with opening the WebSocket. Returns whether it is open; if not, call it again once it is ready.

        Raises TailraceError, OSError.
        """
        self.flush()
        self._send_taken()
        while not self._engine.is_open:
            try:
                self._feed()
            except BlockingIOError as error:
                raise_foreign(error)
                return False
            self._send_taken()
        return True

    # Reading

    def recv(self, nbytes: int) -> bytes:
        """Returns some bytes, perhaps more than ``nbytes``. Raises BlockingIOError without any, or as `shake`."""
        self._fill()
        found, self._found = self._found, memoryview(b"")
        return bytes(found)

    def recvmsg_into(self, buffers: Sequence[memoryview | bytearray]) -> tuple[int]:
        """Receives into ``buffers``, one after the other. Returns the count of bytes. Raises as ``recv``."""
        self._fill()
        total = 0
        for buffer in buffers:
            count = min(len(buffer), len(self._found))
            buffer[:count] = self._found[:count]
            self._found = self._found[count:]
            total += count
        return (total,)

    def _fill(self) -> None:
        """Waits for nothing: raises BlockingIOError if no bytes have arrived; leaves none at the end."""
        engine = self._engine
        while not self._found:
            self._found = memoryview(engine.received())
            if self._found:
                return
            if engine.is_ended:
                if engine.reason:
                    raise Unreachable(f"the WebSocket was closed: {engine.reason}")
                return
            try:
                self._feed()
            finally:
                if not self._unsent:
                    self._send_taken()

    def _feed(self) -> None:
        data = self._sock.recv(_RECEIVE_BYTES)
        if data:
            self._engine.feed(data)
        else:
            self._engine.fed_end()

    # Writing

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Sends some of the bytes of ``buffers``, and returns how many. Raises BlockingIOError, OSError."""
        self.flush()
        if self._unsent:
            raise BlockingIOError
        pieces, nbytes = first_slice(buffers)
        self._engine.send(pieces)
        self._send_taken()
        return nbytes

    def flush(self) -> None:
        """Sends the bytes that wait, as far as the system takes them. Raises OSError."""
        if isinstance(self._sock, TlsSocket):
            self._sock.flush()
        if self._unsent:
            self._send(self._unsent)

    def _send_taken(self) -> None:
        out = self._engine.take()
        if out:
            self._send(memoryview(b"".join([self._unsent, *out])))

    def _send(self, data: memoryview) -> None:
        self._unsent = data
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self._sock.sendmsg([self._unsent]) :]
