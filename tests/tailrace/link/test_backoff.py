from hypothesis import given
from hypothesis import strategies as st

from tailrace.link.backoff import FIRST_SECONDS, RECONNECT_GROWTH, SECONDS_MAX, backoff_seconds


def test_it_doubles_up_to_its_cap():
    waits = [backoff_seconds(tries, lambda: 1.0) for tries in range(1, 12)]
    assert waits[:4] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS, 8 * FIRST_SECONDS]
    assert waits[-1] == SECONDS_MAX
    assert waits == sorted(waits)


@given(st.integers(1, 10**9))
def test_it_is_jittered_by_half(tries):
    whole = backoff_seconds(tries, lambda: 1.0)
    assert backoff_seconds(tries, lambda: 0.0) == whole / 2
    assert whole / 2 <= backoff_seconds(tries) <= whole <= SECONDS_MAX


@given(st.integers(1, 40))
def test_a_client_finds_a_node_again_within_half_of_the_outage(tries):
    waits = [backoff_seconds(number, lambda: 1.0, RECONNECT_GROWTH) for number in range(1, tries + 1)]
    assert waits == sorted(waits)
    assert waits[-1] <= 1.001 * (sum(waits[:-1]) / 2 + FIRST_SECONDS)
    assert backoff_seconds(10**9, lambda: 1.0, RECONNECT_GROWTH) == SECONDS_MAX
