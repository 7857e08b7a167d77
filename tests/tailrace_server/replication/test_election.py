"""What a member does next: every combination hits one row, and the rules hold whichever row it is."""

import itertools
import re

import pytest

from tailrace_server.replication import election
from tailrace_server.replication.election import (
    MemberState,
    OwnState,
    StepKind,
    counts,
    decide,
    decide_replica,
    later_leader,
    majority_of,
    why_not_again,
)
from tailrace_server.replication.voters import Voters

NAMES = ("b:1", "c:1")


def answers():
    """What one other member may be, as far as decisions can tell; None: it does not answer."""
    yield None
    yield MemberState(is_new=True)
    for votes, led, term, leader_term in itertools.product((True, False), (True, False), (1, 2, 3), (0, 1, 2)):
        if leader_term > term or (led and not leader_term):
            continue
        yield MemberState(votes=votes, led=led, term=term, leader_term=leader_term)
        yield MemberState(votes=votes, led=led, term=term, leader_term=leader_term, promoting=True)
        if led and leader_term == term:
            yield MemberState(votes=votes, leads=True, led=True, term=term, leader_term=term)


def owns():
    for number in (0, 1):
        yield OwnState(number, True, False, 0, 0, False)
    yield OwnState(0, True, False, 0, 0, False, may_found=False)
    yield OwnState(-1, False, False, 1, 1, False)
    for votes, led, term, leader_term in itertools.product((True, False), (True, False), (1, 2, 3), (1, 2)):
        if leader_term <= term:
            yield OwnState(0, False, votes, term, leader_term, led)


ALL = [(own, dict(zip(NAMES, seen, strict=True))) for own in owns() for seen in itertools.product(answers(), repeat=2)]


@pytest.mark.slow
def test_every_row_of_the_table_is_reached_and_named():
    rows = dict(re.findall(r"^\| (\w+) \| .* \| ([A-Z_]+) \|$", election.__doc__, re.MULTILINE))
    found = {}
    for own, seen in ALL:
        for asked in ((), NAMES):
            step = decide(own, seen, frozenset(asked))
            found.setdefault(step.case, set()).add(step.kind.name)
            assert (step.address in NAMES) == (step.kind is StepKind.FOLLOW)
            assert bool(step.why) == (step.kind is StepKind.WAIT)
    assert found == {case: {move} for case, move in rows.items()}


@pytest.mark.slow
def test_nobody_leads_by_itself_without_a_majority_that_was_all_asked():
    for own, seen in ALL:
        for asked in map(frozenset, ((), NAMES[:1], NAMES)):
            if decide(own, seen, asked).kind is not StepKind.LEAD_AGAIN:
                continue
            there = [answer for answer in seen.values() if answer is not None]
            assert own.led
            assert asked == set(NAMES)
            assert own.votes + sum(answer.votes for answer in there) >= 2
            assert not any(answer.leads or answer.promoting for answer in there)
            assert all(answer.leader_term <= own.leader_term for answer in there)
            assert not any(answer.led and answer.leader_term == own.leader_term for answer in there)
            if None in seen.values():
                assert all(answer.term <= own.term for answer in there)


def test_nobody_with_a_vote_follows_below_what_it_has_promised():
    for own, seen in ALL:
        step = decide(own, seen, frozenset(NAMES))
        if step.kind is StepKind.FOLLOW:
            assert seen[step.address].leads
            term = seen[step.address].term
            assert term == max(a.term for a in seen.values() if a and a.leads)
            assert (own.term if own.votes else own.leader_term) <= term


def test_a_promise_without_a_vote_keeps_nobody_from_following():
    own = OwnState(0, False, False, 9, 2, False, placement_id=b"p" * 16)
    leader = MemberState(leads=True, votes=True, term=3, leader_term=3, led=True)
    seen = {"b:1": leader, "c:1": None}
    assert decide(own, seen, frozenset()) == (StepKind.FOLLOW, "leads", "b:1", "")
    # Its promise has counted for those who know it as a founder.
    seen["b:1"] = leader._replace(founders=(b"p" * 16,))
    assert decide(own, seen, frozenset()).case == "is_behind"
    # And that one led before the last leader that is known.
    seen["b:1"] = leader._replace(term=1, leader_term=1)
    assert decide(own, seen, frozenset()).case == "is_behind"


