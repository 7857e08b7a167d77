"""Hazard 24: wall clocks decide nothing; an age counts only the time that the node was up."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.state.uptime import JUMP_US_MAX, RUNS_MAX, NodeRun, Uptime

HOUR = 3_600_000_000
DAY = 24 * HOUR
MINUTE = HOUR // 60


def test_the_drawing():
    uptime = Uptime([NodeRun(0, 2 * DAY + HOUR)], 3 * DAY + 4 * HOUR, 0)
    uptime.tick(4 * DAY + 4 * HOUR, DAY)
    assert uptime.cutoff(3 * DAY) == HOUR
    assert uptime.cutoff(DAY) == 3 * DAY + 4 * HOUR
    assert uptime.cutoff(DAY // 2) == 3 * DAY + 4 * HOUR + DAY // 2


def test_time_that_the_node_was_down_does_not_count():
    uptime = Uptime([NodeRun(0, HOUR)], 1_000 * DAY, 0)
    uptime.tick(1_000 * DAY + HOUR, HOUR)
    assert uptime.cutoff(3 * HOUR) is None


def test_a_clock_that_jumps_a_year_forward_makes_nothing_old():
    uptime = Uptime([], 0, 0)
    uptime.tick(5 * DAY, 5 * DAY)
    assert uptime.cutoff(3 * DAY) == 2 * DAY
    uptime.tick(370 * DAY, 5 * DAY + 1)
    assert uptime.cutoff(3 * DAY) is None
    assert "8760.0 h" in uptime.suspended
    uptime.tick(5 * DAY + 2, 5 * DAY + 2)
    assert uptime.cutoff(3 * DAY) is None, "what was stamped meanwhile is wrong by a year"


def test_a_clock_that_is_set_by_a_few_minutes_is_no_jump():
    uptime = Uptime([], 0, 0)
    uptime.tick(10 * HOUR + JUMP_US_MAX, 10 * HOUR)
    assert not uptime.suspended


def test_a_clock_that_lags_for_a_while_makes_nothing_old():
    uptime = Uptime([], 0, 0)
    uptime.tick(10 * HOUR, 10 * HOUR)
    stamped_us = 10 * HOUR + 1 - HOUR // 2
    uptime.tick(stamped_us, 10 * HOUR + 1)  # set back by half an hour, and right again
    uptime.tick(13 * HOUR, 13 * HOUR)
    assert uptime.cutoff(3 * HOUR) < stamped_us
    assert uptime.cutoff(3 * HOUR - 1) == stamped_us


def test_what_is_stamped_as_a_run_begins_is_of_that_run():
    """Though the run before it has come as far by a clock that was set back since."""
    uptime = Uptime([NodeRun(0, 10 * HOUR)], 9 * HOUR, 0)
    uptime.tick(9 * HOUR, HOUR // 2)
    assert uptime.cutoff(HOUR) < 9 * HOUR


def test_what_was_stamped_between_a_tick_and_a_jump_is_not_old_too_early():
    uptime = Uptime([], 0, 0)
    uptime.tick(HOUR, HOUR)
    stamped_us = HOUR + MINUTE - 1
    uptime.tick(400 * DAY, stamped_us + 1)
    uptime.tick(400 * DAY + 3 * HOUR - 2, stamped_us + 3 * HOUR - 1)
    later = Uptime(uptime.runs, 400 * DAY + 3 * HOUR, 0)
    assert later.cutoff(3 * HOUR) < stamped_us
    assert later.cutoff(2 * HOUR) > stamped_us


def test_a_start_before_the_end_of_the_last_run_vouches_for_nothing():
    assert not Uptime([NodeRun(0, DAY)], DAY - JUMP_US_MAX, 0).suspended
    assert Uptime([NodeRun(0, DAY)], DAY - JUMP_US_MAX - 1, 0).suspended


def test_the_runs_that_are_stored_are_bounded():
    uptime = Uptime([NodeRun(number * HOUR, 1) for number in range(2 * RUNS_MAX)], 3 * RUNS_MAX * HOUR, 0)
    assert len(uptime.runs) == RUNS_MAX
    assert uptime.runs[-2] == NodeRun((2 * RUNS_MAX - 1) * HOUR, 1)


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), min_size=1, max_size=10),
    st.integers(0, 300),
    st.integers(0, 1_000),
)
def test_a_timestamp_at_or_before_the_cutoff_has_seen_that_much_uptime(spans, age, stamp):
    runs, wall = [], 0
    for down, up in spans:
        wall += down
        runs.append(NodeRun(wall, up))
        wall += up
    *earlier, last = runs
    uptime = Uptime(earlier, last.began_us, 7)
    uptime.tick(last.began_us + last.up_us, 7 + last.up_us)
    cutoff = uptime.cutoff(age)
    up_since = sum(max(0, run.began_us + run.up_us - max(run.began_us, stamp)) for run in runs)
    if cutoff is not None and stamp <= cutoff:
        assert up_since >= age


def test_what_was_stamped_after_a_clock_was_set_back_is_not_old_two_starts_later():
    day_us = 86_400_000_000
    uptime = Uptime([], 100 * day_us, 0)
    uptime.tick(110 * day_us, 10 * day_us)
    set_back_us = 105 * day_us
    uptime.tick(set_back_us, 10 * day_us)
    stamped_us = set_back_us + 1
    uptime.tick(set_back_us + 2, 10 * day_us + 2)
    for start in (3, 4):
        uptime = Uptime(uptime.runs, set_back_us + start, 0)
    cutoff_us = uptime.cutoff(3 * day_us)
    assert cutoff_us is None or cutoff_us < stamped_us
