"""Queues are gone through when one may be due, and not before."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.upkeep.dirty_queues import DirtyQueues

BOUND_S = 10.0

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["begin", "forget"]), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.floats(0, 2 * BOUND_S)),
        st.tuples(st.sampled_from(["look", "look, and a queue comes meanwhile"]), st.just(0)),
    ),
    max_size=20,
)


@given(STEPS)
def test_a_queue_that_has_come_of_age_is_always_looked_for(steps):
    queues, since, now = DirtyQueues(), {}, 0.0
    for step, value in steps:
        if step == "wait":
            now += value
        elif step == "begin":
            queues.begin(value, now, BOUND_S)
            since[value] = now
        elif step == "forget":
            queues.forget(value)
            since.pop(value, None)
        else:
            queues.begin_look()
            found = dict(queues.items())
            if step != "look":
                queues.begin(4, now, BOUND_S)
                since[4] = now
            queues.looked(min((at + BOUND_S for at in found.values()), default=float("inf")))
        assert dict(queues.items()) == since
        if any(now >= at + BOUND_S for at in since.values()):
            assert queues.may_be_due(now)


def test_queues_that_are_young_are_looked_at_once_and_not_again():
    queues = DirtyQueues()
    assert not queues.may_be_due(1_000.0)
    queues.begin("a", 0.0, BOUND_S)
    queues.begin("b", 5.0, BOUND_S)
    assert not queues.may_be_due(BOUND_S - 1)
    queues.must_look()
    assert queues.may_be_due(6.0)
    queues.begin_look()
    queues.looked(0.0 + BOUND_S)
    assert not queues.may_be_due(BOUND_S - 1)
    assert queues.may_be_due(BOUND_S)
