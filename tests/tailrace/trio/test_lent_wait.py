"""Waiting for a lent socket in the place of trio: only while trio has nothing else to do, and not for long."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading

import pytest
import trio
import trio.testing
from tests.tailrace.lone_calls import rarely_ticks

import tailrace
from tailrace import socket_poll
from tailrace.testing import node
from tailrace.trio import lent_wait
from tailrace.trio.lending import LONE_CALLS
from tailrace.trio.lent_wait import WAITS_MAX, LentWait
from tailrace.trio.ready_sockets import HAS_EPOLL, ReadySockets
from tailrace.trio.trio_loop import TasksToRun, TrioLoop

__all__ = ["rarely_ticks"]

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="a socket is lent out of the set of ready ones")

SECONDS = 30.0


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield near, far


@pytest.fixture(params=[0.0, 0.005], ids=["sleeps", "polls"])
def polls(request, monkeypatch):
    """Waits last for long, or are polled."""
    monkeypatch.setattr(lent_wait, "WAIT_SECONDS", SECONDS)
    monkeypatch.setattr(socket_poll, "has_spare_processor", lambda: True)
    return request.param


@pytest.fixture
async def sockets():
    found = ReadySockets()
    yield found
    found._epoll.close()


@pytest.fixture
async def wait(pair, sockets, polls):
    found = sockets.lent_wait(pair[0])
    found._poll._polling.seconds = polls
    found._poll._polling.is_due = polls > 0
    return found


async def test_bytes_end_the_wait(wait, pair):
    for _ in range(10):
        pair[1].send(b"x")
        assert wait.wait()
        assert pair[0].recv(2) == b"x"


@pytest.mark.slow
async def test_bytes_that_come_later_end_the_wait(wait, pair):
    for seconds in (0.0001, 0.02):
        timer = threading.Timer(seconds, pair[1].send, (b"x",))
        timer.start()
        assert wait.wait()
        pair[0].recv(1)
        timer.join()


async def test_a_task_that_is_to_run_has_the_loop(wait, pair, nursery):
    pair[1].send(b"x")
    ran = []

    async def run():
        ran.append(None)

    nursery.start_soon(run)
    assert not wait.wait()
    while not ran:
        await trio.lowlevel.checkpoint()
    assert wait.wait()


async def until_known(wait):
    """Lets trio wait until it is known that no other task is to run."""
    while wait._tasks.count:  # noqa: ASYNC110 - trio tells of no event
        await trio.sleep(0.001)


@pytest.mark.parametrize("count", [1, 5])
async def test_tasks_that_are_ready_together_run_before_it_waits(wait, pair, nursery, count):
    """Trio runs them in any order, and its queue does not have those of the present pass."""
    pair[1].send(b"a")
    wait.begin()
    await until_known(wait)
    waited = []
    for _ in range(10):
        event, done, ran = trio.Event(), trio.Event(), []

        async def another(event=event, ran=ran):
            await event.wait()
            ran.append(1)

        async def lone(event=event, done=done, ran=ran):
            await event.wait()
            while not wait.wait():
                await trio.lowlevel.checkpoint()
            waited.append(len(ran))
            done.set()

        for _ in range(count):
            nursery.start_soon(another)
        nursery.start_soon(lone)
        await trio.sleep(0.001)
        event.set()
        await done.wait()
    wait.end()
    assert waited == [count] * 10


async def test_it_is_not_known_who_runs_before_trio_has_waited(wait, pair):
    pair[1].send(b"a")
    wait.begin()
    assert not wait.wait()
    await until_known(wait)
    assert wait.wait()
    wait.end()


def counts():
    """The counts of tasks in this run of trio."""
    found = trio._core._run.GLOBAL_RUN_CONTEXT.runner.instruments.get("before_task_step", ())
    return [instrument for instrument in found if isinstance(instrument, TasksToRun)]


@pytest.mark.usefixtures("rarely_ticks")
async def test_tasks_are_counted_while_the_socket_is_lent(client, feed):
    for _ in range(3):
        for _ in range(2 * LONE_CALLS):
            await feed.put(b"k", b"v")
        assert len(counts()) == 1
        client._runner._lender.take_back()
        assert not counts()
    for _ in range(2 * LONE_CALLS):
        await feed.get(b"k")
    client._runner._link._transport.close()
    await feed.put(b"k", b"v")
    assert not counts()


@pytest.mark.usefixtures("rarely_ticks")
async def test_all_lent_sockets_of_a_run_share_a_count(running, feed):
    """Each step of a task calls it, so one for each of many clients would make all of them slow."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(tailrace.connect(running.url)) for _ in range(5)]
        for client in clients:
            for number in range(2 * LONE_CALLS):
                await client.feed(feed.name).put(b"k%d" % number, b"v")
            assert len(counts()) == 1
        for client in clients:
            assert len(counts()) == 1
            client._runner._lender.take_back()
        assert not counts()


