"""What a node says that is no member of the set that it asks."""

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.outsider import leader_outside, why_needless, why_not_added
from tailrace_server.replication.voters import VACANT, Voters

NAMES = ("a:1", "b:1", "c:1")


def told(**fields):
    return MemberState(b"p" * 16, b"c" * 16, members=NAMES, **fields)


def test_a_new_node_names_the_leader_to_ask():
    seen = {"a:1": told(term=3), "b:1": told(term=4, leads=True), "c:1": None}
    assert why_not_added("d:1", seen) == (
        "d:1 is no member yet: a:1, b:1, c:1 are, and b:1 leads them. Run `tailrace member add d:1 --node b:1`"
    )
    assert leader_outside("d:1", seen | {"a:1": told(term=3, leads=True)}) == "b:1"


def test_without_a_leader_it_names_a_member():
    assert why_not_added("d:1", {"a:1": None, "b:1": told(term=4)}) == (
        "d:1 is no member yet: a:1, b:1, c:1 are. Run `tailrace member add d:1 --node b:1`"
    )
    assert not leader_outside("d:1", {"b:1": told(term=4)})


def test_a_member_and_a_node_that_founds_a_set_say_nothing():
    assert not why_not_added("c:1", {"a:1": told(leads=True), "b:1": told()})
    assert not leader_outside("c:1", {"a:1": told(leads=True)})
    assert not why_not_added("d:1", {"a:1": told(is_new=True), "b:1": None})


IDS = (b"1" * 16, b"2" * 16, b"3" * 16)
OWN, OWN_LIST = b"9" * 16, (*NAMES, "d:1")
FIRST, SECOND = Voters(4, 1, IDS), Voters(4, 2, (*IDS[:2], VACANT))


def voters_told(*numbers, record=FIRST):
    return {NAMES[n]: MemberState(IDS[n], b"c" * 16, voters=record, members=NAMES) for n in numbers}


def test_no_node_is_forced_while_a_majority_of_the_voters_answers():
    why = why_needless(OWN_LIST, OWN, voters_told(0, 2))
    assert why == (
        f"a:1, c:1 answer, voters of this cluster by {FIRST}, and choose its leader by themselves. Their list of "
        "members is not that of this node, a:1,b:1,c:1,d:1. This directory is none of theirs: stop this node, and "
        "start it with an empty one"
    )
    assert "Restart this node with their list, a:1,b:1,c:1" in why_needless(OWN_LIST, IDS[1], voters_told(0))


def test_a_node_may_be_forced_if_no_majority_of_the_voters_answers():
    assert not why_needless(OWN_LIST, OWN, {})
    assert not why_needless(OWN_LIST, OWN, voters_told(0))
    assert not why_needless(OWN_LIST, OWN, voters_told(0, record=SECOND) | voters_told(2)), "it lost its seat"
    assert not why_needless(OWN_LIST, OWN, voters_told(0, 1, 2, record=Voters())), "no record says who votes"
