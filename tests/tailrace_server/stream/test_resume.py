import pytest

from tailrace.model import EndReason, Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.replica_messages import Replica
from tailrace.wire.stream_messages import RollBack, StreamEnd, StreamOk, StreamRequest
from tailrace_server.stream.resume import answer_request, promised

U, V, W = b"u" * 16, b"v" * 16, b"w" * 16
LOG_U = FailoverLog([(U, 1, 0)])
LOG_V = FailoverLog([(V, 2, 100), (U, 1, 0)])
LOG_W = FailoverLog([(W, 3, 110), (U, 1, 0)])


def asked(seq, log=LOG_V, *, first=None, last=None, purge=None, state="leader"):
    first = seq if first is None else first
    last = seq if last is None else last
    return StreamRequest(b"f" * 16, 4, log, seq, first, last, purge, None, Level.DISK, state)


def answered(request, log=LOG_V, *, state="leader", high_seq=150, visible_seq=140, purge_seq=0, trim_seq=0):
    return answer_request(
        request,
        log=log,
        state=state,
        high_seq=high_seq,
        visible_seq=visible_seq,
        purge_seq=purge_seq,
        trim_seq=trim_seq,
    )


# A test for each row of the table in docs/protocol/streams.md, in its order.


@pytest.mark.parametrize(("here", "wanted"), [("leader", "follower"), ("follower", "leader")])
def test_not_in_the_expected_state(here, wanted):
    answer = answered(asked(120, state=wanted), state=here)
    assert answer == StreamEnd(4, EndReason.WRONG_STATE, f"partition 4 is {here} here, not {wanted}", 2)


@pytest.mark.parametrize("seq", [None, 0, 105])
def test_a_node_whose_term_is_below_the_consumers_is_behind(seq):
    bounds = {"first": 0, "last": 0} if seq is None else {}
    answer = answered(asked(seq, LOG_W, **bounds))
    assert isinstance(answer, StreamEnd)
    assert (answer.reason, answer.term) == (EndReason.BEHIND, 2)


def test_a_follower_that_has_not_come_so_far_is_behind():
    request = asked(155, first=155, last=160, state="follower")
    assert answered(request, state="follower").reason is EndReason.BEHIND
    assert isinstance(answered(request, state="follower", high_seq=160), StreamOk)


def test_a_leader_that_does_not_have_it_is_not_behind_it_has_lost_it():
    assert answered(asked(155)) == RollBack(4, 150, LOG_V, "forked")


@pytest.mark.parametrize("seq", [1, 119])
def test_a_replica_below_what_is_kept_of_a_history_copies_it_anew(seq):
    """A consumer is told that data is gone, which a program has to decide about; a copy just begins again."""
    replica = Replica(b"p" * 16, 2, "b:1", True, b"c" * 16)
    assert answered(asked(seq)._replace(replica=replica), trim_seq=120) == RollBack(4, 0, LOG_V, "trimmed")
    assert answered(asked(seq), trim_seq=120).reason is EndReason.TRIMMED
    assert answered(asked(120)._replace(replica=replica), trim_seq=120) == StreamOk(4, 120, LOG_V, 150)
    assert answered(asked(0)._replace(replica=replica), trim_seq=120) == StreamOk(4, 0, LOG_V, 150)


def test_from_now_on_is_what_the_level_shows():
    assert answered(asked(None, FailoverLog(), first=0, last=0)) == StreamOk(4, 140, LOG_V, 150)


def test_a_consumer_with_nothing_stored_begins():
    assert answered(asked(0, FailoverLog())) == StreamOk(4, 0, LOG_V, 150)


@pytest.mark.parametrize(
    ("request_", "seq", "why"),
    [
        (asked(105, LOG_U), 100, "forked"),
        (asked(90, LOG_U, first=80, last=120), 80, "half_snapshot"),
        (asked(105, FailoverLog([(W, 1, 0)])), 0, "no_common_branch"),
        (asked(105, FailoverLog()), 0, "nothing_stored"),
    ],
)
def test_by_the_function_further_down(request_, seq, why):
    assert answered(request_) == RollBack(4, seq, LOG_V, why)


def test_below_what_was_purged_it_begins_anew():
    assert answered(asked(50, LOG_U), purge_seq=60) == RollBack(4, 0, LOG_V, "purged")
    assert answered(asked(50, LOG_U, purge=60), purge_seq=60) == StreamOk(4, 50, LOG_V, 150)
    assert answered(asked(0, LOG_U), purge_seq=60) == StreamOk(4, 0, LOG_V, 150)


@pytest.mark.parametrize("request_", [asked(100, LOG_U), asked(120), asked(150), asked(90, LOG_U, first=80, last=100)])
def test_by_the_function_where_it_stands(request_):
    assert answered(request_) == StreamOk(4, request_.seq, LOG_V, 150)


@pytest.mark.parametrize(
    ("request_", "least"),
    [
        (asked(120), 120),
        (asked(120, first=110, last=140), 140),
        (asked(120, first=120, last=140), 140),  # after keys were read again
        (asked(120, first=120, last=150), 150),
        (asked(120, first=120, last=151), 120),  # was never written here, and would be waited for
    ],
)
def test_no_snapshot_ends_below_what_the_consumer_has_a_part_of(request_, least):
    assert promised(request_, 120, 150) == least
