"""Work that is done right after answers: each step once and in order, whenever answers are sent, or if none are."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.upkeep import lulls as module
from tailrace_server.upkeep.lulls import LATE_SECONDS, SHORT_SECONDS, Lulls


class Clock:
    """Time that a step takes."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class Made:
    def __init__(self):
        self.clock = Clock()
        self.lulls = Lulls(self.clock)
        self.taken = []

    def steps(self, count, seconds=SHORT_SECONDS, name=""):
        """Steps that each take so many seconds."""
        for number in range(count):
            self.clock.now += seconds
            self.taken.append((name, number))
            yield


@pytest.fixture
def made():
    return Made()


async def test_each_lull_has_a_step(made, nursery, autojump_clock):
    made.lulls.begins()
    nursery.start_soon(made.lulls.run, made.steps(3))
    await trio.testing.wait_all_tasks_blocked()
    assert made.taken == []
    for count in (1, 2, 3):
        made.lulls.begins()
        assert len(made.taken) == count


async def test_a_lull_has_several_short_steps(made, nursery, autojump_clock):
    made.lulls.begins()
    nursery.start_soon(made.lulls.run, made.steps(10, SHORT_SECONDS / 2.5))
    await trio.testing.wait_all_tasks_blocked()
    made.lulls.begins()
    assert len(made.taken) == 3


async def test_work_does_not_wait_if_no_answers_are_sent(made, autojump_clock):
    begin = trio.current_time()
    await made.lulls.run(made.steps(5))
    assert len(made.taken) == 5
    assert trio.current_time() == begin


async def test_work_waits_for_a_late_lull_no_longer_than_its_bound(made, autojump_clock):
    made.lulls.begins()
    begin = trio.current_time()
    await made.lulls.run(made.steps(1, 2 * LATE_SECONDS))
    assert made.taken == [("", 0)]
    assert trio.current_time() == pytest.approx(begin + LATE_SECONDS)


@pytest.mark.parametrize("in_a_lull", [False, True])
async def test_an_error_of_a_step_is_that_of_the_work(made, autojump_clock, in_a_lull):
    def steps():
        yield
        raise ValueError("damaged")

    async def answer():
        await trio.testing.wait_all_tasks_blocked()
        made.lulls.begins()
        made.lulls.begins()

    async with trio.open_nursery() as nursery:
        if in_a_lull:
            made.lulls.begins()
            nursery.start_soon(answer)
        with pytest.raises(ValueError, match="damaged"):
            await made.lulls.run(steps())
    made.lulls.begins()


async def test_work_that_is_cancelled_takes_no_more_steps(made, autojump_clock):
    made.lulls.begins()
    with trio.move_on_after(LATE_SECONDS / 2):
        await made.lulls.run(made.steps(5))
    made.lulls.begins()
    assert made.taken == []


@given(
    st.lists(st.integers(0, 6), max_size=3),
    st.lists(st.sampled_from(["lull", "checkpoint", "pause"]), max_size=30),
    st.sampled_from([0.0, SHORT_SECONDS, LATE_SECONDS]),
)
def test_all_steps_are_taken_once_and_in_order(counts, events, seconds):
    async def main():
        made, ends = Made(), []

        async def work(name, count):
            await made.lulls.run(made.steps(count, seconds, name))
            ends.append(name)

        async with trio.open_nursery() as nursery:
            for name, count in enumerate(counts):
                nursery.start_soon(work, name, count)
            for event in events:
                match event:
                    case "lull":
                        made.lulls.begins()
                    case "checkpoint":
                        await trio.lowlevel.checkpoint()
                    case "pause":
                        await trio.sleep(module.LATE_SECONDS * 0.7)
        for name, count in enumerate(counts):
            assert [number for of, number in made.taken if of == name] == list(range(count))
        assert sorted(ends) == list(range(len(counts)))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
