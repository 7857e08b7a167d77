"""How fast: the arithmetic on a clock of the test, and a thread that waits for another one."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.compaction.limiter import Limiter, TokenBucket


class TestBucket:
    def test_free(self):
        bucket = TokenBucket(0, now=5.0)
        bucket.take(10**12, now=5.0)
        assert bucket.wait_seconds(5.0) == 0

    def test_a_tenth_of_a_second_is_in_hand(self):
        bucket = TokenBucket(1_000, now=0.0)
        bucket.take(100, now=0.0)
        assert bucket.wait_seconds(0.0) == 0
        bucket.take(1_000, now=0.0)
        assert bucket.wait_seconds(0.0) == pytest.approx(1.0)
        assert bucket.wait_seconds(0.75) == pytest.approx(0.25)
        assert bucket.wait_seconds(1.5) == 0

    def test_rest_saves_up_no_more_than_that(self):
        bucket = TokenBucket(1_000, now=0.0)
        bucket.take(1_100, now=1_000.0)
        assert bucket.wait_seconds(1_000.0) == pytest.approx(1.0)

    def test_a_debt_is_paid_at_the_new_rate(self):
        bucket = TokenBucket(1_000, now=0.0)
        bucket.take(2_100, now=0.0)
        bucket.set_rate(4_000, now=1.0)
        assert bucket.wait_seconds(1.0) == pytest.approx(0.25)
        bucket.set_rate(0, now=1.0)
        assert bucket.wait_seconds(1.0) == 0
        bucket.set_rate(1_000, now=1.0)
        assert bucket.wait_seconds(1.0) == 0

    @given(st.integers(1, 10**9), st.lists(st.integers(0, 10**8), min_size=1, max_size=50))
    def test_the_mean_is_the_rate(self, rate, takes):
        now = 0.0
        bucket = TokenBucket(rate, now)
        for nbytes in takes:
            bucket.take(nbytes, now)
            now += bucket.wait_seconds(now)
        assert now * rate == pytest.approx(max(0.0, sum(takes) - 0.1 * rate), rel=1e-6, abs=1.0)


class TestLimiter:
    def test_it_waits_for_what_it_owes(self):
        times = iter([0.0, 0.0, 0.0999, 0.1])
        limiter = Limiter(10**9, monotonic=lambda: next(times))
        limiter(2 * 10**8)  # a tenth of a second too much: looked at shortly before, and then
        assert next(times, None) is None

    def test_another_thread_sets_it_free(self):
        waiting = threading.Event()
        limiter = Limiter(1, monotonic=lambda: waiting.set() or 0.0)
        thread = threading.Thread(target=limiter, args=(10**9,))
        waiting.clear()
        thread.start()
        assert waiting.wait(60)
        limiter.set_rate(0)
        thread.join(60)
        assert not thread.is_alive()
