"""The events of a stream, as messages, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from tailrace.consuming.session import Event
from tailrace.trio.stream import Stream
from tailrace_server.serving.tailing.gathering import Gathering
from tailrace_server.serving.tailing.messages import encode_message
from tailrace_server.serving.tailing.request import TailRequest

# Positions of many partitions are long: they are sent this many seconds after the events, not after each one.
POSITIONS_INTERVAL_SECONDS = 1.0


class Tail:
    """Sends a stream that is entered already; ``send`` returns when the client, or its socket, has the message."""

    def __init__(self, stream: Stream, request: TailRequest, send: Callable[[str], Awaitable[None]]) -> None:
        self._stream = stream
        self._request = request
        self._send = send
        self._gathering = Gathering()
        self._moved = False  # since positions were sent last
        self._positions_at = 0.0

    async def run(self) -> None:
        """Sends for ever. Raises what ends the stream, and what ``send`` raises."""
        await self._send_positions("open", feed=self._request.feed, partitions=len(self._stream.status().partitions))
        while True:
            event = await self._next_event()
            if event is None:
                await self._send_positions("positions")
            else:
                await self._send_event(event)

    async def _next_event(self) -> Event | None:
        """Returns the next event; None if positions are due first."""
        if not self._moved:
            return await anext(self._stream)
        # Asked for first: if events are at hand, nothing below would wait and so be cancelled.
        if trio.current_time() < self._positions_at:
            with trio.move_on_at(self._positions_at):
                return await anext(self._stream)
        return None

    async def _send_event(self, event: Event) -> None:
        """Sends the event, with those before it and after it that are at hand: rows that came together go together."""
        await self._send_each(self._gathering.add(event))
        if not self._stream.has_event():
            await self._send_each(self._gathering.take())
        self._moved = True

    async def _send_each(self, messages: Iterable[str]) -> None:
        for message in messages:
            await self._send(message)

    async def _send_positions(self, type_: str, **fields: object) -> None:
        # Nothing waits to be sent after this, and the event that was given last is handled: these positions cover it.
        await self._send_each(self._gathering.take())
        await self._send(encode_message(type_, **fields, positions=str(self._stream.latest_positions)))
        self._moved = False
        self._positions_at = trio.current_time() + POSITIONS_INTERVAL_SECONDS
