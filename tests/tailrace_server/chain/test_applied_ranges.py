"""Applying out of order: the prefix, the ranges beside it, and the state that readers see."""

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings
from tests.tiers import examples

from tailrace_server.chain import AppliedRange, AppliedRanges, applied_ranges
from tailrace_server.chain.applied_ranges import RANGES_MAX

SEQ_MAX = 24
KEYS = "abc"


def applied(*parts):
    state = AppliedRanges()
    for part in parts:
        state = state.with_run(*part)
        state.check()
    return state


# runs in the order of their application: prefix, visible seq, ranges
JOINS = {
    "nothing": ([], 0, 0, []),
    "in order": ([(0, 10), (10, 20)], 20, 20, []),
    "beyond the prefix": ([(0, 10), (20, 30)], 10, 10, [(20, 30)]),
    "a hole is filled": ([(0, 10), (20, 30), (10, 20)], 30, 30, []),
    "one of two holes": ([(40, 50), (20, 30), (0, 20)], 30, 30, [(40, 50)]),
    "two ranges that touch": ([(20, 30), (30, 40)], 0, 0, [(20, 40)]),
    "two that overlap": ([(20, 35), (30, 40)], 0, 0, [(20, 40)]),
    "three in one": ([(20, 30), (40, 50), (30, 40)], 0, 0, [(20, 50)]),
    "once more": ([(0, 10), (20, 30), (20, 30), (0, 10)], 10, 10, [(20, 30)]),
    "over the end of the prefix": ([(0, 10), (5, 30)], 30, 30, []),
    "inside of the prefix": ([(0, 30), (10, 20)], 30, 30, []),
}


@pytest.mark.parametrize("case", JOINS)
def test_runs_are_joined(case):
    runs, prefix, visible_seq, ranges = JOINS[case]
    state = applied(*runs)
    assert (state.prefix, state.visible_seq) == (prefix, visible_seq)
    assert [one[:2] for one in state.ranges] == ranges


def test_readers_wait_for_an_end():
    state = AppliedRanges().with_complete(0, 10)
    assert (state.prefix, state.visible_seq) == (10, 0)
    assert state.with_end(8).visible_seq == 8
    assert state.with_end(8).with_end(5).visible_seq == 8
    ahead = state.with_complete(20, 30).with_end(25)
    assert ahead.ranges == (AppliedRange(20, 30, 25),)
    assert ahead.with_complete(10, 20).visible_seq == 25


def test_no_end_is_strictly_inside_of_a_run():
    """The segment (20, 30] ends at 30. The run (10, 40] lacks rows that its later rows supersede, so 30 is no state."""
    state = applied((0, 10), (20, 30), (10, 40))
    assert state.visible_seq == 40
    state = applied((20, 30), (15, 40))
    assert state.ranges == (AppliedRange(15, 40, 40),)


def test_holes_and_a_promotion_without_them():
    state = applied((0, 10), (20, 30), (40, 50)).with_complete(10, 12)
    assert state.holes() == ((12, 20), (30, 40))
    kept, dropped = state.without_ranges()
    assert kept == AppliedRanges(10, 10)
    assert dropped == (AppliedRange(10, 12), AppliedRange(20, 30, 30), AppliedRange(40, 50, 50))
    assert applied((0, 10)).without_ranges() == (AppliedRanges(10, 10), ())


def test_tombstones_go_only_as_far_as_readers_see():
    assert AppliedRanges().with_complete(0, 10).with_end(4).purge_bound == 4


def test_ranges_are_bounded():
    state = applied(*((10 * number, 10 * number + 5) for number in range(1, RANGES_MAX + 1)))
    assert len(state.ranges) == RANGES_MAX
    assert state.with_run(10_000, 10_005) is None
    assert state.with_complete(10_000, 10_005) is None
    assert state.with_run(5, 10) is not None, "a part that joins others is applied"
    assert state.with_run(0, 10) is not None


class Part:
    """Rows of a history on their way: a complete range, or a run without its superseded rows."""

    def __init__(self, after_seq, last_seq, *, is_run):
        self.after_seq, self.last_seq, self.is_run = after_seq, last_seq, is_run

    def rows(self, history):
        rows = [(seq, history[seq - 1]) for seq in range(self.after_seq + 1, self.last_seq + 1)]
        if not self.is_run:
            return rows
        return [(seq, key) for number, (seq, key) in enumerate(rows) if key not in [k for _, k in rows[number + 1 :]]]


PARTS = st.lists(
    st.tuples(st.integers(0, SEQ_MAX - 1), st.integers(1, 8), st.booleans(), st.none() | st.integers(0, 7)), max_size=12
)


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from(KEYS), min_size=SEQ_MAX, max_size=SEQ_MAX), PARTS)
def test_readers_see_only_states_that_existed(history, parts):
    """Rows are keys: the state at a seq is the last seq of each key. Whatever comes, readers see such a state."""
    check_parts(history, parts)


def check_parts(history, parts):
    held, ends = set(), {0}
    state = AppliedRanges()
    for after_seq, length, is_run, end in [*parts, (0, SEQ_MAX, True, None)]:
        part = Part(after_seq, min(after_seq + length, SEQ_MAX), is_run=is_run)
        before = state
        # Rows at or below the prefix are skipped; versions stay apart by their seqs.
        held.update(row for row in part.rows(history) if row[0] > before.prefix)
        state = state.with_run(*bounds(part)) if is_run else state.with_complete(*bounds(part))
        if end is not None and not is_run and end < part.last_seq - part.after_seq:
            state = state.with_end(part.after_seq + 1 + end)
            ends.add(part.after_seq + 1 + end)
        if is_run:
            ends.add(part.last_seq)
        state.check()
        assert state.prefix >= before.prefix
        assert state.visible_seq >= before.visible_seq
        assert state.visible_seq in ends
        shown = {key: seq for seq, key in sorted(held) if seq <= state.visible_seq}
        assert shown == {history[seq - 1]: seq for seq in range(1, state.visible_seq + 1)}
    assert state == AppliedRanges(SEQ_MAX, SEQ_MAX)


def bounds(part):
    return part.after_seq, part.last_seq


original_with = AppliedRanges._with


def visible_as_far_as_applied(self, added, *, keeps_ends):
    state = original_with(self, added, keeps_ends=keeps_ends)
    return state._replace(visible_seq=state.prefix)


def joined_over_a_hole(self, added, *, keeps_ends):
    return original_with(self, added._replace(after_seq=max(added.after_seq - 1, 0)), keeps_ends=keeps_ends)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize("bug", [visible_as_far_as_applied, joined_over_a_hole])
def test_a_planted_bug_is_found(monkeypatch, bug):
    monkeypatch.setattr(applied_ranges.AppliedRanges, "_with", bug)
    histories = st.lists(st.sampled_from(KEYS), min_size=SEQ_MAX, max_size=SEQ_MAX)
    finding = settings(max_examples=200, database=None, phases=[Phase.generate], report_multiple_bugs=False)(
        given(histories, PARTS)(check_parts)
    )
    with pytest.raises(AssertionError):
        finding()
