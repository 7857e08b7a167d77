"""Bounds by the address of a peer."""

import contextlib
import dataclasses

import pytest
import trio

import tailrace
from tailrace.model.tokens import new_token
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import Hello, decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import addresses
from tailrace_server.serving.addresses import (
    ADDRESSES_MAX,
    FORGET_SECONDS,
    PAUSE_SECONDS_MAX,
    WRONG_TOKENS_FREE,
    AddressCounts,
    WrongTokens,
    host_of,
)


def test_the_host_of_a_peer():
    assert [host_of(peer) for peer in ("10.0.0.1:5", "[::1]:5", "loopback")] == ["10.0.0.1", "[::1]", "loopback"]


def test_an_address_has_so_many_connections():
    counts = AddressCounts()
    assert [counts.admits("10.0.0.1", 2) for _ in range(3)] == [True, True, False]
    assert counts.admits("10.0.0.2", 2)
    counts.left("10.0.0.1")
    assert counts.admits("10.0.0.1", 2)
    assert counts.admits("10.0.0.1", 3)  # after a reload


def test_programs_of_the_machine_share_an_address():
    counts = AddressCounts()
    assert all(counts.admits(host, 1) for host in ("127.0.0.1", "127.0.0.1", "[::1]", "[::1]"))


async def test_a_connection_too_many_is_refused(run_node, node_config, monkeypatch):
    monkeypatch.setattr(addresses, "is_loopback", lambda host: False)
    limits = dataclasses.replace(node_config.limits, connections_per_address_max=2)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with tailrace.connect(running.url), tailrace.connect(running.url):
        with pytest.raises(tailrace.Unreachable, match=r"2 connections of 127\.0\.0\.1 already"):
            async with tailrace.connect(running.url, connect_timeout=3):
                pass
    async with tailrace.connect(running.url) as client:
        await client.create_feed("orders")


async def test_slow_hellos_keep_no_client_out(run_node, node_config):
    limits = dataclasses.replace(node_config.limits, greetings_max=2)
    running = await run_node(dataclasses.replace(node_config, limits=limits))
    async with trio.open_nursery() as nursery:
        streams = [await trio.open_tcp_stream("127.0.0.1", running.config.listen[1]) for _ in range(6)]
        async with tailrace.connect(running.url) as client:
            await client.create_feed("orders")
        assert len(running.node.connections.greetings) <= 2
        nursery.cancel_scope.cancel()
    for stream in streams:
        await stream.aclose()


def test_wrong_tokens_are_answered_later_and_later():
    wrong = WrongTokens()
    pauses = [wrong.pause_s("10.0.0.1", 0.0) for _ in range(WRONG_TOKENS_FREE + 20)]
    assert pauses[:WRONG_TOKENS_FREE] == [0.0] * WRONG_TOKENS_FREE
    assert pauses[-1] == PAUSE_SECONDS_MAX
    assert wrong.pause_s("10.0.0.2", 0.0) == 0.0
    assert wrong.pause_s("10.0.0.1", 100 * FORGET_SECONDS) == 0.0


def test_the_addresses_of_wrong_tokens_are_bounded():
    wrong = WrongTokens()
    for number in range(ADDRESSES_MAX + 10):
        wrong.pause_s(str(number), 0.0)
    assert len(wrong) == ADDRESSES_MAX


async def test_a_guesser_waits_and_a_client_of_the_same_address_does_not(secured):
    authority = secured.running.node.services.authority
    for _ in range(WRONG_TOKENS_FREE + 3):
        authority.pause_s("127.0.0.1:1", "a wrong one")
    async with await trio.open_tcp_stream("127.0.0.1", secured.running.config.listen[1]) as guesser:
        await guesser.send_all(Hello(token=new_token().text).encode())
        async with secured.connect(secured.admin) as client:
            await client.feeds()
        [waiting] = [each for each in secured.running.node.connections if not each.greeted]
        assert waiting.is_closing
        waiting._on_drained()  # as the transport may do at any time
        await guesser.send_all(encode_frame(Opcode.STATUS, b"{}", 1))
        error = decode_error(memoryview(await guesser.receive_some())[16:])
        assert isinstance(error, tailrace.Forbidden)
        assert await guesser.receive_some() == b""


@pytest.mark.slow
async def test_handshakes_count_among_those_that_have_not_greeted(run_node, node_config, authority):
    # So late that what ends a connection is their number.
    limits = dataclasses.replace(node_config.limits, greetings_max=4, hello_timeout_s=3_600.0)
    running = await run_node(dataclasses.replace(node_config, limits=limits, tls=authority.node()))
    async with contextlib.AsyncExitStack() as silent:
        for _ in range(3):
            stream = await trio.open_tcp_stream("127.0.0.1", running.config.listen[1])
            await silent.enter_async_context(stream)
        shaken = await silent.enter_async_context(await shaken_hands(running, authority))
        for _ in range(3):
            await silent.enter_async_context(await trio.open_tcp_stream("127.0.0.1", running.config.listen[1]))
        async with tailrace.connect(running.url, tls=authority.client()) as client:
            await client.create_feed("orders")
        # It has shaken hands and says nothing, and so it was the oldest in the end.
        assert await shaken.receive_some() != b""
        assert await shaken.receive_some() == b""
        assert len(running.node.connections.greetings) <= 4


async def shaken_hands(running, authority):
    tcp = await trio.open_tcp_stream("127.0.0.1", running.config.listen[1])
    stream = trio.SSLStream(tcp, authority.client(), server_hostname="127.0.0.1", https_compatible=True)
    await stream.do_handshake()
    return stream
