"""Addresses of doors, and how a listener treats its connections."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack

import pytest
import trio

from tailrace_server.serving.listeners import ListenerHandlers, listen, parse_listen_address, show_listen_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4780", ("127.0.0.1", 4780)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("node1", ("node1", 1234)),
        (":99", ("127.0.0.1", 99)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 1234)),
        (" OFF ", None),
        ("off", None),
        ("", None),
    ],
)
def test_addresses(text, address):
    assert parse_listen_address(text, 1234) == address


@pytest.mark.parametrize("text", ["host:port", "host:70000", "http://host:1", "host:1/path", "user@host:1"])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="is no address"):
        parse_listen_address(text, 1234)


def test_addresses_are_shown_as_they_are_given():
    assert show_listen_address(("127.0.0.1", 1)) == "127.0.0.1:1"
    assert show_listen_address(("::1", 1)) == "[::1]:1"
    assert show_listen_address(None) == "off"


async def nothing():
    pass


async def test_a_failing_connection_ends_alone_and_is_worth_a_line(caplog):
    async def handle(stream, identified):
        if await stream.receive_some() == b"bad":
            raise LookupError("what this client made of it")
        await stream.send_all(b"fine")

    caplog.set_level(logging.INFO, "tailrace.server")
    async with listen(ListenerHandlers("test", 10, handle, nothing), ("127.0.0.1", 0)) as address:
        bad, good = await trio.open_tcp_stream(*address), await trio.open_tcp_stream(*address)
        await bad.send_all(b"bad")
        assert await bad.receive_some() == b""
        await good.send_all(b"good")
        assert await good.receive_some() == b"fine"
        await bad.aclose()
        await good.aclose()
    [record] = caplog.records
    assert "test: a connection was ended: LookupError('what this client made of it')" in record.message
    assert not record.exc_info


async def test_connections_over_the_bound_are_turned_away():
    async def handle(stream, identified):
        identified()
        await stream.send_all(b"welcome")
        await stream.receive_some()

    async with listen(ListenerHandlers("test", 2, handle, nothing), ("127.0.0.1", 0)) as address:
        streams = [await trio.open_tcp_stream(*address) for _ in range(3)]
        assert [await stream.receive_some() for stream in streams] == [b"welcome", b"welcome", b""]
        await streams[0].aclose()
        while True:
            another = await trio.open_tcp_stream(*address)
            said = await another.receive_some()
            await another.aclose()
            if said:
                break
        for stream in streams:
            await stream.aclose()


async def test_the_oldest_without_a_known_client_makes_room(caplog):
    """Silent peers keep no one out, and do not end those who have shown that they may be here."""

    async def handle(stream, identified):
        while said := await stream.receive_some():
            if said == b"token":
                identified()
            await stream.send_all(b"welcome")

    caplog.set_level(logging.INFO, "tailrace.server")
    async with listen(ListenerHandlers("test", 3, handle, nothing), ("127.0.0.1", 0)) as address, AsyncExitStack() as s:

        async def connect(said):
            stream = await s.enter_async_context(await trio.open_tcp_stream(*address))
            await stream.send_all(said)
            assert await stream.receive_some() == b"welcome"
            return stream

        known = await connect(b"token")
        silent = [await connect(b"hello") for _ in range(2)]
        for number in range(2):
            silent.append(await connect(b"hello"))
            assert await silent[number].receive_some() == b""
        await connect(b"token")
        await connect(b"token")
        await known.send_all(b"still there")
        assert await known.receive_some() == b"welcome"
        async with await trio.open_tcp_stream(*address) as stream:
            assert await stream.receive_some() == b""
    assert [record.message for record in caplog.records] == ["test: 3 connections are open: one more was turned away"]


async def test_leaving_lets_go_first_and_then_cancels():
    told = trio.Event()
    order = []

    async def handle(stream, identified):
        try:
            await told.wait()
            await stream.send_all(b"goodbye")
            order.append("told")
            await trio.sleep_forever()
        finally:
            order.append("cancelled")

    async def drain():
        told.set()
        await trio.testing.wait_all_tasks_blocked()

    async with listen(ListenerHandlers("test", 2, handle, drain), ("127.0.0.1", 0)) as address:
        stream = await trio.open_tcp_stream(*address)
        await trio.testing.wait_all_tasks_blocked()
    assert order == ["told", "cancelled"]
    assert await stream.receive_some() == b"goodbye"
    assert await stream.receive_some() == b""
    await stream.aclose()
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream(*address)


async def test_an_address_in_use_is_named():
    async def handle(stream, identified):
        await trio.sleep_forever()

    async with listen(ListenerHandlers("http", 2, handle, nothing), ("127.0.0.1", 0)) as address:
        with pytest.raises(OSError, match=f"--http 127.0.0.1:{address[1]}: Address already in use"):
            async with listen(ListenerHandlers("http", 2, handle, nothing), address):
                pass