async def test_a_deadline_that_is_due_has_the_loop(wait, pair):
    pair[1].send(b"x")
    with trio.CancelScope(deadline=trio.current_time() + SECONDS) as scope:
        assert wait.wait()
        scope.deadline = trio.current_time() + 0.001
        while trio.current_time() < scope.deadline:
            pass
        assert not wait.wait()
        await trio.sleep(SECONDS)
    assert scope.cancelled_caught


async def test_a_deadline_that_comes_ends_the_wait(wait):
    with trio.CancelScope(deadline=trio.current_time() + 0.02) as scope:
        assert not wait.wait()
        await trio.sleep(SECONDS)
    assert scope.cancelled_caught


@pytest.mark.parametrize("comes", [("trio",), ("trio", "mine"), ("set",), ("set", "mine")], ids="+".join)
async def test_other_sockets_have_the_loop(wait, pair, sockets, nursery, comes):
    near, far = socket.socketpair()
    near.setblocking(False)
    if "trio" in comes:
        nursery.start_soon(trio.lowlevel.wait_readable, near)
        await trio.testing.wait_all_tasks_blocked()
    else:
        sockets.watch(near, lambda: True)
    with near, far:
        far.send(b"x")
        if "mine" in comes:
            pair[1].send(b"x")
        assert not wait.wait()
        await trio.testing.wait_all_tasks_blocked()
        sockets.forget(near)


@pytest.mark.slow
async def test_a_thread_has_the_loop(wait):
    token = trio.lowlevel.current_trio_token()
    called = []
    timer = threading.Timer(0.02, token.run_sync_soon, (called.append, None))
    timer.start()
    assert not wait.wait()
    with trio.fail_after(SECONDS):
        while not called:
            await trio.lowlevel.checkpoint()
    timer.join()


async def test_a_signal_has_the_loop(wait):
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        timer = threading.Timer(0.02, signal.raise_signal, (signal.SIGUSR1,))
        timer.start()
        assert not wait.wait()
        async for number in signals:
            assert number == signal.SIGUSR1
            break
        timer.join()


async def test_nothing_comes_in_time(wait, monkeypatch):
    monkeypatch.setattr(lent_wait, "WAIT_SECONDS", 0.01)
    assert not wait.wait()
    await trio.testing.wait_all_tasks_blocked()


async def test_trio_has_a_pass_after_some_waits(wait, pair):
    pair[1].send(b"x")
    found = [wait.wait() for _ in range(2 * WAITS_MAX + 2)]
    assert found == 2 * [*[True] * WAITS_MAX, False]


async def test_a_loop_with_other_fields_is_never_replaced(pair):
    pair[1].send(b"x")
    assert not LentWait(None, pair[0], 0, TasksToRun()).wait()


@pytest.mark.slow
async def test_a_program_that_only_asks_delays_nothing_else(tmp_path, monkeypatch):
    """Deadlines, tasks, threads and other connections have their turn between answers."""
    waits = []
    original = LentWait.wait

    def wait(self):
        waits.append(original(self))
        return waits[-1]

    monkeypatch.setattr(LentWait, "wait", wait)
    steps = []

    async def sleep_often():
        while True:
            await trio.sleep(0.001)
            steps.append("slept")

    async def ask_from_threads():
        while True:
            await trio.to_thread.run_sync(lambda: trio.from_thread.run_sync(steps.append, "thread"))

    with node(tmp_path) as running:
        async with tailrace.connect(running.url) as client, tailrace.connect(running.url) as other:
            feed = await client.create_feed("feed")
            await feed.put(b"k", b"v")

            async def ask_elsewhere():
                while True:
                    await other.feed("feed").get(b"k")
                    await trio.sleep(0.002)
                    steps.append("elsewhere")

            for _ in range(2 * LONE_CALLS):
                await feed.get(b"k")
            with trio.fail_after(SECONDS):
                async with trio.open_nursery() as nursery:
                    for task in (sleep_often, ask_from_threads, ask_elsewhere):
                        nursery.start_soon(task)
                    while min(map(steps.count, ("slept", "thread", "elsewhere"))) < 20:
                        assert (await feed.get(b"k")).value == b"v"
                    nursery.cancel_scope.cancel()
            with trio.move_on_after(0.02) as scope:
                while True:
                    await feed.get(b"k")
            assert scope.cancelled_caught
            assert waits.count(True) > LONE_CALLS


def test_the_loop_of_the_installed_trio_is_known():
    async def main():
        loop = TrioLoop.of_this_run()
        assert loop is not None
        assert loop.sleep_seconds(loop.next_deadline()) > 0

    trio.run(main)
