from __future__ import annotations

import contextlib
import socket
import time

import pytest

import tailrace
from tailrace.blocking.dialer import Dialer
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore
from tailrace.link.finder import Finder
from tailrace.testing.ports import free_port


def link(*addresses, try_s=1.0):
    """A link without a session, whose tries may take ``try_s`` seconds."""
    return LinkCore(None, Finder(addresses, "leader", time.monotonic), try_s)


def lose(dialer, link, error):
    """Ends the connection as a link does."""
    dialer.begin_anew()
    link.finder.failed(error)


def connected(dialer):
    while True:
        sock = dialer.step(0.05)
        if sock is not None:
            return sock


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def closed_port():
    return free_port()


def test_connects(listener):
    port = listener.getsockname()[1]
    with connected(Dialer(link(Address("127.0.0.1", port)))) as sock:
        assert sock.getpeername() == ("127.0.0.1", port)
        assert sock.getblocking() is False


def test_every_address_of_a_name_is_tried(listener, monkeypatch, closed_port):
    port = listener.getsockname()[1]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", p)) for p in (closed_port, port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    dialer = Dialer(link(Address("two", port)))
    with pytest.raises(tailrace.Unreachable, match=r"cannot connect to two:.*refused"):
        connected(dialer)
    connected(dialer).close()


def test_addresses_in_turn(listener, closed_port):
    nodes = link(Address("127.0.0.1", closed_port), Address("127.0.0.1", listener.getsockname()[1]))
    dialer = Dialer(nodes)
    with pytest.raises(tailrace.Unreachable):
        connected(dialer)
    connected(dialer).close()
    lose(dialer, nodes, tailrace.Unreachable("gone"))
    with pytest.raises(tailrace.Unreachable):
        connected(dialer)
    connected(dialer).close()


def test_where_a_node_points_is_tried_next(listener, closed_port):
    nodes = link(Address("127.0.0.1", listener.getsockname()[1]), Address("127.0.0.1", closed_port))
    dialer = Dialer(nodes)
    connected(dialer).close()
    with socket.create_server(("127.0.0.1", 0)) as leader:
        port = leader.getsockname()[1]
        lose(dialer, nodes, tailrace.NotLeader("no", leader=f"127.0.0.1:{port}"))
        with connected(dialer) as sock:
            assert sock.getpeername() == ("127.0.0.1", port)


def test_no_answer_in_time():
    # A full queue of connections that nobody accepts: the system drops what comes after them.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as socks:
        for _ in range(4):
            sock = socks.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(server.getsockname())
        dialer = Dialer(link(Address(*server.getsockname()), try_s=0.2))
        with pytest.raises(tailrace.Unreachable, match=r"no answer within 0\.2 s"):
            connected(dialer)
        dialer.close()
