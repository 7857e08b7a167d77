"""Clients of the SDK that requests share."""

import pytest
from starlette.requests import Request
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace.link.address import Address
from tailrace.tls.engine import PeerIdentity
from tailrace_server.serving.web import clients as module
from tailrace_server.serving.web.clients import Clients, Shown

NO_TOKEN = Shown(None, None)
REQUEST = Request({"type": "http"})


@pytest.fixture
async def clients(running, nursery):
    return Clients(running.node, nursery)


async def test_requests_with_the_same_rights_share_a_client(clients, running):
    async with clients.client(REQUEST, NO_TOKEN) as one, clients.client(REQUEST, NO_TOKEN) as two:
        assert one is two
    async with clients.client(REQUEST, NO_TOKEN) as three, clients.client(REQUEST, Shown("token", None)) as other:
        assert three is one
        assert other is not one
    assert [each["name"] for each in running.node.status()["connections"]].count("http") == 2


async def test_a_client_that_is_not_used_is_closed(clients, running, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    async with clients.client(REQUEST, NO_TOKEN) as one:
        assert len(running.node.connections) == 1
    await until(lambda: not len(running.node.connections))
    async with clients.client(REQUEST, NO_TOKEN) as two:
        assert two is not one


async def test_clients_are_bounded_and_idle_ones_make_room(clients, monkeypatch):
    monkeypatch.setattr(module, "CLIENTS_MAX", 1)
    async with clients.client(REQUEST, NO_TOKEN):
        with pytest.raises(tailrace.Overloaded):
            async with clients.client(REQUEST, Shown("other", None)):
                pass
    async with clients.client(REQUEST, Shown("other", None)) as other:
        assert other.client


async def test_a_client_that_could_not_connect_is_made_anew(clients, running, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(module, "CONNECT_SECONDS", 0.01)
        patch.setattr(module, "loopback", _refused)
        with pytest.raises(tailrace.Unreachable):
            async with clients.client(REQUEST, NO_TOKEN):
                pass
    async with clients.client(REQUEST, NO_TOKEN) as client:
        assert await client.client.feeds() == []


def _refused(*_):
    raise tailrace.Unreachable("no")


async def test_a_certificate_is_not_passed_on(clients):
    """The node would show its own to the leader, which may do more."""
    certificate = PeerIdentity("CN=a", (), "", ("CN=a",), 0)
    with pytest.raises(tailrace.Forbidden, match="ask the leader, or give a token"):
        await clients.connect(Shown(None, certificate), "a:1", Address("127.0.0.1", 1))
