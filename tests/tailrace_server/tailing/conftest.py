"""A WebSocket door in front of a node, and clients of it."""

from __future__ import annotations

import contextlib
import json

import pytest
import trio
from trio_websocket import ConnectionClosed, open_websocket_url

from tailrace_server.tailing import ws_door


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
        headers = [] if origin is None else [(b"Origin", origin.encode())]
        url = f"ws://127.0.0.1:{self.address[1]}{target}"
        async with open_websocket_url(url, subprotocols=subprotocols, extra_headers=headers) as ws:
            yield Page(ws)


@pytest.fixture
async def open_page(running):
    """Opens `Page`s of a WebSocket door to the node of ``running``, as contexts."""
    async with ws_door(lambda transport: running.node.handle(transport), ("127.0.0.1", 0)) as address:
        yield PageOpener(address)


@pytest.fixture
def ended():
    """Waits until a condition holds that the node's own tasks bring about."""

    async def wait(condition):
        while not condition():
            await trio.sleep(0.005)

    return wait
