from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.segment import ReadCache

STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.booleans()), max_size=60)


@given(STEPS, st.integers(0, 100))
def test_what_is_kept_is_what_was_put_within_its_bound(steps, bytes_max):
    cache, put, hits = ReadCache(bytes_max), {}, 0
    for step, (number, nbytes, puts) in enumerate(steps):
        place = "a.seg", number
        if puts:
            before = cache.nbytes
            cache.put(place, step, nbytes)
            if nbytes <= bytes_max:
                put[place] = step
                if before + nbytes <= bytes_max:
                    assert cache.get(place) == step, "nothing has to leave"
                    hits += 1
        else:
            found = cache.get(place)
            assert found in (None, put.get(place)), "the newest, or none"
            hits += found is not None
        assert 0 <= cache.nbytes <= bytes_max
    assert cache.hits == hits


def test_a_part_that_was_just_put_is_kept():
    cache = ReadCache(10)
    for number in range(100):
        cache.put(number, number, 1 + number % 7)
        assert cache.get(number) == number


def hit_share(looks, room):
    """The share of looks that find their part, in a cache with room for so many parts, once it is full."""
    cache = ReadCache(room)
    for turn, place in enumerate(looks):
        if turn == len(looks) // 2:
            cache.hits = cache.misses = 0
        if cache.get(place) is None:
            cache.put(place, place, 1)
    return cache.hits / (cache.hits + cache.misses)


@pytest.mark.parametrize(("room", "least"), [(144, 1), (128, 0.6), (100, 0.2)])
def test_parts_that_are_gone_through_again_and_again_are_found(room, least):
    """If the least recently used part left, none would be found as soon as one has no room."""
    assert hit_share(list(range(144)) * 60, room) >= least


def test_parts_that_are_used_often_stay():
    rnd = random.Random(1)
    often = [rnd.randrange(10) if rnd.random() < 0.5 else 10 + rnd.randrange(1_000) for _ in range(20_000)]
    assert hit_share(often, 100) >= 0.5, "the half of looks that are for a few parts, and some others"
