"""Serves an ASGI application with Hypercorn's trio connections, over a listener of our own.

Hypercorn's ``serve`` is not used: it has no bound on connections, it sends under a shield (so that one client who does
not read holds up every stop), and an error in one connection ends them all. Its ``TCPServer`` is what handles one
connection, and everything around it is ours.
"""

from __future__ import annotations

import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Callable, Collection
from typing import Protocol

import trio
from hypercorn.config import Config as HttpConfig
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState
from hypercorn.utils import wrap_app

from tailrace_server.serving.console.app import HasStatus, make_app
from tailrace_server.serving.console.http1 import refuse_http2
from tailrace_server.serving.console.plain_websocket import refuse_compression
from tailrace_server.serving.console.sockets import Sockets
from tailrace_server.serving.http.certificate import CERTIFICATE
from tailrace_server.serving.http.identified import IDENTIFIED
from tailrace_server.serving.http.patience import PATIENCE
from tailrace_server.serving.listeners import ListenerHandlers, WebStream, listen
from tailrace_server.serving.secure_stream import certificate_of
from tailrace_server.serving.web.api import FeedsApi, WebNode

# A scraper, a load balancer and some people with browsers; each connection costs a descriptor and about 100 KiB.
CONNECTIONS_MAX = 256
# Everything that is served is asked for by a short path and a browser's headers.
REQUEST_HEAD_BYTES_MAX = 16 * 1024
# A request's head has to be complete within this time. An idle connection is kept for as long.
IDLE_SECONDS_MAX = 10
# A client that sends no more of a body, or does not answer pings, for this time is gone.
READ_SECONDS_MAX = 15
# How often WebSockets are pinged.
PING_SECONDS = 5.0
# The longest message of a page: positions of some ten thousand partitions.
MESSAGE_BYTES_MAX = 1024 * 1024
# A client that has not taken an answer after this time is gone.
SEND_SECONDS_MAX = 20.0
# Answers are made at once. A client who has closed his side waits for no other one; a send is not cut by this.
ANSWER_SECONDS_MAX = 1.0
# When the node stops, answers in flight have this time. The stop as a whole should take about a second.
GRACE_SECONDS = 0.5


class ListenedNode(HasStatus, WebNode, Protocol):
    """The part of a node that the listener uses."""


@contextlib.asynccontextmanager
async def http_listener(
    node: ListenedNode,
    address: tuple[str, int] | None,
    hosts: Collection[str] = (),
    tls: Callable[[], ssl.SSLContext] | None = None,
    origins: Collection[str] = (),
) -> AsyncIterator[tuple[str, int] | None]:
    """Answers HTTP at ``address`` while the body runs; gives the real address. None: nothing is opened.

    ``hosts``: the names that the node may be reached by, besides its addresses. ``tls`` gives the present context, if
    the listener speaks TLS. ``origins``: pages of these origins may use the feeds. Raises OSError if the address cannot
    be had.
    """
    if address is None:
        yield None
        return
    async with trio.open_nursery() as nursery:
        server = _HttpServer(node, hosts, Sockets(node, nursery), FeedsApi(node, nursery, origins))
        listener = ListenerHandlers("http", CONNECTIONS_MAX, server.handle, server.drain, tls)
        async with listen(listener, address) as opened:
            nursery.start_soon(node.board.run)
            yield opened
        nursery.cancel_scope.cancel()


class _HttpServer:
    """The application and its connections."""

    def __init__(self, node: HasStatus, hosts: Collection[str], sockets: Sockets, feeds: FeedsApi) -> None:
        refuse_compression()
        refuse_http2()
        self._sockets = sockets
        self._feeds = feeds
        self._app: AppWrapper = wrap_app(make_app(node, hosts, sockets, feeds), 0, "asgi")  # type: ignore[arg-type]
        self._config = _http_config()
        self._context = WorkerContext(None)
        self._open: set[_BoundedStream] = set()
        self._all_closed = trio.Event()

    async def handle(self, stream: WebStream, identified: Callable[[], None]) -> None:
        """Serves one connection to its end. ``identified`` is called once a token of its client counts."""
        scope = trio.CancelScope()
        connection = _BoundedStream(stream, scope)
        self._open.add(connection)
        try:
            with scope:
                state = ConnectionState(
                    {CERTIFICATE: certificate_of(stream), IDENTIFIED: identified, PATIENCE: connection.have_patience}
                )
                await TCPServer(self._app, self._config, self._context, state, connection)  # type: ignore[arg-type]
        finally:
            self._open.discard(connection)
            if not self._open:
                self._all_closed.set()

    async def drain(self) -> None:
        """Lets answers that are on their way out, for a moment; then ends every connection."""
        self._sockets.stop()
        self._feeds.stop()
        await self._context.terminated.set()  # idle connections close at once
        self._all_closed = trio.Event()
        if self._open:
            with trio.move_on_after(GRACE_SECONDS):
                await self._all_closed.wait()
        for connection in list(self._open):
            connection.abort()


class _BoundedStream:
    """The part of a trio stream that Hypercorn uses, with a bound on the time that a client may take.

    ``scope`` is around all of Hypercorn's connection, which otherwise lives on until it would have been idle for long
    enough, when the client has gone and when it was turned away.
    """

    def __init__(self, stream: WebStream, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._scope = scope
        self._reading = trio.CancelScope()
        self._patience = 0  # the answers that take long
        self.socket = stream.socket

    def have_patience(self, begins: bool) -> None:
        """Notes that an answer begins that takes long, or ends: the client need not say anything meanwhile."""
        self._patience += 1 if begins else -1
        self._reading.deadline = self._read_deadline()

    def _read_deadline(self) -> float:
        return math.inf if self._patience else trio.current_time() + READ_SECONDS_MAX

    async def receive_some(self, bytes_max: int) -> bytes | bytearray:
        """Returns some bytes; none at the end. Raises TooSlowError if none come for READ_SECONDS_MAX."""
        self._reading = trio.CancelScope(deadline=self._read_deadline())
        with self._reading:
            return await self._receive_some(bytes_max)
        raise trio.TooSlowError

    async def _receive_some(self, bytes_max: int) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(bytes_max)
        except trio.BrokenResourceError:
            self._scope.cancel()
            raise
        if not data:
            # The client sends no more, and may still be waiting for an answer.
            self._scope.deadline = trio.current_time() + ANSWER_SECONDS_MAX
        return data

    async def send_all(self, data: bytes) -> None:
        try:
            with trio.move_on_after(SEND_SECONDS_MAX) as scope:
                await self._stream.send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError(f"the client took no answer within {SEND_SECONDS_MAX:g} s")
        except trio.BrokenResourceError:
            self._scope.cancel()
            raise

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
        self._scope.cancel()

    def abort(self) -> None:
        """Closes the socket, whatever waits for it; the shield around a send included."""
        self.socket.close()


def _http_config() -> HttpConfig:
    config = HttpConfig()
    config.errorlog = None  # clients cause the errors that it would log; the application logs our own
    config.accesslog = None
    config.h11_max_incomplete_size = REQUEST_HEAD_BYTES_MAX
    config.keep_alive_timeout = IDLE_SECONDS_MAX
    config.read_timeout = None  # _BoundedStream has it: answers may take longer
    config.include_server_header = False
    config.websocket_ping_interval = PING_SECONDS
    config.websocket_max_message_size = MESSAGE_BYTES_MAX
    return config
