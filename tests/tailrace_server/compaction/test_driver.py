"""Which thread runs a step of a compaction, and how a compaction ends."""

from __future__ import annotations

import os
import threading

import pytest

from tailrace_server.compaction.driver import Driver

pytestmark = pytest.mark.slow

IDLE = getattr(os, "SCHED_IDLE", None)


def priority():
    """Returns the thread that runs, by what it is for."""
    if threading.current_thread() is threading.main_thread():
        return "own"
    assert IDLE is None or os.sched_getscheduler(0) == IDLE
    return "gentle"


class Steps:
    """Steps that note who runs them, and change the driver's priority as a node would."""

    def __init__(self, *orders, fails_at=None):
        """``orders`` are of each step: the priority that is set in it (None: none), and whether the next is long."""
        self.orders = orders
        self.fails_at = fails_at
        self.seen = []
        self.driver = Driver(self.run())

    def run(self):
        for number, (is_gentle, is_next_long) in enumerate(self.orders):
            self.seen.append(priority())
            if number == self.fails_at:
                raise OSError("the disk fails")
            if is_gentle is not None:
                self.driver.is_gentle = is_gentle
            yield is_next_long
        self.seen.append(priority())
        return "result"


def test_without_writes_no_thread_is_made():
    steps = Steps((None, False), (None, True), (None, False))
    before = threading.active_count()
    assert steps.driver.run() == "result"
    assert steps.seen == ["own"] * 4
    assert threading.active_count() == before


def test_each_step_is_run_by_the_thread_of_the_present_priority():
    steps = Steps((True, False), (None, False), (False, False), (None, False), (True, False), (False, False))
    assert steps.driver.run() == "result"
    assert steps.seen == ["own", "gentle", "gentle", "own", "own", "gentle", "own"]


def test_a_long_step_is_not_run_gently():
    steps = Steps((True, False), (None, True), (None, False), (None, True))
    assert steps.driver.run() == "result"
    assert steps.seen == ["own", "gentle", "own", "gentle", "own"]


def test_it_may_be_gentle_from_its_beginning_to_its_end():
    steps = Steps((None, False), (None, False))
    steps.driver.is_gentle = True
    assert steps.driver.run() == "result"
    assert steps.seen == ["gentle"] * 3


@pytest.mark.parametrize("is_gentle", [False, True])
def test_an_error_of_a_step_is_raised_whoever_ran_it(is_gentle):
    steps = Steps((is_gentle, False), (None, False), fails_at=1)
    with pytest.raises(OSError, match="the disk fails"):
        steps.driver.run()
    assert steps.seen == ["own", "gentle" if is_gentle else "own"]


def test_threads_end_with_the_steps():
    steps = Steps((True, False), (None, False))
    before = set(threading.enumerate())
    steps.driver.run()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
