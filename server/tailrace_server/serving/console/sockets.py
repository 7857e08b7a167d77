"""The WebSockets of the console, on the HTTP listener: only pages of this node's own origin may open one.

A browser cannot set headers of a WebSocket, so a page offers its token as one more subprotocol (bearer.py).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol
from urllib.parse import quote

import trio
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket
from trio_websocket import ConnectionClosed

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.tls.engine import PeerIdentity
from tailrace.trio.transport import Transport
from tailrace_server.serving.access import Access
from tailrace_server.serving.bearer import token_of_websocket
from tailrace_server.serving.board.board import Board
from tailrace_server.serving.console.live import SUBPROTOCOL, UNAUTHORIZED, LiveSession
from tailrace_server.serving.http.certificate import certificate_of
from tailrace_server.serving.http.headers import HEADERS
from tailrace_server.serving.http.identified import note_identified
from tailrace_server.serving.http.origin import is_own_origin
from tailrace_server.serving.tailing.loopback import loopback
from tailrace_server.serving.tailing.messages import close_reason, encode_message
from tailrace_server.serving.tailing.session import TailSession


class HasSockets(Protocol):
    """The part of a node that WebSockets use."""

    @property
    def board(self) -> Board:
        """What the console shows."""
        ...

    @property
    def handle(self) -> Callable[[Transport], Awaitable[None]]:
        """As ``Node.handle``."""
        ...

    def identify(self, token: str | None, peer: str, certificate: PeerIdentity | None = None) -> Access:
        """As ``Node.identify``."""
        ...

    def pause_s(self, peer: str, token: str | None) -> float:
        """As ``Node.pause_s``."""
        ...


log = logging.getLogger("tailrace.http")

# Each costs one or two milliseconds of the loop every 2 s.
LIVE_MAX = 32
TAILS_MAX = 64
_FULL = "as many consoles are open as there may be: close one\n"


class Sockets:
    """The open WebSockets. Only its own methods change its fields."""

    def __init__(self, node: HasSockets, nursery: trio.Nursery) -> None:
        """``nursery`` runs the node's end of the connections of tails."""
        self._node = node
        self._nursery = nursery
        self._parsing = trio.CapacityLimiter(1)
        self._live: set[LiveSession] = set()
        self._tails: set[TailSession] = set()

    def routes(self) -> list[BaseRoute]:
        """Returns the routes."""
        return [WebSocketRoute("/api/live", self._on_live), WebSocketRoute("/api/feeds/{feed}/tail", self._on_tail)]

    def stop(self) -> None:
        """Ends all of them with a close frame: the node is about to stop."""
        for live in self._live:
            live.stop()
        for tail in self._tails:
            tail.stop()

    async def _on_live(self, socket: WebSocket) -> None:
        if len(self._live) >= LIVE_MAX:
            await _deny(socket, 503, _FULL)
            return
        if SUBPROTOCOL not in socket.scope["subprotocols"]:
            await _deny(socket, 400, f"the subprotocol {SUBPROTOCOL} is spoken here\n")
            return
        if not await self._is_permitted(socket, SUBPROTOCOL):
            return
        await socket.accept(SUBPROTOCOL)
        identify = partial(self._node.identify, _token_of(socket), _peer_of(socket), certificate_of(socket))
        session = LiveSession(socket, self._node.board, identify)
        self._live.add(session)
        try:
            await session.run()
        except Exception:
            # A bug of ours ends this WebSocket. It is logged here, since the layers below would not log it.
            log.exception("WebSocket %s", socket.url.path)
        finally:
            self._live.discard(session)

    async def _on_tail(self, socket: WebSocket) -> None:
        if len(self._tails) >= TAILS_MAX:
            await _deny(socket, 503, _FULL)
            return
        if not await self._is_permitted(socket, next(iter(socket.scope["subprotocols"]), None)):
            return
        peer, connect = _peer_of(socket), partial(self._connect, socket)
        session = TailSession(_Handshake(socket), peer, connect, self._parsing, _token_of(socket))
        self._tails.add(session)
        try:
            await session.run()
        except Exception:
            # A bug of ours ends this WebSocket. It is logged here, since the layers below would not log it.
            log.exception("WebSocket %s", socket.url.path)
        finally:
            self._tails.discard(session)

    async def _connect(self, socket: WebSocket, _: Address) -> Transport:
        client, server = loopback(_peer_of(socket), "loopback", certificate_of(socket))
        self._nursery.start_soon(self._node.handle, server)
        return client

    async def _is_permitted(self, socket: WebSocket, subprotocol: str | None) -> bool:
        """Returns whether the page may open a WebSocket, and its token counts. Tells it if not.

        A page is not shown the code of a refused handshake. So the WebSocket of a wrong token is opened, and closed.
        """
        if not is_own_origin(socket.headers.get("origin"), socket.headers.get("host")):
            await _deny(socket, 403, "only pages of this node itself may open this WebSocket\n")
            return False
        token, peer = _token_of(socket), _peer_of(socket)
        try:
            self._node.identify(token, peer, certificate_of(socket))
        except TailraceError as error:
            await trio.sleep(self._node.pause_s(peer, token))
            await socket.accept(subprotocol)
            await socket.send_text(encode_message("error", error="Unauthorized", message=str(error)))
            await socket.close(UNAUTHORIZED, close_reason(str(error)))
            return False
        note_identified(socket)
        return True


def _token_of(socket: WebSocket) -> str | None:
    return token_of_websocket(socket.headers.getlist("authorization"), socket.scope["subprotocols"])


def _peer_of(socket: WebSocket) -> str:
    return "unknown" if socket.client is None else str(Address(socket.client.host, socket.client.port))


async def _deny(socket: WebSocket, code: int, text: str) -> None:
    await socket.send_denial_response(PlainTextResponse(text, status_code=code, headers=HEADERS))


class _Handshake:
    """The handshake of a tail, as `TailSession` sees it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        query = socket.scope["query_string"].decode("latin-1")
        self.path = f"/feeds/{quote(socket.path_params['feed'], safe='')}" + (f"?{query}" if query else "")
        self.proposed_subprotocols = tuple(socket.scope["subprotocols"])

    async def accept(self, *, subprotocol: str | None = None) -> _Page:
        """Opens the WebSocket."""
        await self._socket.accept(subprotocol)
        return _Page(self._socket)

    async def reject(self, status_code: int, *, body: bytes) -> None:
        """Refuses it."""
        await _deny(self._socket, status_code, body.decode())


class _Page:
    """An open WebSocket, as `TailSession` sees it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def get_message(self) -> str | bytes:
        """Returns the next message. Raises ConnectionClosed."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise ConnectionClosed(None)
        text: str | bytes | None = message.get("text")
        return message["bytes"] if text is None else text

    async def send_message(self, message: str) -> None:
        """Sends a message; returns when the socket has it."""
        await self._socket.send_text(message)

    async def ping(self) -> None:
        """Does nothing: the HTTP listener pings all WebSockets."""
        await trio.lowlevel.checkpoint()

    async def aclose(self, code: int, reason: str) -> None:
        """Closes the WebSocket."""
        await self._socket.close(code, reason)
