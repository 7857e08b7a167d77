"""The network link that tests break."""

from __future__ import annotations

import contextlib

import pytest
import trio

from .proxy import open_proxy

SILENCE_S = 0.2  # data that has not come by then does not come


@pytest.fixture
async def echo(nursery):
    """The address of a server that sends its input back, and ends when the client does."""

    async def serve(stream):
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):
                async for data in stream:
                    await stream.send_all(data)

    listeners = await nursery.start(trio.serve_tcp, serve, 0)
    return "127.0.0.1", listeners[0].socket.getsockname()[1]


@pytest.fixture
async def proxy(echo):
    async with open_proxy(echo) as opened:
        yield opened


async def connect(proxy):
    return await trio.open_tcp_stream("127.0.0.1", proxy.port)


async def receive(stream, count):
    data = b""
    while len(data) < count:
        more = await stream.receive_some()
        assert more, f"the end, after {data!r}"
        data += more
    return data


async def is_reset(stream):
    """The other side has broken the connection, and not just ended it."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError as error:
        return isinstance(error.__cause__, ConnectionResetError)
    return False


async def test_bytes_pass_both_ways_and_so_does_the_end(proxy):
    data = bytes(range(256)) * 4_000
    async with await connect(proxy) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data)
        assert await receive(stream, len(data)) == data
        await stream.send_eof()
        assert await stream.receive_some() == b""
    assert proxy.connections == 1


async def test_cut_resets_what_there_is_and_what_comes_until_it_is_healed(proxy):
    async with await connect(proxy) as stream:
        await stream.send_all(b"x")
        await receive(stream, 1)
        proxy.cut()
        assert await is_reset(stream)
    with contextlib.suppress(OSError):  # the reset may come before the connection is known to be there
        async with await connect(proxy) as stream:
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(b"y")
                assert await stream.receive_some() == b""
    proxy.heal()
    async with await connect(proxy) as stream:
        await stream.send_all(b"z")
        assert await receive(stream, 1) == b"z"
    assert proxy.resets == 1


async def test_frozen_is_silent_and_what_was_sent_meanwhile_comes_when_it_is_healed(proxy):
    async with await connect(proxy) as stream:
        await stream.send_all(b"a")
        assert await receive(stream, 1) == b"a"
        proxy.freeze()
        await stream.send_all(b"b")
        async with await connect(proxy) as late:
            await late.send_all(b"c")
            for one in (stream, late):
                with trio.move_on_after(SILENCE_S) as silent:
                    await one.receive_some()
                assert silent.cancelled_caught
            proxy.heal()
            assert (await receive(stream, 1), await receive(late, 1)) == (b"b", b"c")


async def test_cut_ends_a_freeze(proxy):
    async with await connect(proxy) as stream:
        await stream.send_all(b"a")
        await receive(stream, 1)
        proxy.freeze()
        await stream.send_all(b"b")
        proxy.cut()
        assert await is_reset(stream)


async def test_who_is_not_there_is_a_broken_connection():
    async with open_proxy(("127.0.0.1", 1)) as proxy, await connect(proxy) as stream:
        with contextlib.suppress(trio.BrokenResourceError):
            assert await stream.receive_some() == b""


@pytest.mark.parametrize("there", [True, False])
async def test_a_mute_link_passes_bytes_in_one_direction_only(there):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, open_proxy(listener.socket.getsockname()) as proxy, await connect(proxy) as client:
        server = await listener.accept()
        async with server:
            speaker, deaf = (client, server) if there else (server, client)
            proxy.mute(there=there)
            await speaker.send_all(b"held")
            with trio.move_on_after(SILENCE_S) as silence:
                await deaf.receive_some()
            assert silence.cancelled_caught
            await deaf.send_all(b"passed")
            assert await receive(speaker, 6) == b"passed"
            proxy.heal()
            assert await receive(deaf, 4) == b"held"


async def test_no_connection_starts_through_a_mute_link(echo):
    async with open_proxy(echo) as proxy:
        proxy.mute(there=False)
        async with await connect(proxy) as stream:
            await stream.send_all(b"x")
            with trio.move_on_after(SILENCE_S) as silence:
                await stream.receive_some()
            assert silence.cancelled_caught
            proxy.heal()
            assert await receive(stream, 1) == b"x"
