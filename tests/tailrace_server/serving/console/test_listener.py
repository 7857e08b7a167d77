"""The HTTP door over real sockets."""

from __future__ import annotations

import json

import pytest
import trio

from tailrace_server.serving.access import Access
from tailrace_server.serving.console import http_listener
from tailrace_server.serving.console import listener as door_module
from tailrace_server.state.principal import OPEN

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


class NoBoard:
    async def run(self):
        pass


class StatusOnly:
    board = NoBoard()

    def __init__(self, padding=0):
        self._padding = "x" * padding

    def health(self):
        return {"healthy": True, "failure": None, "padding": self._padding}

    def identify(self, token, peer, certificate=None):
        return Access(OPEN, ())

    def pause_s(self, peer, token):
        return 0.0

    async def status_body(self, access):
        return json.dumps(self.health()).encode()


@pytest.fixture
async def http_address():
    async with http_listener(StatusOnly(), ("127.0.0.1", 0)) as address:
        yield address


async def read_all(stream):
    data = b""
    try:
        while part := await stream.receive_some():
            data += part
    except trio.BrokenResourceError:
        pass
    return data


async def ask(address, request):
    """Everything that comes back until the door closes."""
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        await stream.send_all(request)
        return await read_all(stream)


async def test_off_opens_nothing():
    async with http_listener(StatusOnly(), None) as address:
        assert address is None


async def test_a_running_node_is_healthy_and_tells_its_status(running):
    async with http_listener(running.node, ("127.0.0.1", 0)) as address:
        assert (await ask(address, REQUEST.replace(b"1.1", b"1.0"))).endswith(b'"failure":null}')
        answer = await ask(address, b"GET /api/status HTTP/1.0\r\n\r\n")
    status = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert status["node_id"] == running.node.identity.node_id.hex()
    assert status["healthy"] is True


async def test_a_name_that_is_not_the_nodes_is_told_nothing(running):
    """DNS rebinding: the browser takes the node for the page's own server."""
    request = b"GET /api/status HTTP/1.1\r\nHost: evil.example:4780\r\nConnection: close\r\n\r\n"
    async with http_listener(running.node, ("127.0.0.1", 0), {"app.example"}) as address:
        refused = await ask(address, request)
        answered = await ask(address, request.replace(b"evil", b"app"))
    assert refused.startswith(b"HTTP/1.1 421")
    assert running.node.identity.node_id.hex().encode() not in refused
    assert answered.startswith(b"HTTP/1.1 200")
    assert running.node.identity.node_id.hex().encode() in answered


@pytest.mark.parametrize(
    ("target", "code"), [("/healthz?%zz=%", 200), ("/healthz%zz", 404), ("/%", 404), ("/%ff", 404)]
)
async def test_broken_escapes_name_nothing(http_address, target, code):
    """No path that is asked for here has an escape, and no query is read."""
    answer = await ask(http_address, REQUEST.replace(b"/healthz", target.encode()).replace(b"1.1", b"1.0"))
    assert answer.startswith(b"HTTP/1.1 %d " % code)


async def test_a_connection_serves_many_requests(http_address):
    stream = await trio.open_tcp_stream(*http_address)
    async with stream:
        for _ in range(3):
            await stream.send_all(REQUEST)
            answer = b""
            while not answer.endswith(b"}"):
                answer += await stream.receive_some()
            assert answer.startswith(b"HTTP/1.1 200")


async def test_a_client_that_has_closed_its_side_is_answered(http_address):
    stream = await trio.open_tcp_stream(*http_address)
    async with stream:
        await stream.send_all(REQUEST)
        await stream.send_eof()
        assert (await read_all(stream)).endswith(b"}")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 100,
        b"GET / nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET /" + b"a" * 20_000,
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_garbage_ends_its_own_connection_soon(http_address, garbage):
    stream = await trio.open_tcp_stream(*http_address)
    async with stream:
        await stream.send_all(garbage)
        await stream.send_eof()
        await read_all(stream)
    assert (await ask(http_address, REQUEST.replace(b"1.1", b"1.0"))).endswith(b"}")


async def test_http2_is_not_spoken(http_address):
    """Its requests share a connection, and one that takes no answer would keep its place for ever."""
    stream = await trio.open_tcp_stream(*http_address)
    async with stream:
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert (await read_all(stream)).startswith(b"HTTP/1.1 4")


async def test_an_offer_of_http2_is_ignored(http_address):
    offer = b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings, close\r\n\r\n"
    answer = await ask(http_address, REQUEST.removesuffix(b"\r\n") + offer)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"}")


async def test_a_request_that_does_not_come_to_its_end_is_dropped(monkeypatch):
    monkeypatch.setattr(door_module, "IDLE_SECONDS_MAX", 0.1)
    async with http_listener(StatusOnly(), ("127.0.0.1", 0)) as address:
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost:")
            assert await read_all(stream) == b""


async def test_a_body_is_not_taken_for_ever(monkeypatch):
    monkeypatch.setattr(door_module, "READ_SECONDS_MAX", 0.1)
    async with http_listener(StatusOnly(), ("127.0.0.1", 0)) as address:
        stream = await trio.open_tcp_stream(*address)
        async with stream:
            await stream.send_all(b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nhalf")
            await read_all(stream)


async def unread_answer(address):
    """A connection whose answer is longer than what the sockets hold, and which has not read it yet."""
    stream = await trio.open_tcp_stream(*address)
    await stream.send_all(b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await stream.receive_some(100)
    return stream


async def test_a_client_that_does_not_read_is_dropped(monkeypatch):
    monkeypatch.setattr(door_module, "SEND_SECONDS_MAX", 0.1)
    send_all, dropped = door_module._BoundedStream.send_all, trio.Event()

    async def watched(connection, data):
        try:
            await send_all(connection, data)
        except trio.BrokenResourceError:
            dropped.set()
            raise

    monkeypatch.setattr(door_module._BoundedStream, "send_all", watched)
    async with http_listener(StatusOnly(20_000_000), ("127.0.0.1", 0)) as address:
        stream = await unread_answer(address)
        async with stream:
            await dropped.wait()
            assert len(await read_all(stream)) < 20_000_000


@pytest.mark.slow
async def test_leaving_does_not_wait_for_who_does_not_read(monkeypatch):
    monkeypatch.setattr(door_module, "SEND_SECONDS_MAX", 600.0)
    with trio.fail_after(60):  # far below what a send may take
        async with http_listener(StatusOnly(20_000_000), ("127.0.0.1", 0)) as address:
            stream = await unread_answer(address)
    await stream.aclose()


async def test_leaving_lets_an_answer_out_that_is_on_its_way(monkeypatch):
    monkeypatch.setattr(door_module, "GRACE_SECONDS", 60.0)
    async with trio.open_nursery() as nursery, http_listener(StatusOnly(8_000_000), ("127.0.0.1", 0)) as address:
        stream = await unread_answer(address)
        received = []

        async def read():
            received.append(await read_all(stream))

        nursery.start_soon(read)
        # The door is shut by now.
    await stream.aclose()
    assert len(received[0]) > 7_990_000
