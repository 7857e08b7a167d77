"""TLS for the listeners of HTTP and WebSocket, whose libraries read and write a stream.

Their streams are trio's own: unlike frames, nothing is sent from callbacks there.
"""

from __future__ import annotations

import socket
import ssl

import trio

from tailrace.tls.engine import PeerIdentity, identity_of, looks_like_tls

# As for a request's head.
HANDSHAKE_SECONDS_MAX = 10.0
_SPEAKS_TLS = b"this port speaks TLS: use https:// or wss://\n"
_REFUSAL = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: "
    + str(len(_SPEAKS_TLS)).encode()
    + b"\r\n\r\n"
    + _SPEAKS_TLS
)


class SecureStream(trio.abc.HalfCloseableStream):
    """A stream over TLS with the members of a socket's stream that listeners use."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self.peer_identity = identity_of(stream._ssl_object)  # trio forwards less of it than is needed
        self.socket = stream.transport_stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

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
        secure = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
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