def test_what_a_member_without_a_vote_has_promised_keeps_nobody_from_leading_again():
    own = OwnState(0, False, True, 1, 1, True)
    three = {
        "b:1": MemberState(votes=True, term=1, leader_term=1),
        "c:1": MemberState(term=9, leader_term=1),
        "d:1": None,
    }
    assert (
        decide(own, {**three, "e:1": MemberState(votes=True, term=1)}, three.keys() | {"e:1"}).kind
        is StepKind.LEAD_AGAIN
    )


def test_a_node_that_is_not_in_the_list_neither_follows_nor_founds_nor_leads():
    for own, seen in ALL:
        if own.number < 0:
            assert decide(own, seen, frozenset(NAMES)).case == "no_member"
    assert decide(OwnState(-1, True, False, 0, 0, False), {"b:1": MemberState(is_new=True)}, frozenset()).why


def test_a_majority_to_lead_again_is_one_of_the_record():
    """A member has just left: its seat is still in the record."""
    ids = [bytes([number]) * 16 for number in range(1, 6)]
    own = OwnState(0, False, True, 1, 1, True, placement_id=ids[0], voters=Voters(1, 1, tuple(ids)))
    seen = {"b:1": MemberState(ids[1], term=1, leader_term=1), "c:1": None}
    assert decide(own, seen, seen.keys()).case == "no_majority"
    seen["c:1"] = MemberState(ids[2], term=1, leader_term=1)
    assert decide(own, seen, seen.keys()).kind is StepKind.LEAD_AGAIN


def test_only_the_first_of_a_set_of_which_all_are_new_founds_it():
    founding = [(own, seen) for own, seen in ALL if decide(own, seen, frozenset(NAMES)).kind is StepKind.FOUND]
    assert [(own.number, list(seen.values())) for own, seen in founding] == [(0, [MemberState(is_new=True)] * 2)]


def test_a_founder_that_has_not_heard_so_counts():
    founder = bytes(15) + b"b"
    own = OwnState(0, False, True, 1, 1, True, frozenset([founder]))
    seen = {"b:1": MemberState(founder, is_new=True), "c:1": None}
    assert decide(own, seen, frozenset(NAMES)).kind is StepKind.LEAD_AGAIN
    # The disk of that one was replaced since.
    seen = {"b:1": MemberState(bytes(16), is_new=True), "c:1": None}
    assert decide(own, seen, frozenset(NAMES)).case == "no_majority"


def test_a_leader_by_force_that_cannot_be_reached_is_not_deposed_by_the_last_one():
    """The returning leader has one other member beside it, and has not asked the third, which leads by force."""
    own = OwnState(0, False, True, 1, 1, True)
    seen = {"b:1": MemberState(votes=True, term=1, leader_term=1), "c:1": None}
    assert decide(own, seen, frozenset(["b:1"])).case == "not_asked"
    # Where the third one has told anybody of its term, it is known to be there.
    seen["b:1"] = MemberState(votes=True, term=2, leader_term=1)
    assert decide(own, seen, frozenset(NAMES)).case == "promised_away"
    seen["b:1"] = MemberState(votes=True, term=2, leader_term=2)
    assert decide(own, seen, frozenset(NAMES)).case == "later_leader"


def test_who_leads_again_by_itself_asks_once_more_who_has_led_since():
    for leader_term, (_, seen) in itertools.product((1, 2), ALL):
        there = {address: answer for address, answer in seen.items() if answer is not None}
        why = why_not_again(leader_term, there)
        later = [a for a in there.values() if a.leader_term > leader_term or (a.led and a.leader_term == leader_term)]
        assert bool(why) == bool(later or any(answer.promoting for answer in there.values()))


