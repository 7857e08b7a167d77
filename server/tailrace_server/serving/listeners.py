"""The listeners of a node for HTTP and WebSocket: their addresses, and how connections begin and end."""

from __future__ import annotations

import contextlib
import errno
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple, TypeAlias

import trio

from tailrace.cli.errors import alone
from tailrace.link.address import Address, parse_address
from tailrace_server.host.line_limit import LimitedLog
from tailrace_server.serving.addresses import AddressCounts
from tailrace_server.serving.secure_stream import SecureStream, secured

log = logging.getLogger("tailrace.server")

# A connection of a client of HTTP or WebSocket.
WebStream: TypeAlias = trio.SocketStream | SecureStream

# The values with which an operator keeps a listener closed.
SHUT = ("", "off")

# Out of descriptors or memory: others may give some back.
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESOURCES_WAIT_SECONDS = 0.1
# One address has at most this part of a listener's connections, loopback excepted.
ADDRESSES_SHARE = 2


def parse_listen_address(text: str, default_port: int) -> tuple[str, int] | None:
    """Returns host and port of ``HOST[:PORT]`` or ``:PORT``; None if the listener stays closed. Raises ValueError.

    ``:PORT`` is the port at 127.0.0.1: other machines reach it only if another address is named.
    """
    text = text.strip()
    if text.lower() in SHUT:
        return None
    address = parse_address(f"127.0.0.1{text}" if text.startswith(":") else text, default_port)
    return address.host, address.port


def show_listen_address(address: tuple[str, int] | None) -> str:
    """``HOST:PORT``, or ``off``."""
    return "off" if address is None else str(Address(*address))


class ListenerHandlers(NamedTuple):
    """The functions that serve a listener's connections, and its bound."""

    # For messages: "http", "ws".
    name: str
    connections_max: int
    # Serves one connection to its end, and closes it; told to go, it ends within the time that ``drain`` takes. The
    # second argument is to be called once its client has shown that it has rights here.
    handle: Callable[[WebStream, Callable[[], None]], Awaitable[None]]
    # Called when the node stops: ends the requests under way, and returns soon.
    drain: Callable[[], Awaitable[None]]
    # Gives the present context of TLS, if the listener speaks that.
    tls: Callable[[], ssl.SSLContext] | None = None


@contextlib.asynccontextmanager
async def listen(listener: ListenerHandlers, address: tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
    """Accepts connections at ``address`` while the body runs; gives the real address.

    An error in one connection stays in it. On leaving no more are accepted, the open ones are drained, and the rest is
    cancelled. Raises OSError if the address cannot be used.
    """
    try:
        listeners = await trio.open_tcp_listeners(address[1], host=address[0])
    except OSError as error:
        message = f"--{listener.name} {show_listen_address(address)}: {error.strerror or error}"
        raise OSError(error.errno, message) from error
    name = listeners[0].socket.getsockname()
    async with trio.open_nursery() as nursery:
        connections = _Connections(listener, nursery)
        accepting = trio.CancelScope()
        nursery.start_soon(connections.accept_all, listeners, accepting)
        try:
            yield name[0], name[1]
        finally:
            accepting.cancel()
            with trio.CancelScope(shield=True):
                await listener.drain()
            nursery.cancel_scope.cancel()


class _Connections:
    """The connections of a listener that are open.

    A living client is identified within milliseconds. So the oldest of those that are not makes room for another one,
    and silent peers keep no one out.
    """

    def __init__(self, listener: ListenerHandlers, nursery: trio.Nursery) -> None:
        self._listener = listener
        self._nursery = nursery
        self._open: set[trio.SocketStream] = set()
        self._strangers: dict[trio.SocketStream, trio.CancelScope] = {}  # those of `_open` without a known client
        self._addresses = AddressCounts()
        self._turned_away = LimitedLog(log, "connections were turned away")
        self._ended = LimitedLog(log, "connections were ended")

    async def accept_all(self, listeners: list[trio.SocketListener], scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener)

    async def _accept(self, listener: trio.SocketListener) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno in _OUT_OF_RESOURCES:
                        log.warning("%s: no connection can be accepted: %s", self._listener.name, error.strerror)
                        await trio.sleep(_RESOURCES_WAIT_SECONDS)
                    continue  # anything else was one peer's trouble
                self._nursery.start_soon(self._handle, stream)

    async def _handle(self, stream: trio.SocketStream) -> None:
        host = _host_of(stream)
        if not self._admits(host):
            stream.socket.close()
            return
        scope = trio.CancelScope()
        self._open.add(stream)
        self._strangers[stream] = scope
        try:
            with scope:
                await self._serve(stream)
        except OSError:
            pass  # the peer is gone
        except Exception as error:
            if not scope.cancel_called:  # else its socket was closed while something waited for it
                self._tell_end(host, error)
        finally:
            self._open.discard(stream)
            self._strangers.pop(stream, None)
            self._addresses.left(host)
            stream.socket.close()

    def _admits(self, host: str) -> bool:
        """Counts a connection of ``host``, unless it is one too many, which is logged."""
        name = self._listener.name
        if not self._addresses.admits(host, max(1, self._listener.connections_max // ADDRESSES_SHARE)):
            now, message = trio.current_time(), "%s: %s has as many connections as it may have: one was turned away"
            self._turned_away.write(now, host, logging.WARNING, message, name, host)
            return False
        if not self._make_room():
            now, message = trio.current_time(), "%s: %d connections are open: one more was turned away"
            self._turned_away.write(now, name, logging.WARNING, message, name, len(self._open))
            self._addresses.left(host)
            return False
        return True

    def _tell_end(self, host: str, error: Exception) -> None:
        # A broken or hostile client makes the libraries raise many kinds of errors. They end this connection, and
        # get a line in the log: with a traceback a client could fill the disk. The handlers log our own bugs.
        debugging = log.isEnabledFor(logging.DEBUG)
        now, message = trio.current_time(), "%s: a connection was ended: %r"
        self._ended.write(now, host, logging.INFO, message, self._listener.name, alone(error), exc_info=debugging)

    async def _serve(self, stream: trio.SocketStream) -> None:
        tls = self._listener.tls
        found = stream if tls is None else await secured(stream, tls())
        if found is not None:
            await self._listener.handle(found, lambda: self._identified(stream))

    def _identified(self, stream: trio.SocketStream) -> None:
        """Notes that the client of a connection is known."""
        self._strangers.pop(stream, None)

    def _make_room(self) -> bool:
        """Returns whether another connection may open. Of too many the oldest without a known client ends."""
        if len(self._open) < self._listener.connections_max:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        self._strangers.pop(oldest).cancel()
        self._open.discard(oldest)
        oldest.socket.close()  # a shield may be around what it does
        return True


def _host_of(stream: trio.SocketStream) -> str:
    """Returns the address of a peer; "" if it is gone already."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
