"""Requests that have waited for long, and those that are answered and followed by others."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.link.rules import LongWaits


def test_a_request_that_is_never_answered_waits_for_long():
    now = [0.0]
    waits = LongWaits(lambda: now[0], 1.0)
    assert not waits.look(["put"])
    now[0] = 0.75
    assert not waits.look(["put"])
    now[0] = 1.0
    assert waits.look(["put"])
    assert waits.look(["get", "put"])
    assert not waits.look(["get"])


def test_a_request_begins_anew_after_a_look_without_it():
    now = [0.0]
    waits = LongWaits(lambda: now[0], 1.0)
    waits.look(["put"])
    waits.look([])
    now[0] = 1.0
    assert not waits.look(["put"])


@given(st.lists(st.frozensets(st.integers(0, 4)), max_size=30), st.integers(1, 6))
def test_it_tells_what_was_in_all_looks_of_the_time(looks, ticks):
    """One look a tick: a request waits for long if it was in the last ``ticks + 1`` of them."""
    now = [0.0]
    waits = LongWaits(lambda: now[0], float(ticks))
    for number, waiting in enumerate(looks):
        now[0] = float(number)
        recent = looks[max(number - ticks, 0) : number + 1]
        assert waits.look(waiting) is (len(recent) > ticks and bool(frozenset.intersection(*recent)))
