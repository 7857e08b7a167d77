"""HTTP and WebSocket over TLS, and clients that do not speak it there."""

import contextlib
import json
import ssl

import pytest
import trio
from tests.tailrace.tls.key_updates import ClientRecords, log_keys
from tests.tailrace_server.serving.console.test_listener import REQUEST, StatusOnly, ask, read_all
from trio_websocket import connect_websocket_url

from tailrace.tls.engine import CONTROL_BYTES_MAX
from tailrace_server.host.tls import NodeTls
from tailrace_server.serving import secure_stream
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.tailing import ws_listener


@pytest.fixture
def tls(authority):
    return NodeTls(authority.node()).for_browsers


@pytest.fixture
async def https(tls):
    async with http_listener(StatusOnly(), ("127.0.0.1", 0), tls=tls) as address:
        yield address


async def ask_secure(address, request, context):
    stream = trio.SSLStream(
        await trio.open_tcp_stream(*address), context, server_hostname="127.0.0.1", https_compatible=True
    )
    async with stream:
        await stream.send_all(request)
        return await read_all(stream)


async def test_https(https, authority):
    answer = await ask_secure(https, REQUEST.replace(b"1.1", b"1.0"), authority.client())
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"healthy" in answer


async def test_a_plain_client_is_told(https):
    answer = await ask(https, REQUEST)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"use https://" in answer


async def test_a_silent_client_is_closed_in_time(tls, autojump_clock):
    async with http_listener(StatusOnly(), ("127.0.0.1", 0), tls=tls) as address:
        began_at = trio.current_time()
        assert await ask(address, b"\x16\x03\x01") == b""
        assert trio.current_time() - began_at == pytest.approx(secure_stream.HANDSHAKE_SECONDS_MAX)


async def test_garbage_and_an_unknown_authority_end_one_connection(https, authority):
    await ask(https, b"\x16\x03\x01\x00\x05abcde")
    with pytest.raises(trio.BrokenResourceError):
        await ask_secure(https, REQUEST, ssl.create_default_context())
    assert b"200" in await ask_secure(https, REQUEST.replace(b"1.1", b"1.0"), authority.client())


async def test_wss(running, tls, authority, feed):
    await feed.put(b"k", b"v")
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0), tls=tls) as address:
        url = f"wss://127.0.0.1:{address[1]}/feeds/{feed.name}?since=beginning"
        async with trio.open_nursery() as nursery:
            ws = await connect_websocket_url(nursery, url, authority.client(), subprotocols=["tailrace.json.v1"])
            while (message := json.loads(await ws.get_message()))["type"] != "mutations":
                pass
            assert message["rows"][0]["key"] == "k"
            await ws.aclose()
            nursery.cancel_scope.cancel()


class ClientOfHttp:
    """A client of TLS over a plain stream, which can encrypt what no library sends."""

    def __init__(self, stream, authority, path):
        self.stream = stream
        self._path = path
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = log_keys(authority.client(), path)
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    async def shake(self):
        """Shakes hands, and returns the records that this client can send."""
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.stream.send_all(self._outgoing.read())
                self._incoming.write(await self.stream.receive_some())
        await self.stream.send_all(self._outgoing.read())
        return ClientRecords(self._object.cipher()[0], self._path)

    async def answer(self):
        """What the node says, up to the end of the connection."""
        with contextlib.suppress(trio.BrokenResourceError):
            while data := await self.stream.receive_some():
                self._incoming.write(data)
        self._incoming.write_eof()
        return self._object.read(1 << 20)


async def test_a_flood_of_key_updates_ends_a_connection_of_http(https, authority, tmp_path):
    """Its client reads the answers, so that the node could read without end."""
    stream = await trio.open_tcp_stream(*https)
    async with stream, trio.open_nursery() as nursery:
        client = ClientOfHttp(stream, authority, tmp_path / "keys")
        records = await client.shake()

        async def read():
            with contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass

        async def flood():
            sent = 0
            while sent < 40 * CONTROL_BYTES_MAX:
                updates = b"".join(records.key_update() for _ in range(100))
                await stream.send_all(updates)
                sent += len(updates)

        nursery.start_soon(read)
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            await flood()
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_key_updates_beside_data_are_fine(https, authority, tmp_path):
    """However many there are in all: here three times those that end a connection without data."""
    stream = await trio.open_tcp_stream(*https)
    async with stream:
        client = ClientOfHttp(stream, authority, tmp_path / "keys")
        records = await client.shake()
        await stream.send_all(records.data(b"GET /healthz HTTP/1.0\r\nx-padding: "))
        for _ in range(3 * CONTROL_BYTES_MAX // 27):
            await stream.send_all(records.key_update() + records.data(b"x"))
        await stream.send_all(records.data(b"\r\n\r\n"))
        assert b"HTTP/1.1 200" in await client.answer()
