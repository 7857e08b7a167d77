"""Frames through WebSocket under asyncio: a connection whose bytes pass the engine of `tailrace.websocket`."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial

from tailrace.asyncio.opening import open_connection
from tailrace.asyncio.transport import Transport
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.websocket.engine import WebSocketEngine


class WebSocketTransport(Transport):
    """A Transport through a WebSocket, which `opened` waits for."""

    def __init__(self, tunnel: str, address: Address) -> None:
        super().__init__(address)
        self._engine = WebSocketEngine(address, tunnel)
        self._answered = asyncio.Event()  # the WebSocket is open, or cannot be opened

    async def opened(self) -> None:
        """Waits until the WebSocket is open. Raises the error of one that cannot be opened, or OSError."""
        await self._answered.wait()
        if not self._engine.is_open:
            self._check()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asks for the WebSocket."""
        super().connection_made(transport)
        self._send_taken()

    def data_received(self, data: bytes) -> None:
        """Hands over the bytes for frames that received ones bring."""
        self.reads += 1
        try:
            self._engine.feed(data)
        except TailraceError as error:
            self._end(error)
            return
        self._send_taken()
        if self._engine.is_open:
            self._answered.set()
        found = self._engine.received()
        if found:
            self._received(found)
        if self._engine.is_ended:
            reason = self._engine.reason
            self._end(ConnectionError(f"the WebSocket was closed: {reason}") if reason else None)

    def _end(self, error: Exception | None) -> None:
        if error is None:
            try:
                self._engine.fed_end()
            except TailraceError as refusal:
                error = refusal
        super()._end(error)
        self._answered.set()

    def send(self, *buffers: bytes | memoryview) -> None:
        """Sends bytes in messages."""
        self._engine.send(buffers)
        self._send_taken()

    def _send_taken(self) -> None:
        out = self._engine.take()
        if out:
            super().send(*out)


async def open_websocket(tunnel: str, context: ssl.SSLContext | None, address: Address) -> Transport:
    """Connects to a node through a WebSocket for frames at the path ``tunnel``. Raises as `open_connection`."""
    transport = await open_connection(address, context, partial(WebSocketTransport, tunnel))
    assert isinstance(transport, WebSocketTransport)
    try:
        await transport.opened()
    except BaseException:
        transport.close()
        await transport.wait_closed()
        raise
    return transport
