from hypothesis import given
from hypothesis import strategies as st

from tailrace.link.backoff import FIRST_SECONDS, SECONDS_MAX, backoff_seconds


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
