"""Connections over real sockets. After every kind of bad input the node goes on serving others."""

import dataclasses
from contextlib import AsyncExitStack

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import expect_end

import tailrace
from tailrace.errors import Overloaded, ProtocolError, TooLarge
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import HELLO_BODY_BYTES_MAX, encode_frame, frame_header
from tailrace.wire.messages import Hello, HelloOk
from tailrace.wire.opcodes import Opcode

pytestmark = pytest.mark.usefixtures("others_are_served")


# What ends a connection


async def test_garbage(raw):
    async with raw() as connection:
        await connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await expect_end(connection, ProtocolError, "this is not a frame")


async def test_garbage_after_a_hello(greeted):
    await greeted.send(bytes(range(256)) * 1000)
    await expect_end(greeted, ProtocolError, "does not match its check")


async def test_a_wrong_check(greeted):
    frame = bytearray(encode_frame(Opcode.LIST_FEEDS, b"{}"))
    frame[15] ^= 1
    await greeted.send(frame)
    await expect_end(greeted, ProtocolError, "does not match its check")


async def test_an_unknown_opcode(greeted):
    await greeted.send(frame_header(0x7E, 0))
    await expect_end(greeted, ProtocolError, "unknown opcode 0x7e")


@pytest.mark.parametrize("opcode", [Opcode.HELLO_OK, Opcode.WRITTEN, Opcode.BLOCK, Opcode.RESULT])
async def test_what_only_a_server_says(greeted, opcode):
    await greeted.send(encode_frame(opcode))
    await expect_end(greeted, ProtocolError, f"{opcode.name} is not for a server")


async def test_a_wrong_version(raw):
    async with raw() as connection:
        await connection.send(encode_json(Opcode.HELLO, {"versions": [7, 8]}))
        await expect_end(connection, ProtocolError, "speaks versions [7, 8] of the protocol, this node 1")


async def test_a_frame_that_is_too_large(greeted, node):
    size = node.config.limits.frame_body_bytes_max + 1
    await greeted.send(frame_header(Opcode.WRITE, size), bytes(100_000))
    await expect_end(greeted, TooLarge, f"WRITE of {size} bytes; at most {size - 1} are accepted")


async def test_a_large_frame_before_the_hello(raw):
    async with raw() as connection:
        await connection.send(frame_header(Opcode.HELLO, HELLO_BODY_BYTES_MAX + 1), bytes(10))
        await expect_end(connection, TooLarge, "HELLO of 65537 bytes")


@pytest.mark.parametrize("opcode", [Opcode.WRITE, Opcode.STATUS, Opcode.NOOP, Opcode.STREAM_REQUEST])
async def test_a_frame_before_the_hello(raw, opcode):
    async with raw() as connection:
        await connection.send(encode_frame(opcode))
        await expect_end(connection, ProtocolError, f"{opcode.name} before HELLO")


async def test_a_second_hello(greeted):
    await greeted.send(encode_json(Opcode.HELLO, {"versions": [1]}))
    await expect_end(greeted, ProtocolError, "a second HELLO")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"versions": "all"}', b"\xff" * 20])
async def test_a_hello_that_cannot_be_read(raw, body):
    async with raw() as connection:
        await connection.send(encode_frame(Opcode.HELLO, body))
        await expect_end(connection, ProtocolError, "HELLO: ")


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (Opcode.CREATE_FEED, b"nonsense"),
        (Opcode.CREATE_FEED, b'{"name": "a"}'),
        (Opcode.PARTITIONS, b"[]"),
        (Opcode.DROP_FEED, b'{"name": "a"}'),
        (Opcode.DROP_FEED, b'{"feed_id": "xy"}'),
        (Opcode.WRITE, bytes(10)),
        (Opcode.GET, bytes(10)),
        (Opcode.GET, bytes(28)),
        (Opcode.STREAM_REQUEST, b"{}"),
        (Opcode.CREDIT, b""),
        (Opcode.BARRIER, b""),
        (Opcode.BARRIER, bytes(65)),
    ],
)
async def test_a_body_that_cannot_be_read(greeted, opcode, body):
    await greeted.send(encode_frame(opcode, body, 3))
    await expect_end(greeted, ProtocolError, opcode.name)


async def test_a_frame_in_pieces(greeted):
    for byte in encode_json(Opcode.LIST_FEEDS, {}, 9):
        await greeted.send(bytes([byte]))
    frame = await greeted.receive()
    assert (frame.opcode, frame.id) == (Opcode.RESULT, 9)


async def test_a_peer_that_leaves_in_the_middle_of_a_frame(raw, greeted):
    async with raw() as connection:
        await connection.hello()
        await connection.send(frame_header(Opcode.WRITE, 1000), bytes(500))
    assert (await greeted.ask(Opcode.LIST_FEEDS, b"{}")).opcode is Opcode.RESULT


async def test_the_hello_says_what_the_node_accepts(raw, node):
    async with raw() as connection:
        await connection.send(encode_json(Opcode.HELLO, {"versions": [1, 2], "window_bytes": 1 << 40}))
        answer = HelloOk.decode((await connection.receive()).body)
    assert answer.node_id == node.identity.node_id.hex()
    assert answer.frame_body_bytes_max == node.config.limits.frame_body_bytes_max
    assert answer.window_bytes == node.config.limits.window_bytes_max
    assert answer.levels == ("memory", "disk")


# Bounds


async def test_too_many_connections(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, connections_max=1)
    small = await run_node(dataclasses.replace(node_config, data=node_config.data + "-small", limits=limits))
    async with tailrace.connect(small.url) as first:
        await first.feeds()
        with pytest.raises(tailrace.Unreachable, match=r"serves 1 connections already: limits\.connections_max"):
            async with tailrace.connect(small.url, connect_timeout=3):
                raise AssertionError("it was let in")
        await first.feeds()


async def test_clients_leave_connections_to_nodes(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, connections_max=4)
    small = await run_node(dataclasses.replace(node_config, data=node_config.data + "-small", limits=limits))

    async def connect(stack):
        stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", small.config.listen[1]))
        return RawClient(stream)

    async with AsyncExitStack() as stack:
        clients = [await (await connect(stack)).hello() for _ in range(3)]
        refused = await connect(stack)
        await refused.send(Hello().encode())
        error = await refused.error()
        assert isinstance(error, Overloaded)
        assert "serves 3 connections already, and keeps the rest for nodes: limits.connections_max" in str(error)
        # It stays, and keeps no node out.
        assert len(small.node.connections) == 4
        await (await connect(stack)).hello(of_node=True)
        assert await refused.is_closed()
        await clients.pop().stream.aclose()
        while len(small.node.connections) > 3:
            await trio.lowlevel.checkpoint()
        await (await connect(stack)).hello()
