"""Waiting for a socket: the same with polling and without."""

from __future__ import annotations

import select
import socket
import threading

import pytest

from tailrace import socket_poll
from tailrace.link.busy_polling import WAITS_MIN
from tailrace.socket_poll import SocketPoll


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture(params=[0.0, 0.005], ids=["sleeps", "polls"])
def poll(request, monkeypatch, pair):
    monkeypatch.setattr(socket_poll, "has_spare_processor", lambda: True)
    found = SocketPoll(request.param)
    found.register(pair[0], select.POLLIN)
    pair[1].send(b"x")
    for _ in range(WAITS_MIN):
        assert found.wait(10) == [(pair[0].fileno(), select.POLLIN)]
    pair[0].recv(1)
    assert found._polling.is_due == (request.param > 0)
    return found


def test_what_is_ready_ends_the_wait(poll, pair):
    assert poll.now() == []
    for _ in range(10):
        pair[1].send(b"x")
        assert poll.wait(10) == poll.now() == [(pair[0].fileno(), select.POLLIN)]
        pair[0].recv(1)


@pytest.mark.slow
def test_what_comes_while_it_waits_ends_the_wait(poll, pair):
    for seconds in (0.0001, 0.02):  # while it polls, and afterwards
        timer = threading.Timer(seconds, pair[1].send, (b"x",))
        timer.start()
        assert poll.wait(10) == [(pair[0].fileno(), select.POLLIN)]
        pair[0].recv(1)
        timer.join()


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.01])
def test_a_wait_ends_in_time_and_polls_no_more(poll, seconds):
    assert poll.wait(seconds) == []
    assert not poll._polling.is_due
    assert poll.wait(seconds) == []


def test_a_process_without_a_processor_to_spare_never_polls(monkeypatch):
    monkeypatch.setattr(socket_poll, "has_spare_processor", lambda: False)
    assert SocketPoll(1.0)._polling.seconds == 0
