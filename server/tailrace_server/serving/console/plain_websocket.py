"""WebSockets without compression, in Hypercorn's place of its own.

Hypercorn accepts permessage-deflate from every client, and decompresses what it has read at once: 64 KiB of a client
without a token become 64 MiB. It has no setting for that.
"""

from __future__ import annotations

from dataclasses import replace

from hypercorn.protocol import h11
from hypercorn.protocol.events import Event, Request
from hypercorn.protocol.ws_stream import WSStream

_EXTENSIONS = b"sec-websocket-extensions"


class PlainWebSocket(WSStream):
    """A WebSocket whose client is taken to offer no extensions."""

    async def handle(self, event: Event) -> None:
        """Handles an event of the connection."""
        if isinstance(event, Request):
            headers = [(name, value) for name, value in event.headers if name.lower() != _EXTENSIONS]
            event = replace(event, headers=headers)
        await super().handle(event)


def refuse_compression() -> None:
    """Makes the connections of this process use it. May be called again."""
    h11.WSStream = PlainWebSocket  # type: ignore[attr-defined]