def test_a_handover_that_nobody_finished_ends_with_the_last_leader():
    own = OwnState(0, False, True, 3, 2, True)  # it has promised 3, and nobody came to lead by it
    others = [MemberState(votes=True, term=term, leader_term=2) for term in (2, 3, 4)]
    for seen in itertools.product(others, repeat=2):
        assert decide(own, dict(zip(NAMES, seen, strict=True)), frozenset(NAMES)).kind is StepKind.LEAD_AGAIN


@pytest.mark.parametrize(("members", "majority"), [(2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(members, majority):
    assert majority_of(members) == majority


@pytest.mark.parametrize(
    ("own", "seen", "move", "case"),
    [
        (OwnState(0, True, False, 0, 0, False), None, StepKind.WAIT, "no_leader"),
        (OwnState(0, True, False, 0, 0, False), MemberState(leads=True, term=1), StepKind.FOLLOW, "leads"),
        (OwnState(0, False, False, 4, 4, False), MemberState(leads=True, term=1), StepKind.FOLLOW, "leads"),
        (OwnState(0, False, False, 4, 4, False), MemberState(term=7), StepKind.WAIT, "no_leader"),
        (OwnState(0, False, True, 4, 4, True), None, StepKind.LEAD_AGAIN, "led"),
        (OwnState(0, False, True, 4, 4, True), MemberState(leads=True, term=4), StepKind.LEAD_AGAIN, "led"),
        (OwnState(0, False, True, 4, 4, True), MemberState(leads=True, term=5), StepKind.FOLLOW, "leads"),
    ],
)
def test_a_plain_replica_follows_until_it_was_told_to_lead(own, seen, move, case):
    step = decide_replica(own, {"b:1": seen})
    assert (step.kind, step.case) == (move, case)


OWN_DISK, OTHER_DISK = b"b" * 16, b"c" * 16


def by_founders(founders=()):
    """Who votes in epoch 0, for a leader that knows these founders."""
    return lambda seen: counts(seen, Voters(), founders)


def test_a_leader_steps_down_for_a_later_leader_and_may_follow_it_then():
    answers = {"b:1": MemberState(), "c:1": MemberState(votes=True, leads=True, term=3, leader_term=3, led=True)}
    found = later_leader(2, OWN_DISK, answers, by_founders())
    assert (found.why, found.term) == ("c:1 leads in term 3", 3)


@pytest.mark.parametrize(("other", "steps_down"), [(b"a" * 16, False), (OWN_DISK, False), (OTHER_DISK, True)])
def test_of_two_leaders_of_one_term_the_one_with_the_lower_id_steps_down(other, steps_down):
    """There are two where one of them was forced."""
    answers = {"c:1": MemberState(votes=True, placement_id=other, leads=True, term=2, leader_term=2, led=True)}
    assert (later_leader(2, OWN_DISK, answers, by_founders()) is not None) == steps_down


def test_a_leader_steps_down_where_a_voter_has_followed_a_later_leader_that_it_does_not_reach():
    voter = MemberState(placement_id=OTHER_DISK, term=3, leader_term=3)
    for answer, founders in ((voter._replace(votes=True), ()), (voter, (OTHER_DISK,))):
        found = later_leader(2, OWN_DISK, {"c:1": answer}, by_founders(founders))
        assert (found.why, found.term) == ("c:1 knows of the leader of term 3", 2)


def test_a_leader_leads_on_for_a_promise_for_an_earlier_leader_and_for_one_without_a_vote():
    for answer in (
        MemberState(votes=True, term=9, leader_term=2),
        MemberState(votes=True, term=9, leader_term=1),
        MemberState(votes=True, leads=True, led=True, term=1, leader_term=1),
        MemberState(term=9, leader_term=9),
        MemberState(leads=True, led=True, term=9, leader_term=9),
    ):
        assert later_leader(2, OWN_DISK, {"c:1": answer}, by_founders()) is None


def test_a_replica_of_a_node_that_does_not_lead_says_so():
    own = OwnState(-1, False, False, 3, 3, False)
    assert decide_replica(own, {"b:1": MemberState(term=3)}).why == (
        "none of b:1 leads: --replica-of has to name a node that leads"
    )
    assert decide_replica(own, {"b:1": None}).why == "the leader is not to be reached; no answer from b:1"
