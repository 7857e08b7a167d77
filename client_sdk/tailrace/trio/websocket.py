"""Frames through WebSocket under trio, around another transport, with the same promises.

As with TLS, the library's own stream would not do: its ``send_message`` waits. So the engine works on memory, and the
inner transport moves the bytes.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tailrace.link.address import Address
from tailrace.trio.lending import lending_of
from tailrace.trio.transport import Connect, Take, Transport, receive_each
from tailrace.websocket.engine import WebSocketEngine


class WebSocketTransport:
    """A Transport through a WebSocket that is open. It owns ``inner``."""

    def __init__(self, inner: Transport, engine: WebSocketEngine) -> None:
        self._inner = inner
        self._engine = engine
        self.lending = lending_of(inner)  # which hands its bytes to ``receive_each``
        self._closed = False

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def backlog_bytes(self) -> int:
        return self._inner.backlog_bytes

    @property
    def is_broken(self) -> bool:
        return self._closed or self._inner.is_broken

    @property
    def on_drained(self) -> Callable[[], None] | None:
        """Called each time that the queue becomes empty."""
        return self._inner.on_drained

    @on_drained.setter
    def on_drained(self, call: Callable[[], None] | None) -> None:
        self._inner.on_drained = call

    def send(self, *buffers: bytes | memoryview) -> None:
        if not self.is_broken:
            self._engine.send(buffers)
            self._inner.send(*self._engine.take())

    async def receive(self) -> bytes:
        engine = self._engine
        found = b"" if self._closed else engine.received()
        if found or engine.is_ended or self._closed:
            await trio.lowlevel.checkpoint()
            self._check_reason(found)
            return found
        while True:
            found = self._fed(bytes(await self._inner.receive()))
            if found or engine.is_ended or self._closed:
                self._check_reason(found)
                return found

    async def receive_each(self, take: Take) -> bool:
        """Hands over the bytes as they come, as `HandingTransport.receive_each`."""
        engine = self._engine
        found = b"" if self._closed else engine.received()  # they came with the answer to the request
        if found or engine.is_ended or self._closed:
            found = found or await self.receive()
            if not found or not take(found):
                return bool(found)
        is_stopped = False

        def fed(received: bytes | memoryview) -> bool:
            nonlocal is_stopped
            data = self._fed(bytes(received))
            is_stopped = bool(data) and not take(data)
            return not is_stopped and not engine.is_ended

        await receive_each(self._inner, fed)
        if not is_stopped:
            self._check_reason(b"")
        return is_stopped

    def _fed(self, received: bytes) -> bytes:
        """Returns the bytes for frames that received ones bring."""
        engine = self._engine
        if received:
            engine.feed(received)
        else:
            engine.fed_end()
        self._send_taken()
        return engine.received()

    def _send_taken(self) -> None:
        """Sends what the engine has. A peer that sends pings and does not read gets one pong for all of them."""
        if not self._inner.backlog_bytes:
            out = self._engine.take()
            if out:
                self._inner.send(*out)

    def _check_reason(self, found: bytes) -> None:
        """Raises OSError if the WebSocket has ended for a reason, and nothing is left."""
        if not found and self._engine.is_ended and self._engine.reason and not self._closed:
            raise ConnectionError(f"the WebSocket was closed: {self._engine.reason}")

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        await self._inner.run()

    def finish(self) -> None:
        self._engine.end()
        self._inner.send(*self._engine.take())

    def close(self) -> None:
        self._closed = True
        self._inner.close()


async def connect_websocket(connect: Connect, tunnel: str, address: Address) -> WebSocketTransport:
    """Connects by ``connect``, and opens a WebSocket for frames at the path ``tunnel``.

    Raises Unreachable; Forbidden or ProtocolError if no retry can mend it. The time-out is the caller's.
    """
    inner = await connect(address)
    try:
        engine = WebSocketEngine(address, tunnel)
        while True:
            out = engine.take()
            if out:
                inner.send(*out)
            if engine.is_open:
                return WebSocketTransport(inner, engine)
            received = bytes(await inner.receive())
            if received:
                engine.feed(received)
            else:
                engine.fed_end()
    except BaseException:
        inner.close()
        raise
