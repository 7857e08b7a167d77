"""The listener for TLS: slow, silent, many, and wrong handshakes."""

import os
import socket
import ssl

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.errors import ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.trio.ready_sockets import HAS_EPOLL, ReadySockets
from tailrace.trio.tcp import connect_tcp, open_tcp
from tailrace.trio.tls import connect_tls
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import Hello, decode_error
from tailrace_server.config import Config, Limits
from tailrace_server.host.greetings import Greetings
from tailrace_server.host.network import TcpNetwork
from tailrace_server.host.tls import NodeTls
from tailrace_server.runtime.host import system_host

# Longer than a test: what ends a handshake is something else.
ANY_SECONDS = 3_600.0


async def echo(transport):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        try:
            while data := await transport.receive():
                transport.send(data)
        except OSError:
            pass
        finally:
            transport.close()
            nursery.cancel_scope.cancel()


@pytest.fixture
def tls(authority):
    return NodeTls(authority.node())


@pytest.fixture
async def address(tls):
    listener = await TcpNetwork(tls, 10.0).listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, echo)
        yield Address(*listener.address)
        nursery.cancel_scope.cancel()
    await listener.aclose()


async def serve_within(scope, listener):
    with scope:
        await listener.serve(echo)


async def is_echoed(authority, address):
    transport = await connect_tls(connect_tcp, authority.client(), address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.run)
        transport.send(b"echo")
        found = await transport.receive()
        nursery.cancel_scope.cancel()
    transport.close()
    return found == b"echo"


async def rest(transport):
    found = b""
    try:
        while data := await transport.receive():
            found += data
    except OSError:
        pass
    transport.close()
    return found


async def test_a_plain_client_is_told(address):
    transport = await open_tcp(*address)
    transport.send(Hello(name="old").encode())
    [frame] = FrameDecoder().receive_data(await rest(transport))
    error = decode_error(frame.body)
    assert isinstance(error, ProtocolError)
    assert "use tailraces://" in str(error)


async def test_a_silent_client_is_closed_in_time(authority, autojump_clock, monkeypatch, tls):
    listener = await TcpNetwork(tls, 10.0).listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, echo)
        transport = await open_tcp(*listener.address)
        began_at = trio.current_time()
        assert await rest(transport) == b""
        assert trio.current_time() - began_at == pytest.approx(10.0)
        nursery.cancel_scope.cancel()
    await listener.aclose()


async def test_many_silent_clients_keep_no_one_out(authority, nursery):
    tls = NodeTls(authority.node())
    listener = await TcpNetwork(tls, ANY_SECONDS, Greetings(Limits(greetings_max=4))).listen("127.0.0.1", 0)
    serving = trio.CancelScope()
    nursery.start_soon(serve_within, serving, listener)
    address = Address(*listener.address)
    silent = [await open_tcp(*address) for _ in range(10)]
    assert await is_echoed(authority, address)
    for transport in silent[:6]:
        assert await rest(transport) == b""
    for transport in silent[6:]:
        transport.close()
    serving.cancel()
    await listener.aclose()


async def test_clients_that_are_told_count_too(authority, nursery):
    """They have a second to read why; until then each has a descriptor."""
    greetings = Greetings(Limits(greetings_max=4))
    listener = await TcpNetwork(NodeTls(authority.node()), ANY_SECONDS, greetings).listen("127.0.0.1", 0)
    serving = trio.CancelScope()
    nursery.start_soon(serve_within, serving, listener)
    plain = [await open_tcp(*listener.address) for _ in range(10)]
    for transport in plain:
        transport.send(b"GET / HTTP/1.1\r\n\r\n")
    silent = [await open_tcp(*listener.address) for _ in range(5)]
    for transport in plain:
        await rest(transport)
    assert await rest(silent[0]) == b""
    for transport in silent:
        transport.close()
    serving.cancel()
    await listener.aclose()


async def test_a_refused_certificate_does_not_end_the_others(authority, address):
    with pytest.raises(ProtocolError):
        await connect_tls(connect_tcp, ssl.create_default_context(), address)
    assert await is_echoed(authority, address)


async def test_a_client_that_goes_in_its_handshake(authority, address):
    for hard in (True, False):
        sock = socket.create_connection(address)
        sock.sendall(b"\x16\x03\x01\x02\x00")
        if hard:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    assert await is_echoed(authority, address)


def client_hello(authority):
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(0, 2_000), st.binary(max_size=100), st.booleans())
def test_a_handshake_that_is_cut_or_wrong(authority, place, garbage, ends):
    hello = client_hello(authority)

    async def run():
        listener = await TcpNetwork(NodeTls(authority.node()), 10.0).listen("127.0.0.1", 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listener.serve, echo)
            transport = await open_tcp(*listener.address)
            transport.send(hello[: place % len(hello)] + garbage)
            if ends:
                transport.finish()
                await rest(transport)
            transport.close()
            assert await is_echoed(authority, Address(*listener.address))
            nursery.cancel_scope.cancel()
        await listener.aclose()

    trio.run(run)


async def test_garbage_after_the_handshake_ends_one_connection(authority, address):
    transport = await connect_tls(connect_tcp, authority.client(), address)
    transport._inner.send(os.urandom(1_000))
    with pytest.raises(Unreachable, match="TLS"):
        await transport.receive()
    transport.close()
    assert await is_echoed(authority, address)


@pytest.mark.skipif(not HAS_EPOLL, reason="the set is an epoll set")
async def test_a_node_polls_for_as_long_as_it_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(ReadySockets, "wait_directly", lambda sockets, seconds: told.append(seconds))
    for busy_poll_s in (0.0, 0.0002):
        config = Config(data="unused", limits=Limits(busy_poll_s=busy_poll_s))
        listener = await system_host(config).network.listen("127.0.0.1", 0)
        await listener.aclose()
    assert told == [0.0, 0.0002]
