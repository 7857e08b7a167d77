"""Durations are counted by the first bound that is not below them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.state.durations import REQUEST_BOUNDS, WORK_BOUNDS, Durations


@pytest.mark.parametrize("bounds", [REQUEST_BOUNDS, WORK_BOUNDS])
def test_bounds_rise(bounds):
    assert list(bounds) == sorted(set(bounds))


@given(st.lists(st.floats(0, 20) | st.sampled_from(REQUEST_BOUNDS)))
def test_each_duration_counts_for_every_bound_that_is_not_below_it(seconds):
    durations = Durations()
    for each in seconds:
        durations.add(each)
    *bounded, (last, total) = durations.counts()
    assert (last, total) == (None, len(seconds))
    assert bounded == [(bound, sum(each <= bound for each in seconds)) for bound in REQUEST_BOUNDS]
    assert durations.seconds == pytest.approx(sum(seconds))
