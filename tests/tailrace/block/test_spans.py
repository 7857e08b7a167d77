from __future__ import annotations

from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block.spans import spans

SIZES = st.lists(st.integers(0, 50))


@given(SIZES, st.integers(1, 60), st.integers(1, 10))
def test_pieces_are_whole_in_order_and_end_where_a_bound_is_reached(sizes, bytes_max, rows_max):
    ends = np.array(list(accumulate(sizes)), np.int64)
    found = list(spans(ends, bytes_max, rows_max))
    assert [row for start, stop in found for row in range(start, stop)] == list(range(len(sizes)))
    for start, stop in found:
        assert stop - start <= rows_max
        assert sum(sizes[start : stop - 1]) < bytes_max
        full = sum(sizes[start:stop]) >= bytes_max or stop - start == rows_max
        assert full or stop == len(sizes)


def test_no_rows():
    assert list(spans(np.array([], np.int64), 1, 1)) == []
