"""Tokens over HTTP and WebSocket."""

import contextlib
import json
from contextlib import AsyncExitStack

import pytest
import trio
from trio_websocket import open_websocket

import tailrace
from tailrace_server.serving import console
from tailrace_server.serving.addresses import WRONG_TOKENS_FREE
from tailrace_server.serving.bearer import bearer_of, token_of_websocket
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.tailing import session, ws_listener

UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PATHS = ["/api/status", "/metrics"]


async def get(address, path, token=None, headers="Connection: close\r\n"):
    """The status code and the body of an answer."""
    authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
    head = f"GET {path} HTTP/1.1\r\nHost: {address[0]}\r\n{authorization}{headers}\r\n"
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(head.encode())
        answer = b""
        while data := await stream.receive_some():
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


@pytest.fixture
async def http(secured):
    async with http_listener(secured.running.node, ("127.0.0.1", 0)) as address:
        yield address


@pytest.mark.parametrize("path", PATHS)
async def test_every_page_needs_a_token(secured, http, path):
    assert await get(http, path) == (
        401,
        "this node requires a token: give one with token=, --token or TAILRACE_TOKEN\n",
    )
    assert (await get(http, path, "tr1_wrong"))[0] == 401
    assert (await get(http, path, await secured.token("reader", "read")))[0] == 200


async def test_the_page_needs_none(http):
    assert (await get(http, "/"))[0] == 200


async def test_a_probe_needs_none(http):
    assert await get(http, "/healthz") == (200, '{"healthy":true,"failure":null}')
    assert await get(http, "/readyz") == (200, '{"ready":true,"role":"leader","failure":null}')


async def test_status_shows_only_the_feeds_of_the_token(secured, http):
    token = await secured.token("shop", "read", feeds=["orders"])
    _, body = await get(http, "/api/status", token)
    assert [feed["name"] for feed in json.loads(body)["feeds"]] == ["orders"]
    code, body = await get(http, "/metrics", token)
    assert (code, "told of all feeds" in body) == (403, True)


async def test_a_token_in_the_url_does_not_count(secured, http):
    token = await secured.token("reader", "read")
    assert (await get(http, f"/api/status?token={token}&access_token={token}"))[0] == 401


@pytest.fixture
async def ws(secured):
    node = secured.running.node
    async with ws_listener(node.handle, node, ("127.0.0.1", 0)) as address:
        yield address


async def first_message(ws, path="/feeds/orders", **options):
    async with open_websocket(*ws, path, use_ssl=False, **options) as socket:
        return json.loads(await socket.get_message())


async def test_a_websocket_needs_a_token(ws):
    assert (await get(ws, "/feeds/orders", headers=UPGRADE))[0] == 401
    assert (await get(ws, "/feeds/orders", "tr1_wrong", headers=UPGRADE))[0] == 401


async def test_requests_without_a_token_are_no_wrong_tokens(secured, http, ws):
    """A page of the console begins without one, and so do probes: else their address would have to wait."""
    wrong = secured.running.node.services.authority._wrong
    for _ in range(WRONG_TOKENS_FREE + 1):
        for path in PATHS:
            assert (await get(http, path))[0] == 401
        assert (await get(ws, "/feeds/orders", headers=UPGRADE))[0] == 401
        with pytest.raises(tailrace.Forbidden):
            async with secured.connect():
                pass
    assert len(wrong) == 0
    assert (await get(http, PATHS[0], "tr1_wrong"))[0] == 401
    assert len(wrong) == 1


async def test_a_websocket_with_the_token_in_a_header(secured, ws):
    async with secured.connect(secured.admin) as client:
        await client.feed("orders").put(b"k", b"v")
    token = await secured.token("reader", "read")
    message = await first_message(ws, extra_headers=[(b"authorization", f"Bearer {token}".encode())])
    assert message["type"] != "error"


async def test_a_page_of_a_browser_offers_the_token_as_a_subprotocol(secured, ws):
    async with secured.connect(secured.admin) as client:
        await client.feed("orders").put(b"k", b"v")
    token = await secured.token("reader", "read")
    offered = ["tailrace.json.v1", f"tailrace.token.{token}"]
    async with open_websocket(*ws, "/feeds/orders", use_ssl=False, subprotocols=offered) as socket:
        assert socket.subprotocol == "tailrace.json.v1"
        assert json.loads(await socket.get_message())["type"] != "error"


async def test_a_page_sends_the_token_in_its_first_message(secured, ws):
    token = await secured.token("reader", "read", feeds=["orders"])
    for path, feed in (("/feeds/orders?token=message", "orders"), ("/feeds/payments?token=message", "payments")):
        async with open_websocket(*ws, path, use_ssl=False) as socket:
            await socket.send_message(json.dumps({"token": token}))
            message = json.loads(await socket.get_message())
        assert message["type"] == ("open" if feed == "orders" else "error")


async def test_the_token_comes_before_the_start(secured, ws):
    token = await secured.token("reader", "read")
    async with open_websocket(*ws, "/feeds/orders?since=message&token=message", use_ssl=False) as socket:
        await socket.send_message(json.dumps({"token": token}))
        await socket.send_message(json.dumps({"since": "now"}))
        assert json.loads(await socket.get_message())["type"] == "open"


async def test_a_second_message_may_be_long_and_is_read_once_the_token_counts(secured, ws):
    token = await secured.token("reader", "read")
    async with open_websocket(*ws, "/feeds/orders?since=message&token=message", use_ssl=False) as socket:
        await socket.send_message(json.dumps({"token": token}))
        await socket.send_message(json.dumps({"since": "x" * 500_000}))
        answer = json.loads(await socket.get_message())
    assert (answer["type"], answer["error"]) == ("error", "BadPosition")


