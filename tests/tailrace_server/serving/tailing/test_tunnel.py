"""Frames through a WebSocket: what hostile and slow clients can do, and what they cost."""

from __future__ import annotations

import contextlib
import dataclasses

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
