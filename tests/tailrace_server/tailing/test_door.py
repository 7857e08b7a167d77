"""The door: who may come in, how many, and how it is shut."""

from __future__ import annotations

import pytest
import trio
from trio_websocket import ConnectionRejected, HandshakeError

from tailrace_server.tailing import door as door_module
from tailrace_server.tailing import ws_door

HANDSHAKE = (
    b"GET /feeds/orders HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_off_opens_nothing(running):
    async with ws_door(running.node.handle, None) as address:
        assert address is None


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "http://127.0.0.1:4780"])
async def test_pages_of_this_machine_may_come_in(open_page, feed, origin):
    async with open_page("/feeds/orders", origin=origin) as page:
        assert (await page.message())["type"] == "open"


@pytest.mark.parametrize("origin", ["http://example.org", "null"])
async def test_pages_of_others_may_not(open_page, feed, origin):
    with pytest.raises(ConnectionRejected) as caught:
        async with open_page("/feeds/orders", origin=origin):
            pass
    assert caught.value.status_code == 403
    assert f"pages of {origin} may not read".encode() in caught.value.body


async def test_pages_of_named_origins_may(running, feed, open_page):
    async with ws_door(running.node.handle, ("127.0.0.1", 0), {"https://app.example.org"}) as address:
        open_page.address = address
        async with open_page("/feeds/orders", origin="https://app.example.org") as page:
            assert (await page.message())["type"] == "open"
        with pytest.raises(HandshakeError):
            async with open_page("/feeds/orders", origin="https://example.org"):
                pass


async def test_a_subprotocol_that_is_not_spoken(open_page, feed):
    with pytest.raises(ConnectionRejected) as caught:
        async with open_page("/feeds/orders", subprotocols=["graphql-ws"]):
            pass
    assert caught.value.status_code == 400
    assert b"tailrace.json.v1" in caught.value.body


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\0" * 100,
        b"GET /feeds/orders HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /feeds/orders HTTP/1.1\r\nHost: a\xe0\r\n\r\n",
        HANDSHAKE.replace(b": 13", b": 12"),
        HANDSHAKE + b"\xff" * 100,
        HANDSHAKE + b"\x81\x05plain",  # a client's frame that is not masked
        HANDSHAKE + b"\x88\x80\0\0\0\0",  # a close at once
        HANDSHAKE[:-10],
        b"GET /" + b"a" * 100_000,
    ],
    ids=range(10),
)
async def test_garbage_ends_its_own_connection_soon(open_page, feed, garbage):
    stream = await trio.open_tcp_stream(*open_page.address)
    async with stream:
        try:
            await stream.send_all(garbage)
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    async with open_page("/feeds/orders") as page:
        assert (await page.message())["type"] == "open"


async def test_a_handshake_that_does_not_come_is_not_waited_for(open_page, monkeypatch):
    monkeypatch.setattr(door_module, "HANDSHAKE_SECONDS_MAX", 0.05)
    stream = await trio.open_tcp_stream(*open_page.address)
    async with stream:
        await stream.send_all(HANDSHAKE[:-4])
        assert await stream.receive_some() == b""


async def test_connections_are_bounded(running, feed, open_page, monkeypatch):
    monkeypatch.setattr(door_module, "CONNECTIONS_MAX", 1)
    async with ws_door(running.node.handle, ("127.0.0.1", 0)) as address:
        open_page.address = address
        async with open_page("/feeds/orders") as page:
            await page.of_type("open")
            with pytest.raises(HandshakeError):
                async with open_page("/feeds/orders"):
                    pass


async def test_a_door_that_is_shut_says_goodbye(running, feed, open_page, nursery):
    shut = trio.Event()

    async def serve(*, task_status):
        async with ws_door(running.node.handle, ("127.0.0.1", 0)) as address:
            task_status.started(address)
            await shut.wait()

    open_page.address = await nursery.start(serve)
    async with open_page("/feeds/orders") as page:
        await page.of_type("open")
        shut.set()
        await page.rest()
        assert (page.ws.closed.code, page.ws.closed.reason) == (1001, "the node is stopping")


async def test_a_door_is_shut_in_the_face_of_who_does_not_read(running, feed, open_page, ended):
    async with feed.writer() as writer:
        for number in range(300):
            await writer.put(b"%06d" % number, b"v" * 65_536)
    async with ws_door(running.node.handle, ("127.0.0.1", 0)) as address:
        stream = await trio.open_tcp_stream(*address)
        await stream.send_all(HANDSHAKE)
        await ended(lambda: any(c.rounds.window_full for c in running.node.connections))
    await stream.aclose()
