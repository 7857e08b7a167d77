"""The schedule of an open loop, and what its latencies count."""

from __future__ import annotations

import asyncio
import time

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from _peers.open_loop import Schedule, due_times, once_each, put_on_time, put_on_time_by_trio

RATES = st.floats(1.0, 100_000.0)
IN_EACH_LIBRARY = pytest.mark.parametrize("library", [asyncio, trio])


class Puts:
    """Puts that are counted while they are under way. Each one ends when ``ended`` of its key returns."""

    def __init__(self, ended):
        self._ended = ended
        self._under_way = self.most = 0

    async def put(self, key, value):
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await self._ended(key)
        self._under_way -= 1


def ran(library, puts, rows, schedule):
    """Puts the rows on time in a loop of ``library``, asyncio or trio. Returns the seconds of each."""

    async def run():
        schedule.begin()
        on_time = put_on_time if library is asyncio else put_on_time_by_trio
        return await on_time(puts, rows, schedule)

    return asyncio.run(run()) if library is asyncio else trio.run(run)


@given(st.integers(0, 500), RATES)
def test_each_put_is_due_at_the_last_tick_before_its_exact_time(count, rate):
    tick = 0.001
    due = due_times(count, rate, tick)
    assert len(due) == count
    assert due == sorted(due)
    for number, at in enumerate(due):
        assert number / rate - tick - 1e-9 <= at <= number / rate + 1e-9
        assert abs(at / tick - round(at / tick)) < 1e-6


def test_puts_that_are_due_together_have_one_tick():
    due = due_times(5, 2_000.0, 0.001)
    assert due == [0.0, 0.0, 0.001, 0.001, 0.002]
    assert list(once_each(due)) == [0.0, 0.001, 0.002]
    assert list(once_each([])) == []


@pytest.mark.slow
@IN_EACH_LIBRARY
def test_a_stall_delays_all_puts_that_were_due_in_it(library):
    rows = [(b"%d" % number, b"") for number in range(50)]
    schedule = Schedule(len(rows), 5_000.0)
    taken = []

    async def put(key, value):
        taken.append(key)
        if key == b"0":  # the whole client stands still, for longer than all of the schedule
            time.sleep(0.05)  # noqa: ASYNC251

    found = ran(library, [put], rows, schedule)
    assert taken == [key for key, _ in rows]
    assert len(found) == len(rows)
    # The last one was due 10 ms after the first, and could be put 50 ms after it.
    assert min(found) >= 0.05 - (schedule.due[-1] - schedule.due[0])


@pytest.mark.slow
@IN_EACH_LIBRARY
def test_puts_that_take_long_keep_no_later_ones_from_their_time(library):
    rows = [(b"%d" % number, b"") for number in range(20)]
    schedule = Schedule(len(rows), 1_000.0)
    done = library.Event()

    async def last_has_begun(key):
        if key == b"19":
            done.set()
        await done.wait()

    puts = Puts(last_has_begun)
    assert len(ran(library, [puts.put] * 20, rows, schedule)) == 20
    assert puts.most == 20


@pytest.mark.slow
@IN_EACH_LIBRARY
def test_puts_that_are_due_wait_for_a_free_putter(library):
    rows = [(b"%d" % number, b"") for number in range(30)]
    schedule = Schedule(len(rows), 5_000.0)
    puts = Puts(lambda key: library.sleep(0.001))
    assert len(ran(library, [puts.put] * 3, rows, schedule)) == 30
    assert puts.most <= 3
