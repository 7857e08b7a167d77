"""Accepts TCP connections under trio."""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

import trio

from tailrace.trio.tcp import TcpTransport, take_socket


def _accepted(sock: socket.socket) -> TcpTransport | None:
    """Returns the transport of an accepted connection; None if the peer has gone again."""
    try:
        name = sock.getpeername()
        return TcpTransport(sock, f"{name[0]}:{name[1]}")
    except OSError:
        sock.close()
        return None


class TcpListener:
    """Accepts connections at an address."""

    def __init__(self, listeners: list[trio.SocketListener]) -> None:
        self._listeners = listeners

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the first socket; the port is the real one where 0 was asked for."""
        name = self._listeners[0].socket.getsockname()
        return name[0], name[1]

    async def serve(self, handler: Callable[[TcpTransport], Awaitable[None]]) -> None:
        """Runs ``handler`` in a task of its own for each new connection, for ever.

        Waits a moment if the process has no descriptors left.
        """
        async with trio.open_nursery() as nursery:
            for listener in self._listeners:
                nursery.start_soon(self._accept, listener, handler, nursery)

    async def _accept(
        self,
        listener: trio.SocketListener,
        handler: Callable[[TcpTransport], Awaitable[None]],
        nursery: trio.Nursery,
    ) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                # Out of descriptors or memory: others may give some back. Anything else was one peer's trouble.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    await trio.sleep(0.1)
                continue
            transport = _accepted(take_socket(stream.socket))
            if transport is not None:
                nursery.start_soon(handler, transport)

    async def aclose(self) -> None:
        for listener in self._listeners:
            await listener.aclose()


async def listen_tcp(host: str, port: int) -> TcpListener:
    """Listens at ``host``:``port`` (0: any free port). Raises OSError if the address is not available."""
    return TcpListener(await trio.open_tcp_listeners(port, host=host))
