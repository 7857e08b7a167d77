"""A node in this process with its HTTP listener, and a client of HTTP that sends any bytes."""

import json
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11
import pytest
import trio

from tailrace_server.serving.console import http_listener


class Answer(NamedTuple):
    """An answer over HTTP."""

    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Web:
    """The HTTP listener of a node. Each request has a connection of its own."""

    def __init__(self, address, stop):
        self.address = address
        self.stop = stop  # ends the listener, as a node that stops does

    async def __call__(self, method, path, body=b"", **headers):
        """The answer to a request; ``headers`` have ``_`` for ``-``."""
        async with self.opened(method, path, body, **headers) as reader:
            return await reader.answer()

    async def raw(self, data):
        """The code of the answer to these bytes."""
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            await stream.send_all(data)
            connection = h11.Connection(h11.CLIENT)
            connection.send(h11.Request(method="GET", target="/", headers=[("host", "localhost")]))
            return (await Reader(stream, connection).head()).code

    @asynccontextmanager
    async def opened(self, method, path, body=b"", **headers):
        """A request that was sent, and the reader of its answer."""
        named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body or method in ("PUT", "POST"):
            named.setdefault("content-length", str(len(body)))
        connection = h11.Connection(h11.CLIENT)
        stream = await trio.open_tcp_stream(*self.address)
        async with stream:
            request = h11.Request(method=method, target=path, headers=list(named.items()))
            await stream.send_all(connection.send(request))
            if body:
                await stream.send_all(connection.send(h11.Data(data=body)))
            yield Reader(stream, connection)


class Reader:
    """Reads an answer as it comes."""

    def __init__(self, stream, connection):
        self._stream = stream
        self._connection = connection

    async def _next(self):
        while (event := self._connection.next_event()) is h11.NEED_DATA:
            self._connection.receive_data(await self._stream.receive_some())
        return event

    async def head(self):
        while not isinstance(event := await self._next(), h11.Response):
            pass
        return Answer(event.status_code, {name.decode(): value.decode() for name, value in event.headers}, b"")

    async def part(self):
        """The next bytes of the body; none at its end."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def answer(self):
        head, body = await self.head(), b""
        while part := await self.part():
            body += part
        return head._replace(body=body)


@asynccontextmanager
async def opened_web(node, origins=()):
    async with trio.open_nursery() as nursery:
        stopping = trio.Event()
        made = Web(await nursery.start(_listen, node, origins, stopping), stopping.set)
        yield made
        stopping.set()


async def _listen(node, origins, stopping, *, task_status):
    async with http_listener(node, ("127.0.0.1", 0), origins=origins) as address:
        task_status.started(address)
        await stopping.wait()


@pytest.fixture
async def web(running):
    async with opened_web(running.node) as made:
        yield made


@pytest.fixture
async def orders(client):
    return await client.create_feed("orders", partitions=2)
