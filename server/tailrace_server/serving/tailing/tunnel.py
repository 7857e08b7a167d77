"""Frames through a WebSocket: a connection to the node as any other, whose bytes are the payloads of messages.

HELLO brings the token, and the node's bounds of connections, requests and greetings hold. What the listener adds has
bounds here: a message is at most listener.MESSAGE_BYTES_MAX long, and one waits to be read.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest

from tailrace.tls.engine import PeerIdentity
from tailrace.trio.transport import Transport
from tailrace_server.serving.tailing.messages import GOING_AWAY

SUBPROTOCOL = "tailrace.frames.v1"
PATH = "/frames"
# The most bytes of a message to a client. Each is copied a few times on its way, in one turn of the loop.
MESSAGE_BYTES = 256 * 1024
# Once the node has closed, its last bytes have this time to leave, and the closing handshake with them.
CLOSE_SECONDS_MAX = 0.4
_NORMAL = 1000


def is_tunnel(request: WebSocketRequest) -> bool:
    """Tells whether a client asks for frames. A reverse proxy may have left a prefix in the path."""
    path, _, _ = request.path.partition("?")
    return SUBPROTOCOL in request.proposed_subprotocols and path.endswith(PATH)


class TunnelTransport:
    """A ``tailrace.trio.tls.SecureTransport`` over a WebSocket. ``identity``: the client's verified certificate."""

    def __init__(
        self, ws: WebSocketConnection, peer: str, identity: PeerIdentity | None, answered: Callable[[], None]
    ) -> None:
        """``answered`` is called with the first bytes to the client: a node answers nothing before HELLO."""
        self._ws = ws
        self._peer = peer
        self.peer_identity = identity
        self.handshake_seconds = 0.0
        self._answered: Callable[[], None] | None = answered
        self._queue: collections.deque[memoryview] = collections.deque()
        self._queued = trio.Event()
        self._receiving = trio.CancelScope()
        self._finishes = False
        self._closed = False
        self._is_sending = False  # a message has begun, and after a cancellation it stays a part
        self.backlog_bytes = 0
        self.is_broken = False
        self.on_drained: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        return self._peer

    def send(self, *buffers: bytes | memoryview) -> None:
        if self.is_broken or self._finishes:
            return
        if self._answered is not None:
            self._answered()
            self._answered = None
        for buffer in buffers:
            view = memoryview(buffer)
            self._queue.append(view)
            self.backlog_bytes += view.nbytes
        self._queued.set()

    async def receive(self) -> bytes:
        if self._closed:
            await trio.lowlevel.checkpoint()
            return b""
        with trio.CancelScope() as self._receiving:  # `close` ends it
            return await self._payload()
        return b""

    async def _payload(self) -> bytes:
        """Returns the next message that is not empty; ``b""`` at the end."""
        message: bytes | str = b""
        while message == b"":
            try:
                message = await self._ws.get_message()
            except ConnectionClosed:
                return b""
        if isinstance(message, str):
            raise ConnectionError("a text message came through a tunnel of frames")
        return message

    async def run(self) -> None:
        while not self.is_broken:
            if self._queue:
                await self._send_message()
                continue
            self._queued = trio.Event()
            if self.on_drained is not None:
                self.on_drained()
            if not self._queue and not self._finishes:
                await self._queued.wait()
            elif not self._queue:
                await self._end()
                return

    async def _send_message(self) -> None:
        """Sends the first bytes of the queue as a message, MESSAGE_BYTES at most."""
        pieces: list[memoryview] = []
        room = MESSAGE_BYTES
        while self._queue and room:
            first = self._queue.popleft()
            pieces.append(first[:room])
            room -= pieces[-1].nbytes
            if pieces[-1].nbytes < first.nbytes:
                self._queue.appendleft(first[pieces[-1].nbytes :])
        try:
            self._is_sending = True
            await self._ws.send_message(b"".join(pieces))
            self._is_sending = False
        except ConnectionClosed:
            self._break()
        else:
            self.backlog_bytes -= MESSAGE_BYTES - room

    async def flush(self) -> None:
        """Sends what was queued when the node closed the connection, and closes the WebSocket."""
        if not self._is_sending:
            while self._queue:
                await self._send_message()
            await self._end()

    async def _end(self) -> None:
        code = _NORMAL if self._finishes else GOING_AWAY
        await self._ws.aclose(code)

    def _break(self) -> None:
        self.is_broken = True
        self._queue.clear()
        self.backlog_bytes = 0

    def finish(self) -> None:
        self._finishes = True
        self._queued.set()

    def close(self) -> None:
        """Ends the connection for the node. What is queued leaves by `flush`."""
        self._closed = self.is_broken = True
        self._queued.set()
        self._receiving.cancel()


async def serve_tunnel(
    request: WebSocketRequest,
    peer: str,
    handle: Callable[[Transport], Awaitable[None]],
    identity: PeerIdentity | None,
    known: Callable[[], None],
) -> None:
    """Serves a client that speaks frames, by ``handle``, to the end.

    ``identity``: its verified certificate. ``known`` is called once the client has greeted.
    """
    ws = await request.accept(subprotocol=SUBPROTOCOL)
    transport = TunnelTransport(ws, peer, identity, known)
    try:
        await handle(transport)
    finally:
        with trio.move_on_after(CLOSE_SECONDS_MAX, shield=True):
            await transport.flush()
