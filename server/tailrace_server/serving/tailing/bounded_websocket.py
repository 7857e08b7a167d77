"""A WebSocket of the library, with the bounds that it lacks.

The library's reader takes messages as they come: a list of their parts, however small, and the next message while the
first one is looked at. Here small parts are joined, and a flood of empty ones ends the connection. As long as a client
has shown no rights, a message may be only as long as a greeting.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, TypeAlias

import trio
from trio_websocket import CloseReason, ConnectionClosed, WebSocketConnection, WebSocketRequest
from wsproto import ConnectionType, WSConnection
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError

# The longest message of a client that has not shown any rights: a HELLO.
GREETING_BYTES_MAX = 64 * 1024 + 1024
# Parts of a message up to this size are joined as they come: each costs about 50 bytes besides.
JOINED_BYTES_MAX = 16 * 1024
# The empty parts of a message. No client has a reason to send any.
EMPTY_PARTS_MAX = 128
# Others have their turn of the loop after so many parts of messages and pongs, which take about half a millisecond.
PARTS_PER_TURN = 64
_POLICY_VIOLATION = 1008

_Message: TypeAlias = BytesMessage | TextMessage


class BoundedWebSocket(WebSocketConnection):
    """The node's side of a WebSocket. ``stream`` as for the library."""

    def __init__(self, stream: trio.abc.Stream, *, receive_buffer_size: int) -> None:
        super().__init__(
            stream,
            WSConnection(ConnectionType.SERVER),
            message_queue_size=1,
            max_message_size=GREETING_BYTES_MAX,
            receive_buffer_size=receive_buffer_size,
        )
        self._empty_parts = 0
        self._handled = 0  # parts and pongs since others had their turn
        self._known = trio.Event()
        self._known.set()

    def bound(self, nbytes: int) -> None:
        """Sets the most bytes of a message from now on."""
        self._max_message_size = nbytes

    def stop_after_one(self) -> None:
        """Reads one message, and no further before `go_on` was called."""
        self._known = trio.Event()

    def go_on(self) -> None:
        """Reads on."""
        self._known.set()

    async def send_frames(self, frames: bytes) -> None:
        """Sends whole messages that are frames already, as `send_message` does. Raises ConnectionClosed."""
        if self._close_reason:
            raise ConnectionClosed(self._close_reason)
        try:
            self._stream_lock.acquire_nowait()  # `acquire` would let others have their turn first, and so does the send
        except trio.WouldBlock:
            await self._stream_lock.acquire()
        try:
            await self._stream.send_all(frames)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._abort_web_socket()
            raise ConnectionClosed(self._close_reason) from None
        finally:
            self._stream_lock.release()

    async def aclose(self, code: int = 1000, reason: str | None = None) -> None:
        """Closes it. What comes until the client has closed it, too, is passed over."""
        self.go_on()
        await super().aclose(code, reason)

    async def _handle_message_event(self, event: _Message) -> None:
        await self._take_turns()
        self._empty_parts = 0 if event.data or event.message_finished else self._empty_parts + 1
        if self._empty_parts > EMPTY_PARTS_MAX:
            await self._end(_POLICY_VIOLATION, f"more than {EMPTY_PARTS_MAX} empty parts of a message came together")
            return
        await super()._handle_message_event(self._joined(event))
        if event.message_finished and self._reader_running:
            await self._known.wait()

    def _joined(self, event: _Message) -> _Message:
        """Returns a part with the one before it, if that is small."""
        parts = self._message_parts
        if not parts or len(parts[-1]) > JOINED_BYTES_MAX:
            return event
        last: Any = parts.pop()  # of the event's own type: bytes or text
        self._message_size -= len(last)
        return replace(event, data=last + event.data)

    async def _end(self, code: int, why: str) -> None:
        self._message_parts = []
        self._close_reason = CloseReason(code, why)
        await self._send(CloseConnection(code=code, reason=why))
        await self._recv_channel.aclose()
        self._reader_running = False

    async def _handle_ping_event(self, event: Ping) -> None:
        with contextlib.suppress(LocalProtocolError):  # it crosses the close of the node, after which no pong may come
            await super()._handle_ping_event(event)

    async def _handle_pong_event(self, event: Pong) -> None:
        await self._take_turns()
        await super()._handle_pong_event(event)

    async def _take_turns(self) -> None:
        self._handled += 1
        if self._handled >= PARTS_PER_TURN:
            self._handled = 0
            await trio.lowlevel.checkpoint()


async def request_of(websocket: BoundedWebSocket, nursery: trio.Nursery) -> WebSocketRequest:
    """Returns the client's request for a WebSocket, which ``nursery`` reads from now on."""
    nursery.start_soon(websocket._reader_task)
    return await websocket._get_request()
