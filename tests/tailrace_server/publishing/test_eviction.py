"""Which stages give way: the oldest, none that is young, and no more than it takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.publishing.eviction import AGE_S_MIN, StageBounds, StageUse, stages_to_evict

NOW = 10_000.0
BOUNDS = StageBounds(stages=8, open=4, nbytes=100)
HELD = st.lists(
    st.builds(
        StageUse,
        st.binary(min_size=4, max_size=4),
        st.floats(NOW - 2 * AGE_S_MIN, NOW),
        st.integers(1, 60),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda stage: stage.id,
)


def is_roomy(held):
    opened = sum(stage.is_open for stage in held)
    return len(held) <= 6 and opened <= 3 and sum(stage.nbytes for stage in held) <= 75


@given(HELD)
def test_old_ones_go_until_there_is_room(held):
    gone = stages_to_evict(held, BOUNDS, NOW)
    left = [stage for stage in held if stage.id not in gone]
    old = [stage for stage in left if NOW - stage.heard_at >= AGE_S_MIN]
    assert all(NOW - stage.heard_at >= AGE_S_MIN for stage in held if stage.id in gone)
    assert is_roomy(left) or not old or not any(stage.is_open for stage in old)
    if is_roomy(held):
        assert gone == []


@given(HELD)
def test_none_goes_that_need_not(held):
    """With the last of them there is too much of something."""
    by_id = {stage.id: stage for stage in held}
    gone = stages_to_evict(held, BOUNDS, NOW)
    if gone:
        left = [stage for stage in held if stage.id not in gone]
        assert not is_roomy([*left, by_id[gone[-1]]])
