"""The network of a node that a test can cut off."""

import pytest
import trio

from tailrace.errors import Unreachable
from tailrace.link.address import Address
from tailrace_server.testing.cut_network import CutNetwork

HERE = Address("127.0.0.1", 4700)


class FakeTransport:
    is_broken = False

    def close(self):
        self.is_broken = True


class FakeNetwork:
    """Hands over connections, and keeps the handler of those that come."""

    address = ("127.0.0.1", 4700)

    def __init__(self):
        self.during_connect = lambda: None
        self.made = []

    async def listen(self, host, port):
        return self

    async def serve(self, handler):
        self.handler = handler

    async def aclose(self):
        self.handler = None

    async def connect(self, address):
        self.made.append(FakeTransport())
        self.during_connect()
        return self.made[-1]


@pytest.fixture
def inner():
    return FakeNetwork()


@pytest.fixture
def network(inner):
    return CutNetwork(inner)


async def test_connections_of_both_ways_break(network, inner):
    listener = await network.listen(*inner.address)
    assert listener.address == inner.address
    handled = []

    async def handler(transport):
        handled.append(transport)
        network.cut()

    await listener.serve(handler)
    out = await network.connect(HERE)
    coming = FakeTransport()
    await inner.handler(coming)
    assert handled == [coming]
    assert coming.is_broken
    assert out.is_broken


async def test_new_connections_are_refused_until_it_is_healed(network, inner):
    listener = await network.listen(*inner.address)
    handled = []

    async def handler(transport):
        handled.append(transport)

    await listener.serve(handler)
    network.cut()
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:4700 cannot be reached"):
        await network.connect(HERE)
    assert inner.made == []
    refused, accepted = FakeTransport(), FakeTransport()
    await inner.handler(refused)
    assert refused.is_broken
    assert handled == []
    network.heal()
    await inner.handler(accepted)
    assert handled == [accepted]
    assert not (await network.connect(HERE)).is_broken
    await listener.aclose()
    assert inner.handler is None


async def test_a_connection_that_is_made_while_the_network_is_cut_breaks(network, inner):
    inner.during_connect = network.cut
    with pytest.raises(Unreachable):
        await network.connect(HERE)
    assert inner.made[0].is_broken


async def test_broken_connections_are_forgotten(network):
    for _ in range(10):
        (await network.connect(HERE)).close()
    last = await network.connect(HERE)
    assert network._open == {last}
    await trio.lowlevel.checkpoint()
