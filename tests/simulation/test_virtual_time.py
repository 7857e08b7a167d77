"""Virtual time: tasks run in the same order as with trio's own loop, and wake at the same moments."""

import contextlib
import math

import pytest
import trio
import trio.testing

from . import world
from .virtual_time import Alarm, virtual_time
from .world import simulate


def run(main):
    """Runs ``main`` on virtual time."""
    with virtual_time() as clock:
        return trio.run(main, clock=clock)


@pytest.mark.slow
def test_a_run_is_the_same_on_the_loop_of_trio(monkeypatch):
    digest = simulate(3).digest

    @contextlib.contextmanager
    def time_of_trio():
        yield trio.testing.MockClock(autojump_threshold=0)

    monkeypatch.setattr(world, "virtual_time", time_of_trio)
    assert simulate(3).digest == digest


def test_sleeps_end_in_the_order_of_their_deadlines():
    ends = []

    async def nap(seconds):
        await trio.sleep(seconds)
        ends.append((seconds, trio.current_time()))

    async def main():
        async with trio.open_nursery() as nursery:
            for seconds in (3, 0, 3_600, 1.5):
                nursery.start_soon(nap, seconds)

    run(main)
    assert ends == [(0, 0), (1.5, 1.5), (3, 3), (3_600, 3_600)]


@pytest.mark.parametrize("seconds", [10, math.inf])
def test_a_sleep_is_cancelled_and_its_time_does_not_pass(seconds):
    async def main():
        with trio.move_on_after(2) as scope:
            await trio.sleep(seconds)
        await trio.sleep(1)
        return scope.cancelled_caught, trio.current_time()

    assert run(main) == (True, 3)


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_a_sleep_needs_a_time(seconds):
    async def main():
        with pytest.raises(ValueError, match="cannot sleep"):
            await trio.sleep(seconds)

    run(main)


def test_a_shielded_alarm_outlasts_a_cancellation():
    async def main():
        with trio.move_on_after(2) as scope:
            await Alarm(5, is_shielded=True).ring()
            assert trio.current_time() == 5
            await trio.lowlevel.checkpoint()
        return scope.cancelled_caught

    assert run(main)


def test_a_shielded_alarm_rings_early_when_it_is_told_to_and_once():
    async def main():
        alarm = None

        async def wait():
            nonlocal alarm
            alarm = Alarm(5, is_shielded=True)
            await alarm.ring()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            alarm.ring_now()
            alarm.ring_now()
        moment = trio.current_time()
        await trio.sleep(10)
        return moment

    assert run(main) == 1


def test_a_jump_of_the_clock_ends_sleeps():
    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await trio.sleep(1)
            trio.lowlevel.current_clock().jump(60)
        return trio.current_time()

    assert run(main) == 61


def test_a_deadlock_is_an_error():
    with pytest.raises(RuntimeError, match="all tasks wait"):
        run(trio.Event().wait)
