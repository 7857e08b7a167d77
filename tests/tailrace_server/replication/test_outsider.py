"""What a node says that is no member of the set that it asks."""

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.outsider import leader_outside, why_not_added

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
