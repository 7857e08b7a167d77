"""The four doors through which frames come: plain and by TLS, each also through WebSocket."""

from contextlib import asynccontextmanager

import trio
from tests.conftest import RawClient
from trio_websocket import ConnectionClosed, wrap_client_stream

from tailrace.wire.messages import Hello
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving.tailing import ws_listener
from tailrace_server.serving.tailing.tunnel import MESSAGE_BYTES, SUBPROTOCOL

DOORS = ("frames", "frames-tls", "websocket", "websocket-tls")


class Tunnel:
    """The bytes of frames through a WebSocket, as a stream."""

    def __init__(self, ws):
        self._ws = ws

    async def send_all(self, data):
        for start in range(0, len(data), MESSAGE_BYTES):
            await self._ws.send_message(data[start : start + MESSAGE_BYTES])

    async def receive_some(self):
        """The next bytes; b"" at the end."""
        try:
            return await self._ws.get_message()
        except ConnectionClosed:
            return b""


class Door:
    """One listener of a node, for connections that say anything at all."""

    def __init__(self, node, address, tls, through_websocket):
        self.node = node
        self._address, self._tls, self._through_websocket = address, tls, through_websocket

    @asynccontextmanager
    async def opened(self):
        """A `RawClient` that has said nothing."""
        async with trio.open_nursery() as nursery:
            stream = await trio.open_tcp_stream(*self._address)
            if self._tls is not None:
                stream = trio.SSLStream(stream, self._tls, server_hostname="localhost", https_compatible=True)
                await stream.do_handshake()
            if self._through_websocket:
                ws = await wrap_client_stream(nursery, stream, "localhost", "/frames", subprotocols=[SUBPROTOCOL])
                yield RawClient(Tunnel(ws))
            else:
                yield RawClient(stream)
            await trio.aclose_forcefully(stream)
            nursery.cancel_scope.cancel()

    @asynccontextmanager
    async def greeted(self, token):
        """A `RawClient` that has said hello with a token."""
        async with self.opened() as connection:
            await connection.send(Hello(token=token).encode())
            frame = await connection.receive()
            assert frame.opcode is Opcode.HELLO_OK, bytes(frame.body)
            yield connection


@asynccontextmanager
async def opened_door(kind, node, authority):
    """The `Door` of this kind to ``node``, which has certificates of ``authority`` if the kind speaks TLS."""
    speaks_tls = kind.endswith("-tls")
    tls = authority.client() if speaks_tls else None
    if kind.startswith("frames"):
        yield Door(node, node.listening, tls, False)
        return
    contexts = node.host.tls.for_browsers if speaks_tls else None
    async with ws_listener(node.handle, node, ("127.0.0.1", 0), tls=contexts) as address:
        yield Door(node, address, tls, True)
