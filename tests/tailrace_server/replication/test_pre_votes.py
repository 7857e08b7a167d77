"""Pre-votes: who is refused and why, and who asks first."""

import pytest

from tailrace_server.replication.pre_votes import Completeness, Voter, pause_seconds, rank_of, why_refused

EQUAL = Completeness(3, 100)
WILLING = Voter("", "", False, True, EQUAL)


def test_a_member_without_a_leader_lets_an_equal_one_lead():
    assert why_refused(EQUAL, WILLING) == ""


@pytest.mark.parametrize(
    ("voter", "why"),
    [
        (WILLING._replace(unfit="its disk fails"), "its disk fails"),
        (WILLING._replace(sticks="it leads"), "it leads"),
        (WILLING._replace(promoting=True), "it is about to lead"),
    ],
)
def test_a_member_refuses(voter, why):
    assert why_refused(EQUAL, voter) == why


@pytest.mark.parametrize(
    ("candidate", "is_refused"),
    [
        (Completeness(3, 99), True),
        (Completeness(2, 1000), True),
        (Completeness(3, 101), False),
        (Completeness(4, 1), False),
    ],
)
def test_a_member_that_has_more_refuses_if_it_stands_itself(candidate, is_refused):
    assert bool(why_refused(candidate, WILLING)) == is_refused
    assert why_refused(candidate, WILLING._replace(stands=False)) == ""


def test_the_most_complete_member_comes_first():
    others = [(Completeness(3, 90), "a"), (Completeness(3, 110), "b"), (Completeness(4, 1), "c")]
    assert rank_of(EQUAL, "d", others) == 2


def test_equals_never_have_the_same_rank():
    names = ["a", "b", "c"]
    ranks = [rank_of(EQUAL, name, [(EQUAL, other) for other in names if other != name]) for name in names]
    assert ranks == [0, 1, 2]


def test_the_pause_grows_with_rank_and_failures_up_to_a_bound():
    assert pause_seconds(0, 0, 0.0) == 0.0
    assert pause_seconds(1, 0, 0.0) == pytest.approx(0.3)
    assert pause_seconds(0, 0, 1.0) == pytest.approx(0.1)
    assert pause_seconds(0, 1, 1.0) == pytest.approx(0.2)
    assert pause_seconds(0, 1000, 1.0) == pytest.approx(1.6)
