"""Waiting in the place of trio: when it begins and ends, and that trio's tasks, deadlines and threads miss nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tailrace.trio import direct_wait
from tailrace.trio.direct_wait import PLAIN_TURNS, SOON_SECONDS, WAKING_TURNS, DirectWait, TrioLoop
from tailrace.trio.ready_sockets import HAS_EPOLL, ReadySockets

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="the set is an epoll set")


class Peer:
    """A socket of the set that answers each byte, and what happens beside it."""

    def __init__(self, sockets):
        self.mine, self.far = socket.socketpair()
        self.mine.setblocking(False)
        self.sockets = sockets
        self.beside = lambda: None
        self.goes_on = True
        self.handled = 0
        sockets.watch(self.mine, self.ready)

    def ready(self):
        self.mine.send(self.mine.recv(1))
        self.handled += 1
        self.beside()
        return self.goes_on

    def ask(self, times=1):
        for _ in range(times):
            self.far.send(b"x")
            assert self.far.recv(1) == b"x"

    def close(self):
        self.sockets.forget(self.mine)
        self.mine.close()
        self.far.close()


# The most seconds of polling before it sleeps: all that is tested here is the same with and without.
BUSY_POLLS = {"sleeps": 0.0, "polls": 0.005}


@pytest.fixture(params=BUSY_POLLS.values(), ids=BUSY_POLLS)
def busy_poll_s(request, monkeypatch):
    monkeypatch.setattr(direct_wait, "SOON_SECONDS", 30.0)  # it ends by what a test does, not by the clock
    monkeypatch.setattr(direct_wait, "has_spare_processor", lambda: True)
    return request.param


@pytest.fixture
async def sockets(nursery, busy_poll_s):
    found = ReadySockets()
    found.wait_directly(busy_poll_s)
    nursery.start_soon(found.run)
    return found


@pytest.fixture
def peer(sockets):
    found = Peer(sockets)
    yield found
    found.close()


async def in_thread(call, *args):
    """Calls in a thread. The end of it wakes trio."""
    return await trio.to_thread.run_sync(call, *args)


def is_direct(sockets):
    return sockets._direct._task is not None


async def until_direct(peer):
    await in_thread(peer.ask, PLAIN_TURNS + 1)
    assert is_direct(peer.sockets)
    polling = peer.sockets._direct._polling
    polling.is_due = polling.seconds > 0


async def test_it_begins_after_some_turns_that_come_soon_and_wake_no_task(sockets, peer):
    await in_thread(peer.ask, PLAIN_TURNS - 1)
    assert not is_direct(sockets)
    await in_thread(peer.ask, 2)
    assert is_direct(sockets)
    await in_thread(peer.ask, 1_000)
    assert is_direct(sockets)
    assert peer.handled == PLAIN_TURNS + 1_001


async def test_no_task_runs_for_a_request(sockets, peer):
    """All of them are handled in one pass of the loop."""
    await until_direct(peer)
    passes = []

    class Passes(trio.abc.Instrument):
        def before_task_step(self, task):
            passes.append(task)

    trio.lowlevel.add_instrument(Passes())
    await in_thread(peer.ask, 1_000)
    assert len(passes) < 20


@pytest.mark.parametrize("turns", [1, WAKING_TURNS])
async def test_it_ends_after_turns_that_wake_tasks(sockets, peer, turns):
    await until_direct(peer)
    woken = []
    event = trio.Event()
    peer.beside = lambda: event.set()

    async def wait():
        nonlocal event
        while True:
            await event.wait()
            event = trio.Event()
            woken.append(None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(turns):
            await in_thread(peer.ask)
            assert len(woken) == number + 1, "at once"
        assert is_direct(sockets) == (turns < WAKING_TURNS)
        nursery.cancel_scope.cancel()
    peer.beside = lambda: None
    await until_direct(peer)


async def test_it_ends_if_nothing_comes_soon(sockets, peer, monkeypatch):
    monkeypatch.setattr(direct_wait, "SOON_SECONDS", 0.02)
    began = 0
    while not began:  # a turn may come late
        await in_thread(peer.ask, PLAIN_TURNS + 1)
        began += is_direct(sockets)
    with trio.fail_after(30):
        while is_direct(sockets):  # noqa: ASYNC110
            await trio.sleep(0.01)
    await in_thread(peer.ask)
    assert peer.handled


async def test_deadlines_are_kept(sockets, peer):
    await until_direct(peer)
    for _ in range(3):
        with trio.move_on_after(0.02) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught


async def test_a_deadline_that_a_request_has_moved_is_kept(sockets, peer):
    await until_direct(peer)
    with trio.fail_after(60), trio.CancelScope() as scope:
        peer.beside = lambda: setattr(scope, "deadline", trio.current_time() + 0.02)
        threading.Thread(target=peer.ask).start()
        await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_deadline_is_kept_while_requests_come_without_a_pause(sockets, peer):
    await until_direct(peer)
    ended = threading.Event()

    def ask():
        while not ended.is_set():
            peer.ask()

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        with trio.move_on_after(0.05):
            await trio.sleep_forever()
    finally:
        ended.set()
        await in_thread(asker.join)


async def test_sockets_of_trio_are_served(sockets, peer):
    await until_direct(peer)
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        for _ in range(20):
            threading.Timer(0.002, far.send, (b"x",)).start()
            await trio.lowlevel.wait_readable(near)
            assert near.recv(10) == b"x"
            await trio.lowlevel.wait_writable(near)
        trio.lowlevel.notify_closing(near)


@pytest.mark.parametrize("what", ["task", "deadline"])
async def test_what_a_function_does_is_seen_if_it_empties_the_set_of_trio(sockets, peer, what):
    """As one that closes a connection to whose socket another task is about to write."""
    await until_direct(peer)
    near, far = socket.socketpair()
    near.setblocking(False)

    def empty():
        peer.beside = lambda: None
        if what == "task":
            trio.lowlevel.notify_closing(near)
        else:
            near.recv(1)
            scope.deadline = trio.current_time() + 0.01

    def make_both_ready():
        peer.beside = empty
        far.send(b"x")
        peer.far.send(b"x")

    with near, far, trio.fail_after(10) as time_out, trio.CancelScope() as scope:
        peer.beside = make_both_ready
        asker = threading.Thread(target=peer.ask)  # its end wakes no task
        asker.start()
        with contextlib.suppress(trio.ClosedResourceError):
            await trio.lowlevel.wait_readable(near)
            pytest.fail("the socket of trio was read before")
    assert not time_out.cancel_called
    await in_thread(asker.join)
    assert peer.handled == PLAIN_TURNS + 3


async def test_an_interrupt_ends_the_wait(sockets, peer):
    await until_direct(peer)
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        async for number in signals:
            assert number == signal.SIGUSR1
            break


async def test_a_socket_that_asks_for_it_lets_others_have_the_loop(sockets, peer):
    await until_direct(peer)
    others = [Peer(sockets) for _ in range(3)]
    peer.goes_on = False
    await in_thread(lambda: [each.ask(20) for each in (peer, *others)])
    assert [each.handled for each in others] == [20] * 3
    for each in others:
        each.close()


async def test_sockets_come_and_go_meanwhile(sockets, peer):
    await until_direct(peer)
    for _ in range(5):
        other = Peer(sockets)
        await in_thread(other.ask, 3)
        assert other.handled == 3
        other.close()
    await in_thread(peer.ask)
    assert is_direct(sockets)


async def test_an_error_of_a_function_is_that_of_the_set(busy_poll_s):
    sockets = ReadySockets()
    sockets.wait_directly(busy_poll_s)
    peer = Peer(sockets)
    with pytest.RaisesGroup(ZeroDivisionError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sockets.run)
            await in_thread(peer.ask, PLAIN_TURNS + 1)
            assert is_direct(sockets)
            peer.beside = lambda: 1 // 0
            peer.far.send(b"x")
            await trio.sleep_forever()
    peer.mine.close()
    peer.far.close()


async def test_a_cancelled_task_ends_it(busy_poll_s):
    sockets = ReadySockets()
    sockets.wait_directly(busy_poll_s)
    peer = Peer(sockets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        await in_thread(peer.ask, PLAIN_TURNS + 1)
        nursery.cancel_scope.cancel()
    assert not is_direct(sockets)
    assert not any("Direct" in type(each).__name__ for each in instruments())
    peer.mine.close()
    peer.far.close()


def instruments():
    return list(trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments["_all"])


async def test_it_does_not_hide_that_all_tasks_are_blocked(sockets, peer):
    await until_direct(peer)
    await trio.testing.wait_all_tasks_blocked()
    await trio.testing.wait_all_tasks_blocked(0.01)


async def test_it_sleeps_again_if_nothing_comes_while_it_polls(sockets, peer, busy_poll_s):
    polling = peer.sockets._direct._polling
    await until_direct(peer)
    await in_thread(peer.ask, 20)
    assert busy_poll_s or not polling.is_due
    with trio.fail_after(30):
        while busy_poll_s and not polling.is_due:  # another process had the processor, and it polls later
            await in_thread(peer.ask, 20)
        while polling.is_due:  # noqa: ASYNC110
            await trio.sleep(2 * busy_poll_s)
    handled = peer.handled
    await in_thread(peer.ask)
    assert peer.handled == handled + 1


async def test_a_process_without_a_processor_to_spare_never_polls(monkeypatch):
    monkeypatch.setattr(direct_wait, "has_spare_processor", lambda: False)
    sockets = ReadySockets()
    sockets.wait_directly(1.0)
    assert sockets._direct._polling.seconds == 0
    sockets._epoll.close()


class Loop:
    """A loop of trio with tasks that are to run."""

    epoll = 0

    def __init__(self):
        self.runnable = []


@given(st.lists(st.tuples(st.sampled_from([0.0, SOON_SECONDS, SOON_SECONDS * 2]), st.booleans()), max_size=12))
def test_it_is_due_after_plain_turns_in_a_row(turns):
    async def main():
        loop = Loop()
        wait = DirectWait(select.epoll(), {}, loop, 1, 0.0)
        for number, (waited, wakes) in enumerate(turns, 1):
            loop.runnable = [None] if wakes else []
            last = turns[max(number - PLAIN_TURNS, 0) : number]
            plain = len(last) == PLAIN_TURNS and all(w <= SOON_SECONDS and not wakes for w, wakes in last)
            assert wait.is_due(waited) == plain

    trio.run(main)


def test_the_loop_of_the_installed_trio_is_known():
    """Otherwise it works as before, and slower."""

    async def main():
        loop = TrioLoop.of_this_run()
        assert loop is not None
        with trio.CancelScope() as scope:
            await trio.lowlevel.checkpoint()
            scope.deadline = trio.current_time() + 1e-3
            assert loop.next_deadline() == scope.deadline
            assert loop.sleep_seconds(scope.deadline) <= 1e-3
        assert not loop.runnable

    trio.run(main)


async def test_a_loop_with_other_fields_waits_as_ever(monkeypatch):
    class Other:
        runner = None

    monkeypatch.setattr(trio._core._run, "GLOBAL_RUN_CONTEXT", Other)
    found = TrioLoop.of_this_run()
    monkeypatch.undo()
    assert found is None
    monkeypatch.setattr(TrioLoop, "of_this_run", lambda: None)
    sockets = ReadySockets()
    sockets.wait_directly(0.0)
    peer = Peer(sockets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sockets.run)
        await in_thread(peer.ask, 20)
        nursery.cancel_scope.cancel()
    assert peer.handled == 20
    peer.mine.close()
    peer.far.close()
