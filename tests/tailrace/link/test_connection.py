"""Which errors of a connection end a client, by the nodes that its URL names."""

import itertools

import pytest

from tailrace.errors import Forbidden, ProtocolError, Unreachable
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore
from tailrace.link.finder import Finder
from tailrace.link.rules import TlsRefused, is_final


class Session:
    """The part of a session that the end of a connection needs."""

    def __init__(self, peer):
        self.peer, self.is_open, self.has_progressed, self.errors = peer, False, False, []

    def is_final(self, error):
        return is_final(error, greeted=self.peer is not None)

    def connection_lost(self, error):
        self.errors.append(error)


@pytest.fixture
def make():
    def made(count, peer=None):
        addresses = tuple(Address("node", number) for number in range(1, count + 1))
        core = LinkCore(Session(peer), Finder(addresses, "leader", itertools.count().__next__), 5.0)
        core.finder.next_try()
        return core

    return made


@pytest.mark.parametrize("error", [ProtocolError("no frame"), TlsRefused("no TLS"), Forbidden("no token")])
def test_what_the_only_node_says_before_its_greeting_is_final(make, error):
    final = make(1).lost(error)
    assert type(final) in (type(error), ProtocolError)
    assert str(error) in str(final)


def test_an_answer_that_is_no_greeting_names_the_node(make):
    assert str(make(1).lost(ProtocolError("no frame"))) == "the answer from node:1 cannot be used: no frame"


@pytest.mark.parametrize("error", [ProtocolError("no frame"), TlsRefused("no TLS"), Unreachable("no answer")])
def test_one_of_several_nodes_does_not_end_the_client(make, error):
    core = make(2)
    assert core.lost(error) is None
    assert core.finder.next_try() == (Address("node", 2), 0.0)


def test_a_refused_token_is_one_at_all_nodes(make):
    error = Forbidden("no token")
    assert make(2).lost(error) is error


def test_a_node_that_had_greeted_is_asked_again(make):
    core = make(1, peer=object())
    assert core.lost(ProtocolError("no frame")) is None
    assert [str(error) for error in core._session.errors] == ["no frame"]