async def test_a_first_message_of_a_stranger_is_not_taken_in_whole(ws):
    answer, size = b"", 500_000
    async with await trio.open_tcp_stream(*ws) as stream:
        await stream.send_all(f"GET /feeds/orders?token=message HTTP/1.1\r\nHost: {ws[0]}\r\n{UPGRADE}\r\n".encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(b"\x81\xff" + size.to_bytes(8, "big") + bytes(4) + b"x" * size)
            while data := await stream.receive_some():
                answer += data
    assert b"BadRequest" not in answer  # it would have been looked at


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ('{"token": "tr1_wrong"}', "Forbidden"),
        ('{"since": "now"}', "BadRequest"),
        ("[", "BadRequest"),
        ('{"token": 1}', "BadRequest"),
        (json.dumps({"token": "x" * 5_000}), "BadRequest"),
    ],
)
async def test_a_first_message_without_a_token_that_counts(ws, message, error):
    async with open_websocket(*ws, "/feeds/orders?token=message", use_ssl=False) as socket:
        await socket.send_message(message)
        answer = json.loads(await socket.get_message())
    assert (answer["type"], answer["error"]) == ("error", error)
    assert "tr1_wrong" not in answer["message"]


async def test_a_token_in_the_url_of_a_websocket_does_not_count(secured, ws):
    token = await secured.token("reader", "read")
    assert (await get(ws, f"/feeds/orders?token={token}", headers=UPGRADE))[0] == 401


async def test_a_page_that_sends_no_token_ends(ws, monkeypatch):
    monkeypatch.setattr(session, "FIRST_MESSAGE_SECONDS_MAX", 0.01)
    async with open_websocket(*ws, "/feeds/orders?token=message", use_ssl=False) as socket:
        message = json.loads(await socket.get_message())
    assert "none came within" in message["message"]


async def test_a_websocket_of_another_feed_is_refused(secured, ws):
    token = await secured.token("shop", "read", feeds=["orders"])
    header = [(b"authorization", f"Bearer {token}".encode())]
    message = await first_message(ws, "/feeds/payments", extra_headers=header)
    assert (message["type"], message["error"]) == ("error", "Forbidden")


async def test_a_revoked_token_ends_its_websocket(secured, ws):
    async with secured.connect(secured.admin) as client:
        await client.feed("orders").put(b"k", b"v")
        token = await secured.token("reader", "read")
        header = [(b"authorization", f"Bearer {token}".encode())]
        async with open_websocket(*ws, "/feeds/orders", use_ssl=False, extra_headers=header) as socket:
            assert json.loads(await socket.get_message())["type"] != "error"
            await client.revoke_token("reader")
            while (message := json.loads(await socket.get_message()))["type"] != "error":
                pass
    assert message["error"] == tailrace.Forbidden.__name__


@pytest.mark.parametrize(
    ("values", "token"),
    [
        ([], None),
        (["Bearer abc"], "abc"),
        (["bearer abc"], "abc"),
        (["Basic abc"], None),
        (["Bearer "], None),
        (["Bearer a", "Bearer b"], None),
    ],
)
def test_the_token_of_a_header(values, token):
    assert bearer_of(values) == token
    assert token_of_websocket(values, ()) == token


def test_two_tokens_of_a_page_are_none():
    assert token_of_websocket((), ("tailrace.json.v1", "tailrace.token.a")) == "a"
    assert token_of_websocket((), ("tailrace.token.a", "tailrace.token.b")) is None


async def silent_ones(stack, address, count):
    return [await stack.enter_async_context(await trio.open_tcp_stream(*address)) for _ in range(count)]


async def test_silent_peers_of_http_end_none_with_a_token(secured, monkeypatch):
    monkeypatch.setattr(console.listener, "CONNECTIONS_MAX", 3)
    token = await secured.token("reader", "read")
    request = f"GET /api/status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    async with http_listener(secured.running.node, ("127.0.0.1", 0)) as address, AsyncExitStack() as stack:
        [known] = await silent_ones(stack, address, 1)
        await known.send_all(request)
        assert (await known.receive_some()).startswith(b"HTTP/1.1 200")
        silent = await silent_ones(stack, address, 4)
        assert [await stream.receive_some() for stream in silent[:2]] == [b"", b""]
        assert (await get(address, "/healthz"))[0] == 200
        await known.send_all(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        while await known.receive_some():
            pass


@pytest.mark.parametrize("way", ["header", "message", "frames"])
async def test_silent_peers_of_websocket_end_none_with_a_token(secured, way):
    token = await secured.token("reader", "read")
    node = secured.running.node
    opened = ws_listener(node.handle, node, ("127.0.0.1", 0), connections_max=3)
    async with opened as address, AsyncExitStack() as stack:
        if way == "frames":
            url = f"ws://127.0.0.1:{address[1]}"
            client = await stack.enter_async_context(tailrace.connect(url, token=token, retry_for=60))
            [connection] = node.connections
        else:
            path = "/feeds/orders" + ("?token=message" if way == "message" else "")
            header = [(b"authorization", f"Bearer {token}".encode())] if way == "header" else []
            opened = open_websocket(*address, path, use_ssl=False, extra_headers=header)
            socket = await stack.enter_async_context(opened)
            if way == "message":
                await socket.send_message(json.dumps({"token": token}))
            assert json.loads(await socket.get_message())["type"] == "open"
        silent = await silent_ones(stack, address, 4)
        assert [await stream.receive_some() for stream in silent[:2]] == [b"", b""]
        if way == "frames":
            assert [info.name for info in await client.feeds()] == ["orders", "payments"]
            assert list(node.connections) == [connection]
        else:
            await socket.ping()
