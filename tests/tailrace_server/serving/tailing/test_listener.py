"""The door: who may come in, how many, and how it is shut."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import ConnectionRejected

from tailrace_server.serving.tailing import listener as door_module
from tailrace_server.serving.tailing import ws_listener


async def test_off_opens_nothing(running):
    async with ws_listener(running.node.handle, running.node, None) as address:
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
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0), {"https://app.example.org"}) as address:
        open_page.address = address
        async with open_page("/feeds/orders", origin="https://app.example.org") as page:
            assert (await page.message())["type"] == "open"
        with pytest.raises(ConnectionRejected):
            async with open_page("/feeds/orders", origin="https://example.org"):
                pass


@pytest.mark.parametrize("origin", [b"", b"Origin: http://evil.example\r\n", b"Origin: http://localhost\r\n"])
async def test_a_name_that_is_not_the_nodes_is_turned_away(open_page, handshake, feed, origin):
    """Whatever the origin is: a page whose name resolves to this node comes with that name."""
    asked = handshake.replace(b"Host: 127.0.0.1", b"Host: evil.example:4790")[:-2] + origin + b"\r\n"
    async with await open_page.raw(asked) as stream:
        answer = b""
        while b"--allow-host evil.example" not in answer:
            answer += await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 421")


async def test_names_of_a_proxy_may_be_allowed(running, handshake, feed):
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0), hosts={"feeds.example"}) as address:
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            await stream.send_all(handshake.replace(b"Host: 127.0.0.1", b"Host: Feeds.example"))
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 101")


async def test_a_subprotocol_that_is_not_spoken(open_page, feed):
    with pytest.raises(ConnectionRejected) as caught:
        async with open_page("/feeds/orders", subprotocols=["graphql-ws"]):
            pass
    assert caught.value.status_code == 400
    assert b"tailrace.json.v1" in caught.value.body


@pytest.mark.parametrize(
    "spoil",
    [
        lambda handshake: b"",
        lambda handshake: b"\0" * 100,
        lambda handshake: b"GET /feeds/orders HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        lambda handshake: handshake.replace(b"Host: 127.0.0.1", b"Host: a\xe0"),
        lambda handshake: handshake.replace(b": 13", b": 12"),
        lambda handshake: handshake + b"\xff" * 100,
        lambda handshake: handshake + b"\x81\x05plain",  # a client's frame that is not masked
        lambda handshake: handshake + b"\x88\x80\0\0\0\0",  # a close at once
        lambda handshake: handshake[:-10],
        lambda handshake: b"GET /" + b"a" * 100_000,
    ],
)
async def test_garbage_ends_its_own_connection_soon(open_page, handshake, feed, spoil):
    stream = await trio.open_tcp_stream(*open_page.address)
    async with stream:
        try:
            await stream.send_all(spoil(handshake))
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass
    async with open_page("/feeds/orders") as page:
        assert (await page.message())["type"] == "open"


async def test_what_a_browser_sends(open_page, handshake, feed):
    headers = (
        b"Origin: http://127.0.0.1:4780\r\nSec-WebSocket-Protocol: tailrace.json.v1\r\n"
        b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nPragma: no-cache\r\n\r\n"
    )
    async with await open_page.raw(handshake[:-2] + headers) as stream:
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await stream.receive_some()
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 101")
    assert b"sec-websocket-protocol: tailrace.json.v1" in head
    assert b"sec-websocket-extensions" not in head


async def test_a_handshake_that_does_not_come_is_not_waited_for(open_page, handshake, monkeypatch):
    monkeypatch.setattr(door_module, "HANDSHAKE_SECONDS_MAX", 0.05)
    async with await open_page.raw(handshake[:-4]) as stream:
        assert await stream.receive_some() == b""


async def test_connections_are_bounded(running, feed, open_page):
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0), connections_max=1) as address:
        open_page.address = address
        async with open_page("/feeds/orders") as page:
            await page.of_type("open")
            async with await open_page.raw(b"") as another:
                assert await another.receive_some() == b""


async def test_a_door_that_is_shut_says_goodbye(running, feed, open_page, nursery):
    shut = trio.Event()

    async def serve(*, task_status):
        async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address:
            task_status.started(address)
            await shut.wait()

    open_page.address = await nursery.start(serve)
    async with open_page("/feeds/orders") as page:
        await page.of_type("open")
        shut.set()
        await page.rest()
        assert (page.ws.closed.code, page.ws.closed.reason) == (1001, "the node is stopping")


async def test_a_door_is_shut_in_the_face_of_who_does_not_read(running, handshake, fill_feed, feed, open_page, ended):
    await fill_feed(feed, 600)
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address:
        open_page.address = address
        stream = await open_page.raw(handshake)
        await ended(lambda: any(c.rounds.window.is_full for c in running.node.connections))
    await stream.aclose()


async def test_a_ping_that_crosses_the_close_of_the_node_ends_nothing(open_page, handshake, caplog):
    """The client would be cut off, perhaps before it has read why the node closes."""
    caplog.set_level("INFO")
    async with await open_page.raw(handshake.replace(b"/feeds/orders", b"/feeds/unknown")) as stream:
        received = b""
        while b"UnknownFeed: " not in received:
            received += await stream.receive_some()
        ping, close = b"\x89\x80" + bytes(4), b"\x88\x82" + bytes(4) + b"\x11\x34"
        await stream.send_all(ping + close)
        while await stream.receive_some():
            pass
    await wait_all_tasks_blocked()
    assert [message for message in caplog.messages if "was ended" in message] == []
