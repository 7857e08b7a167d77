"""Frames through a WebSocket: what hostile and slow clients can do, and what they cost."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter

import pytest
import trio
from tests.tailrace_server.raw_requests import PARTITION
from trio_websocket import ConnectionClosed, wrap_client_stream

import tailrace
from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Hello, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd, StreamRequest
from tailrace_server.serving.tailing import listener, ws_listener
from tailrace_server.serving.tailing.bounded_websocket import (
    EMPTY_PARTS_MAX,
    GREETING_BYTES_MAX,
    PARTS_PER_TURN,
    BoundedWebSocket,
)

FRAMES = "tailrace.frames.v1"
REQUEST = (
    b"GET /frames HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: tailrace.frames.v1\r\n%s\r\n"
)
MASK = b"\x00\x00\x00\x00"


@contextlib.asynccontextmanager
async def opened(address, headers=b""):
    """A connection that has asked for frames, and the head of the answer."""
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(REQUEST % headers)
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some()
        yield stream, head


@pytest.fixture
async def address(running):
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address:
        yield address


@contextlib.asynccontextmanager
async def tunnel(address):
    """A WebSocket for frames, of the library's client."""
    async with trio.open_nursery() as nursery:
        stream = await trio.open_tcp_stream(*address)
        ws = await wrap_client_stream(nursery, stream, "localhost", "/frames", subprotocols=[FRAMES])
        yield ws
        await stream.aclose()
        nursery.cancel_scope.cancel()


async def frames_until_the_end(ws):
    decoder, frames = FrameDecoder(), []
    with contextlib.suppress(ConnectionClosed):
        while True:
            frames += decoder.receive_data(await ws.get_message())
    return frames


async def answer(ws):
    decoder = FrameDecoder()
    while True:
        for frame in decoder.receive_data(await ws.get_message()):
            return frame


async def test_frames_may_be_cut_anywhere(address):
    async with tunnel(address) as ws:
        for byte in Hello(name="slow").encode():
            await ws.send_message(bytes([byte]))
            await ws.send_message(b"")
        assert (await answer(ws)).opcode is Opcode.HELLO_OK


async def test_compression_is_not_agreed_upon(address):
    async with opened(address, b"Sec-WebSocket-Extensions: permessage-deflate\r\n") as (_, head):
        assert head.startswith(b"HTTP/1.1 101")
        assert b"extensions" not in head.lower()


def close_code(data):
    """The code of the close frame at the end of what was received."""
    at = data.rindex(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4], "big")


async def rest_of(stream):
    found = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            found += data
    return found


@pytest.mark.parametrize(
    "frame",
    [
        b"\xc2\x81" + MASK + b"x",  # compressed
        b"\x82\x01x",  # not masked
        b"\x83\x80" + MASK,  # an unknown opcode
        b"\x89\xfe\x01\x00" + MASK,  # a long ping
        b"\x80\x80" + MASK,  # a continuation of nothing
        b"\x81\x81" + MASK + b"x",  # text
    ],
)
async def test_broken_frames_end_the_connection(address, running, frame):
    async with opened(address) as (stream, _):
        await stream.send_all(frame)
        await rest_of(stream)
    assert not any(connection.greeted for connection in running.node.connections)


async def test_a_message_that_is_too_long_is_refused_before_it_is_there(address):
    size = 64 * listener.MESSAGE_BYTES_MAX
    sent = 0
    async with opened(address) as (stream, _):
        await stream.send_all(b"\x82\xff" + size.to_bytes(8, "big") + MASK)
        with contextlib.suppress(trio.BrokenResourceError):
            while sent < size:
                await stream.send_all(bytes(64 * 1024))
                sent += 64 * 1024
    assert sent < size


async def test_a_message_before_hello_is_as_long_as_a_hello(address):
    async with opened(address) as (stream, _):
        await stream.send_all(b"\x82\xff" + (GREETING_BYTES_MAX + 1).to_bytes(8, "big") + MASK)
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(bytes(GREETING_BYTES_MAX + 1))
        assert close_code(await rest_of(stream)) == 1009


async def test_after_hello_a_message_may_be_long(address, client):
    feed = await client.create_feed("long", partitions=1)
    async with tailrace.connect(f"ws://127.0.0.1:{address[1]}") as through:
        await through.feed("long").put(b"k", bytes(900_000))
    assert len((await feed.get(b"k")).value) == 900_000


async def test_empty_parts_of_a_message_are_not_kept(address):
    """The library keeps an entry for each of them, for ever."""
    async with opened(address) as (stream, _):
        await stream.send_all(b"\x02\x80" + MASK + (b"\x00\x80" + MASK) * EMPTY_PARTS_MAX)
        assert close_code(await rest_of(stream)) == 1008


