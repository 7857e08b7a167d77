"""What a follower holds beyond its contiguous prefix: ranges that are joined, and the holes between them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.tiers import examples

from tailrace_server.chain import AppliedRange, AppliedRanges

SEQ_MAX = 24

# parts (after seq, last seq] above the prefix 10: ranges, holes
JOINS = {
    "nothing": ([], [], []),
    "beyond a hole": ([(20, 30)], [(20, 30)], [(10, 20)]),
    "at the prefix": ([(10, 30)], [(10, 30)], []),
    "over the end of the prefix": ([(5, 30)], [(10, 30)], []),
    "inside of the prefix": ([(2, 10)], [], []),
    "two holes": ([(40, 50), (20, 30)], [(20, 30), (40, 50)], [(10, 20), (30, 40)]),
    "two that touch": ([(20, 30), (30, 40)], [(20, 40)], [(10, 20)]),
    "two that overlap": ([(30, 40), (20, 35)], [(20, 40)], [(10, 20)]),
    "one inside of another": ([(20, 40), (25, 30)], [(20, 40)], [(10, 20)]),
    "an empty one": ([(20, 20)], [], []),
}


@pytest.mark.parametrize("case", JOINS)
def test_parts_are_joined(case):
    parts, ranges, holes = JOINS[case]
    state = AppliedRanges.of(10, parts)
    assert (state.prefix, list(state.ranges), list(state.holes())) == (10, ranges, holes)


def test_a_range_tells_its_first_and_last_seq():
    assert str(AppliedRange(250, 255)) == "251 to 255"


@settings(max_examples=examples(300))
@given(st.integers(0, SEQ_MAX), st.lists(st.tuples(st.integers(0, SEQ_MAX), st.integers(0, 8)), max_size=8))
def test_ranges_and_holes_have_each_seq_once(prefix, lengths):
    parts = [(after_seq, after_seq + length) for after_seq, length in lengths]
    state = AppliedRanges.of(prefix, parts)
    held = {seq for after_seq, last_seq in parts for seq in range(after_seq + 1, last_seq + 1) if seq > prefix}
    assert seqs(state.ranges) == sorted(held)
    assert sorted(seqs(state.ranges) + seqs(state.holes())) == list(range(prefix + 1, max(held, default=prefix) + 1))
    for one, following in zip(state.ranges, state.ranges[1:], strict=False):
        assert one.last_seq < following.after_seq, "ranges that touch are one"


def seqs(ranges):
    return [seq for one in ranges for seq in range(one.after_seq + 1, one.last_seq + 1)]
