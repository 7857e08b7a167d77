"""Signs of life between a leader and its followers."""

import math

import pytest

from tailrace_server.replication.leader_watch import PATIENCE_MAX, LeaderWatch, MajorityWatch, Patience


@pytest.fixture
def watch():
    watch = LeaderWatch()
    watch.begin(10.0, 4.0)
    return watch


def test_a_leader_that_was_never_heard():
    assert not LeaderWatch().hears(0.0, 1.5)
    assert LeaderWatch().silent_s(100.0) == 0


def test_a_leader_that_has_just_been_found_counts_as_heard(watch):
    assert watch.hears(11.4, 1.5)
    assert not watch.hears(11.5, 1.5)


def test_a_leader_that_need_not_ask_is_never_silent():
    watch = LeaderWatch()
    watch.begin(10.0, math.inf)
    assert watch.silent_s(1_000.0) == 0


def test_the_first_question_may_take_longer(watch):
    assert watch.silent_s(14.0) == 0
    assert watch.silent_s(15.0) == 1.0


def test_silence_counts_from_the_last_question(watch):
    watch.heard(11.0)
    assert watch.silent_s(12.0) == 1.0
    watch.heard(12.0)
    assert watch.silent_s(12.0) == 0


def test_a_node_that_was_held_up_itself_waits_once_more(watch):
    watch.heard(11.0)
    watch.excuse(50.0)
    assert watch.silent_s(50.5) == 0.5


def test_a_node_that_is_always_held_up_notices_that_the_leader_is_gone(watch):
    """It would not stop following, and would refuse each candidate, because it hears the leader."""
    watch.heard(11.0)
    for number in range(10):
        watch.excuse(20.0 + 2.0 * number)
    assert watch.silent_s(38.0) == 14.0
    assert not watch.hears(38.0, 1.5)
    watch.heard(39.0)
    watch.excuse(45.0)
    assert watch.hears(46.0, 1.5)


def test_a_leader_without_a_majority_is_heard_by_its_second_question():
    """It asks the first one of each member that follows it anew, and the next one when a majority has answered."""
    watch = LeaderWatch()
    watch.begin(10.0, 4.0, is_sure=False)
    assert not watch.hears(10.0, 1.5)
    watch.excuse(10.5)
    watch.heard(11.0)
    assert not watch.hears(11.0, 1.5)
    assert watch.silent_s(12.0) == 1.0
    watch.heard(12.0)
    assert watch.hears(12.0, 1.5)
    watch.begin(20.0, 4.0)
    assert watch.hears(20.0, 1.5)


def test_a_connection_that_broke_ends_the_hearing(watch):
    watch.heard(11.0)
    watch.end()
    assert not watch.hears(11.0, 1.5)
    assert watch.silent_s(12.0) == 0


def test_another_leader_has_the_time_for_its_first_question_again(watch):
    watch.heard(11.0)
    watch.begin(12.0, 4.0)
    assert watch.silent_s(16.0) == 0
    assert watch.silent_s(17.0) == 1.0


def test_a_leader_that_was_given_up_and_leads_on_gets_twice_the_time():
    patience, factors = Patience(), []
    for number in range(5):
        factors.append(patience.factor(10.0 * number))
        patience.gave_up("a")
        patience.found("a", 10.0 * number)
    assert factors == [1, 2, 4, 8, PATIENCE_MAX]
    assert [patience.factor(40.0 + calm) for calm in (59.0, 60.0, 120.0, 180.0, 10_000.0)] == [8, 4, 2, 1, 1]


def test_a_leader_whose_place_another_one_has_taken_was_gone():
    patience = Patience()
    patience.gave_up("a")
    patience.found("b", 1.0)
    patience.found("a", 2.0)
    assert patience.factor(2.0) == 1


def test_a_leader_that_is_followed_anew_without_silence_gets_the_usual_time():
    patience = Patience()
    patience.found("a", 1.0)
    patience.found("a", 2.0)
    assert patience.factor(2.0) == 1


def test_patience_that_has_halved_rises_from_there():
    patience = Patience()
    for at in (0.0, 1.0, 70.0):
        patience.gave_up("a")
        patience.found("a", at)
    assert patience.factor(70.0) == 4


def test_a_leadership_begins_confirmed():
    majority = MajorityWatch()
    majority.lead(1, 5.0)
    assert majority.unconfirmed_s(6.0) == 1.0


def test_an_answer_counts_from_its_question():
    majority = MajorityWatch()
    majority.lead(1, 5.0)
    majority.asked()
    assert majority.is_asking
    majority.confirmed(1, 6.0)
    assert not majority.is_asking
    assert majority.unconfirmed_s(9.0) == 3.0


def test_an_answer_to_an_earlier_leadership_counts_for_nothing():
    majority = MajorityWatch()
    majority.lead(1, 5.0)
    majority.asked()
    majority.lead(2, 6.0)
    assert not majority.is_asking
    majority.asked()
    majority.confirmed(1, 5.5)
    majority.failed(1)
    assert majority.is_asking
    assert majority.unconfirmed_s(7.0) == 1.0
    majority.failed(2)
    assert not majority.is_asking
