"""When a wait polls before it sleeps, and how seldom if that finds nothing."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.link.busy_polling import SOON_TIMES, WAITS_MAX, WAITS_MIN, WAITS_OF_BUSY, BusyPolling

SECONDS = 1.0
SOON, LATE = SOON_TIMES * SECONDS, 2 * SOON_TIMES * SECONDS


def due():
    polling = BusyPolling(SECONDS)
    for _ in range(WAITS_MIN):
        polling.slept(SOON)
    assert polling.is_due
    return polling


def miss(polling):
    assert polling.search(list, itertools.count().__next__, 1.0) == []


def hit(polling):
    assert polling.search(lambda: [7], itertools.count().__next__, 1.0) == [7]


def waits_until_due(polling):
    for count in itertools.count():
        if polling.is_due:
            return count
        polling.slept(SOON)
    raise AssertionError


@given(st.lists(st.sampled_from([0.0, SOON, LATE]), max_size=4 * WAITS_MIN))
def test_it_polls_after_waits_in_a_row_that_ended_soon(waits):
    polling = BusyPolling(SECONDS)
    for number, seconds in enumerate(waits, 1):
        polling.slept(seconds)
        last = waits[max(number - WAITS_MIN, 0) : number]
        assert polling.is_due == (len(last) == WAITS_MIN and LATE not in last)
        if polling.is_due:
            return


@given(st.lists(st.sampled_from([0.0, SOON, LATE]), max_size=4 * WAITS_MIN))
def test_it_never_polls_without_a_time(waits):
    polling = BusyPolling(0.0)
    for seconds in waits:
        polling.slept(seconds)
        assert not polling.is_due


def test_it_goes_on_while_it_finds_something():
    polling = due()
    for _ in range(100):
        hit(polling)
        assert polling.is_due


def test_it_polls_in_vain_ever_more_seldom():
    polling, waits = due(), []
    for _ in range(14):
        miss(polling)
        assert not polling.is_due
        waits.append(waits_until_due(polling))
    assert waits == [min(WAITS_MIN * 2**number, WAITS_MAX) for number in range(14)]


def test_it_polls_more_often_again_once_it_finds_something():
    polling = due()
    for _ in range(20):
        miss(polling)
        waits_until_due(polling)
    for _ in range(int(math.log2(WAITS_MAX // WAITS_MIN))):
        hit(polling)
    miss(polling)
    assert waits_until_due(polling) == WAITS_MIN


@pytest.mark.parametrize("found", [[7], []])
def test_it_polls_no_more_for_long_if_another_process_has_had_the_processor(found):
    polling, times = due(), iter([1.0, 2 * SECONDS + 1.5])
    assert polling.search(lambda: found, lambda: next(times) if not found else 2 * SECONDS + 1.5, 1.0) == found
    assert not polling.is_due
    assert waits_until_due(polling) == WAITS_OF_BUSY


def test_a_long_wait_shortens_no_pause():
    polling = due()
    for _ in range(20):
        miss(polling)
        waits_until_due(polling)
    miss(polling)
    polling.slept(LATE)
    assert waits_until_due(polling) == WAITS_MAX


@given(st.integers(0, 5), st.integers(0, 5))
def test_it_looks_at_least_once_and_until_its_time_is_over(found_at, until):
    """The clock goes on by one for each look."""
    looks = itertools.count()
    polling = due()
    found = polling.search(lambda: [1] if next(looks) == found_at else [], itertools.count().__next__, until)
    assert found == ([1] if found_at <= until else [])
    assert next(looks) == min(found_at, until) + 1
