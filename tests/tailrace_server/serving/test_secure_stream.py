"""HTTP and WebSocket over TLS, and clients that do not speak it there."""

import json
import ssl

import pytest
import trio
from tests.tailrace_server.serving.console.test_listener import REQUEST, StatusOnly, ask, read_all
from trio_websocket import connect_websocket_url

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