async def test_small_parts_of_a_message_are_joined(address, monkeypatch):
    made = []

    class Noted(BoundedWebSocket):
        def __init__(self, *args, **options):
            made.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr(listener, "BoundedWebSocket", Noted)
    hello = Hello(name="x" * 2_000).encode()
    async with opened(address) as (stream, _):
        first, *rest = [b"\x81" + MASK + bytes([byte]) for byte in hello]
        await stream.send_all(b"\x02" + first + b"".join(b"\x00" + each for each in rest))
        while made[0]._message_size < len(hello):
            await trio.lowlevel.checkpoint()
        assert len(made[0]._message_parts) == 1
        await stream.send_all(b"\x80\x80" + MASK)
        head = await stream.receive_some()
        assert head[0] == 0x82
        [frame] = FrameDecoder().receive_data(head[4:] if head[1] == 126 else head[2:])
        assert frame.opcode is Opcode.HELLO_OK


@pytest.mark.parametrize("flood", [b"\x00\x81" + MASK + b"x", b"\x8a\x80" + MASK])
async def test_others_have_their_turns_beside_a_flood_of_small_frames(address, monkeypatch, flood):
    """A read of 64 KiB has some 10,000 of them, which take 90 ms."""
    passes = []
    take_turns = BoundedWebSocket._take_turns

    async def noted(self):
        await take_turns(self)
        passes.append(turns[0])

    turns = [0]
    monkeypatch.setattr(BoundedWebSocket, "_take_turns", noted)

    async def count(scope):
        with scope:
            while True:
                turns[0] += 1
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery, opened(address) as (stream, _):
        scope = trio.CancelScope()
        nursery.start_soon(count, scope)
        await stream.send_all(b"\x02\x80" + MASK + flood * 5_000)
        while len(passes) < 4_000:
            await trio.lowlevel.checkpoint()
        scope.cancel()
    assert max(Counter(passes[:4_000]).values()) <= 2 * PARTS_PER_TURN


async def test_a_slow_hello_ends(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, hello_timeout_s=0.2)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address, tunnel(address) as ws:
        [frame] = await frames_until_the_end(ws)
        assert "no HELLO within" in str(decode_error(frame.body))


async def test_the_nodes_bounds_of_connections_hold(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, greetings_max=2)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with (
        ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address,
        tunnel(address) as oldest,
        tunnel(address),
        tunnel(address),
    ):
        [frame] = await frames_until_the_end(oldest)
        assert isinstance(decode_error(frame.body), tailrace.Overloaded)


async def test_pings_of_a_client_that_does_not_read_stop_it_alone(address, client):
    flood = b"\x89\xfd" + MASK + bytes(125)
    stuck = False
    async with opened(address) as (stream, _):
        while not stuck:
            with trio.move_on_after(0.5) as scope:
                await stream.send_all(flood * 1_000)
            stuck = scope.cancelled_caught
        assert await client.feeds() == []


async def test_a_page_of_another_site_has_no_frames(address):
    async with opened(address, b"Origin: http://evil.example\r\n") as (_, head):
        assert head.startswith(b"HTTP/1.1 403")


async def test_a_client_that_leaves_takes_its_connection_along(address, running, ended):
    async with tunnel(address) as ws:
        await ws.send_message(Hello(name="leaves").encode())
        await answer(ws)
        assert len(running.node.connections) == 1
    await ended(lambda: not running.node.connections)


async def test_the_node_stops_while_a_tunnel_is_open(running, feed_id, nursery):
    """Its streams end as those of other connections, and then the WebSocket is closed."""
    stops = trio.Event()

    async def listening(task_status):
        async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address:
            task_status.started(address)
            await stops.wait()

    address = await nursery.start(listening)
    async with tunnel(address) as ws:
        await ws.send_message(Hello(name="stays").encode())
        await answer(ws)
        request = StreamRequest(feed_id, PARTITION, FailoverLog(), 0, 0, 0, 0, None, Level.DISK)
        await ws.send_message(encode_json(Opcode.STREAM_REQUEST, request.to_json(), 7))
        assert (await answer(ws)).opcode is Opcode.STREAM_OK
        stops.set()
        *_, last = await frames_until_the_end(ws)
        assert (last.opcode, last.id) == (Opcode.STREAM_END, 7)
        assert StreamEnd.decode(last.body).reason is EndReason.DRAINING
        assert ws.closed.code in (1000, 1001)
