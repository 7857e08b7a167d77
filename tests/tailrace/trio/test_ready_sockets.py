"""The set of all sockets: which are handled in a turn of the loop, and when the task polls in place of sleeping."""

from __future__ import annotations

import itertools
import socket
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tailrace.trio import ready_sockets
from tailrace.trio.ready_sockets import HAS_EPOLL, LONE_TURNS, READY_MAX, BusyPolling, ReadySockets

# More than the clock of these tests goes on in a turn.
SOON_SECONDS = 1.0

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the set is an epoll set")


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, 1.5])), max_size=12),
    st.sampled_from([0.0, 1.0]),
)
def test_it_polls_after_lone_turns_that_came_soon_and_never_without_a_time(turns, seconds):
    polling = BusyPolling(seconds)
    for ready, waited in turns:
        polling.turn_ended(ready, waited)
    last = turns[-LONE_TURNS:]
    soon = len(last) == LONE_TURNS and all(ready == 1 and waited <= seconds for ready, waited in last)
    assert polling.is_due == (soon and seconds > 0)
    polling.missed()
    assert not polling.is_due


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


async def ping(count, times, seconds):
    """Lets ``count`` peers send ``times`` bytes each."""
    sockets = ReadySockets()
    sockets.poll_busily(seconds)
    pings = [Pinging(sockets, times) for _ in range(count)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        for each in pings:
            await each.ended.wait()
        nursery.cancel_scope.cancel()
    for each in pings:
        each.close()


@pytest.fixture
def processors(monkeypatch):
    """Gives the process so many processors."""
    return lambda count: monkeypatch.setattr(ready_sockets.os, "sched_getaffinity", lambda _: set(range(count)))


async def test_a_lone_peer_that_goes_on_soon_finds_the_task_awake(waits, processors):
    processors(2)
    await ping(1, 40, SOON_SECONDS)
    assert LONE_TURNS <= len(waits) <= LONE_TURNS + 1, "once more when the peer has ended"


@pytest.mark.parametrize(("count", "seconds"), [(2, 0.0), (1, SOON_SECONDS)])
async def test_it_never_polls_without_a_time_or_with_one_processor(waits, processors, count, seconds):
    processors(count)
    await ping(1, 40, seconds)
    assert len(waits) >= 40


async def test_other_tasks_have_the_loop_while_it_polls(waits, processors):
    processors(2)
    passes = []

    async def busy():
        while True:
            passes.append(None)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy)
        await ping(1, 40, SOON_SECONDS)
        nursery.cancel_scope.cancel()
    assert len(waits) <= LONE_TURNS + 1
    assert len(passes) >= 40


async def test_it_sleeps_if_nothing_comes_in_time(waits, processors, monkeypatch):
    processors(2)
    monkeypatch.setattr(ready_sockets, "LONE_TURNS", 0)
    mine, peer = socket.socketpair()
    mine.setblocking(False)
    handled = trio.Event()

    def ready():
        mine.recv(1)
        handled.set()
        return True

    sockets = ReadySockets()
    sockets.poll_busily(1e-9)
    sockets.watch(mine, ready)
    with mine, peer:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sockets.run)
            while not waits:
                await trio.lowlevel.checkpoint()
            peer.send(b"x")
            await handled.wait()
            nursery.cancel_scope.cancel()


async def test_sockets_that_become_ready_meanwhile_are_handled_in_the_same_turn(waits, processors, monkeypatch):
    processors(2)
    monkeypatch.setattr(ready_sockets, "TURN_SECONDS", 1.0)
    await ping(2, READY_MAX // 2, SOON_SECONDS)
    assert 1 <= len(waits) <= 2
    waits.clear()
    await ping(2, READY_MAX, SOON_SECONDS)
    assert 2 <= len(waits) <= 3, "others have the loop after READY_MAX"


async def test_others_have_the_loop_after_some_time(waits, processors):
    """Two peers that send without a pause would otherwise have it for READY_MAX reads."""
    processors(1)
    await ping(2, READY_MAX // 2, 0.0)
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
