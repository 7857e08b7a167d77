"""TLS for the listeners of HTTP and WebSocket, whose libraries read and write a stream.

Their streams are trio's own: unlike frames, nothing is sent from callbacks there.
"""

from __future__ import annotations

import socket
import ssl

import trio

from tailrace.tls.engine import AROUND_RECORD_BYTES, CONTROL_BYTES_MAX, PeerIdentity, identity_of, looks_like_tls

# As for a request's head.
HANDSHAKE_SECONDS_MAX = 10.0
_SPEAKS_TLS = b"this port speaks TLS: use https:// or wss://\n"
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: "
    + str(len(_SPEAKS_TLS)).encode()
    + b"\r\n\r\n"
    + _SPEAKS_TLS
)


class Ciphertext(trio.abc.Stream):
    """The stream below TLS. It ends a connection on which too much comes without data: a flood of key updates.

    Invariant: since the handshake ``_control_bytes`` of ciphertext have come without data in them; never below 0.
    TLS asks for more only when it has decrypted all whole records, so at most a part of one may still become data.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self.socket = stream.socket
        self._is_shaken = False
        self._control_bytes = 0

    def shaken(self) -> None:
        """Counts from now on."""
        self._is_shaken = True

    def found(self, nbytes: int) -> None:
        """Notes that a record had ``nbytes`` of data, or a part of it had."""
        self._control_bytes = max(0, self._control_bytes - nbytes - AROUND_RECORD_BYTES)

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Returns some ciphertext. Raises trio.BrokenResourceError if too much came without data.

        Cancelling loses nothing.
        """
        if not self._is_shaken:
            return await self._stream.receive_some(max_bytes)
        # No more than the bound has room for: all of it may be key updates, which hold the loop while they are read.
        room = CONTROL_BYTES_MAX - self._control_bytes
        if room <= 0:
            raise trio.BrokenResourceError(f"{self._control_bytes} bytes without data, as of key updates")
        data = await self._stream.receive_some(room if max_bytes is None else min(room, max_bytes))
        self._control_bytes += len(data)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class SecureStream(trio.abc.HalfCloseableStream):
    """A stream over TLS with the members of a socket's stream that listeners use."""

    def __init__(self, stream: trio.SSLStream[Ciphertext]) -> None:
        self._stream = stream
        self._ciphertext = stream.transport_stream
        self._ciphertext.shaken()
        self.peer_identity = identity_of(stream._ssl_object)  # trio forwards less of it than is needed
        self.socket = self._ciphertext.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._stream.receive_some(max_bytes)
        self._ciphertext.found(len(data))
        return data

    async def send_eof(self) -> None:
        """Does nothing: a close_notify would end both directions for many clients, and the connection closes next."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def secured(stream: trio.SocketStream, context: ssl.SSLContext) -> SecureStream | None:
    """Shakes hands with a client. Returns None if it did not in time, or speaks no TLS, which it is told.

    The stream stays the caller's then. Raises trio.BrokenResourceError if the handshake fails.
    """
    with trio.move_on_after(HANDSHAKE_SECONDS_MAX):
        first = await stream.socket.recv(1, socket.MSG_PEEK)
        if not looks_like_tls(first):
            await _tell(stream, _REFUSAL if first else b"")
            return None
        secure = trio.SSLStream(Ciphertext(stream), context, server_side=True, https_compatible=True)
        try:
            await secure.do_handshake()
        except trio.BrokenResourceError:
            await _tell(stream, secure._outgoing.read())  # the alert, which trio would drop
            raise
        return SecureStream(secure)
    return None


def certificate_of(stream: trio.SocketStream | SecureStream) -> PeerIdentity | None:
    """Returns the verified certificate of a client; None if it has shown none, and without TLS."""
    return stream.peer_identity if isinstance(stream, SecureStream) else None


async def _tell(stream: trio.SocketStream, last: bytes) -> None:
    """Sends the last bytes of a connection, and waits until the client has them."""
    if last:
        await stream.send_all(last)
        await stream.send_eof()
        await _read_rest(stream)


async def _read_rest(stream: trio.SocketStream) -> None:
    """Reads until the client has closed: with something unread the answer would get lost."""
    while await stream.receive_some():
        pass
