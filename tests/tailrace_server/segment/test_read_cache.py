from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.segment import ReadCache

STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40), st.booleans()), max_size=60)


@given(STEPS, st.integers(0, 100))
def test_the_least_recently_used_leave_first(steps, bytes_max):
    cache, model, hits = ReadCache(bytes_max), collections.OrderedDict(), 0
    for number, nbytes, puts in steps:
        place = "a.seg", number
        if puts:
            cache.put(place, number, nbytes)
            if nbytes <= bytes_max:
                model.pop(place, None)
                model[place] = nbytes
                while sum(model.values()) > bytes_max:
                    model.popitem(last=False)
        else:
            assert cache.get(place) == (number if place in model else None)
            if place in model:
                model.move_to_end(place)
                hits += 1
        assert cache.nbytes == sum(model.values()) <= bytes_max
    assert cache.hits == hits
    assert cache.hits + cache.misses == sum(not puts for *_, puts in steps)
