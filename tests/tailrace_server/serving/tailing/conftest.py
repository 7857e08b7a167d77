"""A WebSocket door in front of a node, and clients of it."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import trio
from trio_websocket import ConnectionClosed, wrap_client_stream
from wsproto.utilities import LocalProtocolError

from tailrace_server.serving.tailing import ws_listener

HANDSHAKE = (
    b"GET /feeds/orders HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Page:
    """What a browser's script sees of a WebSocket."""

    def __init__(self, ws):
        self.ws = ws

    async def message(self):
        """The next message; None at the end."""
        try:
            return json.loads(await self.ws.get_message())
        except ConnectionClosed:
            return None

    async def of_type(self, type_):
        """The next message of this type; what comes before it is passed over."""
        while (message := await self.message()) is not None:
            if message["type"] == type_:
                return message
        raise AssertionError(f"no {type_} has come: closed with {self.ws.closed}")

    async def rows(self, count):
        """So many rows, in order."""
        rows = []
        while len(rows) < count:
            rows += (await self.of_type("mutations"))["rows"]
        return rows

    async def rest(self):
        """All messages up to the end."""
        messages = []
        while (message := await self.message()) is not None:
            messages.append(message)
        return messages

    async def failure(self):
        """What the error message says, and the code of the close."""
        *_, message = await self.rest()
        assert message["type"] == "error"
        assert self.ws.closed.reason.startswith(message["error"])
        return message["error"], message["message"], self.ws.closed.code


class PageOpener:
    def __init__(self, address):
        self.address = address

    @contextlib.asynccontextmanager
    async def __call__(self, target, *, origin=None, subprotocols=("tailrace.json.v1",)):
        """A `Page`; ConnectionRejected where the handshake is refused."""
        headers = [] if origin is None else [(b"Origin", origin.encode())]
        is_closing = False
        stream = await trio.open_tcp_stream(*self.address)
        try:
            async with stream, trio.open_nursery() as nursery:
                ws = await wrap_client_stream(
                    nursery,
                    stream,
                    "localhost",
                    target,
                    subprotocols=subprotocols,
                    extra_headers=headers,
                    max_message_size=64 * 1024 * 1024,
                )
                yield Page(ws)
                is_closing = True
                await ws.aclose()
                nursery.cancel_scope.cancel()
        except ExceptionGroup as group:
            # The library's client fails if a ping of the node crosses its close.
            if not is_closing or not isinstance(group.exceptions[0], LocalProtocolError):
                raise group.exceptions[0] from None

    async def raw(self, data):
        """A connection that has sent ``data`` and has read nothing."""
        stream = await trio.open_tcp_stream(*self.address)
        await stream.send_all(data)
        return stream


@pytest.fixture
async def open_page(running):
    """Opens `Page`s of a WebSocket door to the node of ``running``, as contexts."""
    async with ws_listener(lambda transport: running.node.handle(transport), running.node, ("127.0.0.1", 0)) as address:
        yield PageOpener(address)


@pytest.fixture
def ended():
    """Waits until a condition holds that the node's own tasks bring about."""

    async def wait(condition):
        while True:  # nobody tells when it changes
            if condition():
                return
            await trio.sleep(0.005)

    return wait


@pytest.fixture
def handshake():
    """What a browser sends first."""
    return HANDSHAKE


@pytest.fixture
def fill_feed():
    """Writes so many rows of 64 KiB that no compression makes smaller."""

    async def write(feed, rows):
        async with feed.writer(batch_bytes=256 * 1024) as writer:
            for number in range(rows):
                await writer.put(b"%06d" % number, os.urandom(65_536))

    return write
