"""The set of all sockets: which are handled in a turn of the loop."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace

import pytest
import trio

from tailrace.trio import ready_sockets
from tailrace.trio.ready_sockets import HAS_EPOLL, READY_MAX, ReadySockets

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the set is an epoll set")


class Pinging:
    """A socket whose peer sends the next byte while the last one is handled, ``left`` times."""

    def __init__(self, sockets, left):
        self.sockets = sockets
        self.left = left
        self.mine, self.peer = socket.socketpair()
        self.mine.setblocking(False)
        self.ended = trio.Event()
        sockets.watch(self.mine, self.ready)
        self.peer.send(b"x")

    def ready(self):
        self.mine.recv(1)
        self.left -= 1
        if self.left:
            self.peer.send(b"x")
        else:
            self.sockets.forget(self.mine)
            self.ended.set()
        return True

    def close(self):
        self.mine.close()
        self.peer.close()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """A clock that goes on by a millisecond each time that it is read."""
    monkeypatch.setattr(ready_sockets, "time", SimpleNamespace(perf_counter=itertools.count(0, 0.001).__next__))


@pytest.fixture
def waits(monkeypatch):
    """How often the task of the set has slept."""
    found = []
    wait = trio.lowlevel.wait_readable

    async def noted(what):
        found.append(what)
        await wait(what)

    monkeypatch.setattr(trio.lowlevel, "wait_readable", noted)
    return found


async def ping(count, times):
    """Lets ``count`` peers send ``times`` bytes each."""
    sockets = ReadySockets()
    pings = [Pinging(sockets, times) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        for each in pings:
            await each.ended.wait()
        nursery.cancel_scope.cancel()
    for each in pings:
        each.close()


async def test_sockets_that_become_ready_meanwhile_are_handled_in_the_same_turn(waits, monkeypatch):
    monkeypatch.setattr(ready_sockets, "TURN_SECONDS", 1.0)
    await ping(2, READY_MAX // 2)
    assert 1 <= len(waits) <= 2
    waits.clear()
    await ping(2, READY_MAX)
    assert 2 <= len(waits) <= 3, "others have the loop after READY_MAX"


async def test_others_have_the_loop_after_some_time(waits):
    """Two peers that send without a pause would otherwise have it for READY_MAX reads."""
    await ping(2, READY_MAX // 2)
    assert len(waits) >= READY_MAX // 2 // 3, "the clock goes on by a millisecond for each look"


async def test_others_have_the_loop_when_a_socket_asks_for_it(waits):
    sockets = ReadySockets()
    calls = []
    pairs = [socket.socketpair() for _ in range(3)]

    def ready(mine):
        mine.recv(1)
        sockets.forget(mine)
        calls.append(len(waits))
        return False

    for mine, peer in pairs:
        mine.setblocking(False)
        sockets.watch(mine, lambda mine=mine: ready(mine))
        peer.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        while len(calls) < 3:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert calls == [1, 2, 3]
    for mine, peer in pairs:
        mine.close()
        peer.close()
