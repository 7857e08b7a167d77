"""A look at many things is spread over its time."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.host.spreading import TOGETHER, spread


def looks_of(count, seconds):
    """Returns the time of each look, and the things of it."""
    looks = []

    async def main():
        begin = trio.current_time()
        await spread(range(count), seconds, lambda some: looks.append((trio.current_time() - begin, list(some))))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return looks


def test_few_things_have_one_look_at_once():
    assert looks_of(TOGETHER, 2.5) == [(0, list(range(TOGETHER)))]


def test_without_things_there_is_no_look():
    assert looks_of(0, 2.5) == []


@given(st.integers(1, 1_000), st.floats(0.1, 100))
def test_each_thing_has_one_look_in_its_part_of_the_time(count, seconds):
    looks = looks_of(count, seconds)
    assert [thing for _, some in looks for thing in some] == list(range(count))
    for at, some in looks:
        assert len(some) <= TOGETHER
        assert at == pytest.approx(seconds * some[0] / count, abs=1e-6)
