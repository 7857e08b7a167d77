"""When a follower looks whether a partition that lags is far behind by now."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.replication.lag_rule import Lag, LagAnswer

MIB = 1024 * 1024
ROW_BYTES = 1024


def lagging(nbytes, wait_bytes=16 * MIB):
    """The lag of a partition of whose rows 1 to 1,000 came, with ``nbytes``, while the leader has twice as many."""
    lag = Lag(wait_bytes)
    lag.told(2_000)
    return lag, lag.received(1_000, nbytes)


def test_a_partition_is_due_once_the_wait_came_while_it_lags():
    assert not lagging(16 * MIB - 1)[1]
    assert lagging(16 * MIB)[1]


def test_a_lag_that_is_told_behind_the_rows():
    lag = Lag(16 * MIB)
    lag.told(1)
    assert not lag.received(1, 0)
    for seq in range(2, 30):  # as many bytes as the wait come between two reports
        assert not lag.received(seq, MIB)
        assert not lag.told(seq)
    assert not lag.received(30, 16 * MIB)
    assert not lag.told(31)
    assert lag.received(31 - 1, 16 * MIB)


def test_the_leader_has_no_more_and_tells_nothing_more():
    """A burst is over: the rest of the stream brings no report."""
    lag, is_due = lagging(MIB)
    assert not is_due
    assert [lag.received(seq, 5 * MIB) for seq in (1_010, 1_020, 1_030)] == [False, False, True]
    assert not lag.received(2_000, MIB), "it is level"


def test_a_partition_that_is_near_waits_as_long_as_before():
    lag, _ = lagging(16 * MIB)
    lag.answered(LagAnswer.NEAR)
    assert not lag.told(3_000)
    assert lag.received(1_001, 16 * MIB)


def test_each_copy_doubles_the_wait_until_the_partition_is_level():
    lag, _ = lagging(16 * MIB)
    lag.answered(LagAnswer.SEGMENTS)
    lag.restarted()
    lag.told(4_000)
    assert not lag.received(3_000, 31 * MIB)
    assert lag.received(3_001, MIB)
    lag.answered(LagAnswer.STREAM)
    assert not lag.received(3_002, 63 * MIB)
    assert not lag.received(4_000, 1), "it is level"
    lag.told(5_000)
    assert lag.received(4_001, 16 * MIB)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("received"), st.integers(1, 1 << 24)),
        st.tuples(st.just("told"), st.integers(0, 3)),  # how many rows the leader has more
        st.tuples(st.just("restarted"), st.just(0)),
    ),
    max_size=200,
)


@given(STEPS, st.integers(0, 1 << 22), st.lists(st.sampled_from(LagAnswer), min_size=1))
def test_a_partition_never_goes_to_and_fro(steps, wait_bytes, answers):
    """Without a level moment each look but for a near one comes after twice as many bytes; none comes for less."""
    lag, seq, leader_seq, looks = Lag(wait_bytes), 0, 0, 0
    least = first = max(wait_bytes, 1)
    since_look = 0
    for step, value in steps:
        is_due = False
        if step == "received":
            seq += 1
            since_look += value
            is_due = lag.received(seq, value)
        elif step == "told":
            leader_seq = seq + value
            is_due = lag.told(leader_seq)
        else:
            seq = leader_seq = since_look = 0
            lag.restarted()
        if seq and leader_seq <= seq:
            assert not is_due
            since_look, least = 0, first
        assert is_due == (leader_seq > seq and since_look >= least) or step == "restarted"
        if is_due:
            answer = answers[looks % len(answers)]
            looks += 1
            lag.answered(answer)
            since_look = 0
            if answer is not LagAnswer.NEAR:
                least *= 2
