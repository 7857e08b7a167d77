"""Which copies can be read, in words."""

import pytest

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.readable_copies import best_copy, good_copies, instead, passed_over, why_none_leads


def state(unreadable=0, held=10, held_term=3):
    return MemberState(votes=True, held=held, held_term=held_term, unreadable=unreadable)


def test_only_damaged_copies_are_passed_over_and_what_to_do_is_said():
    [told] = passed_over({"a:1": state(), "b:1": state(2)})
    assert told.startswith("passes over the copy of b:1, which cannot read 2 partitions")
    assert "tailrace status --node b:1" in told
    assert "copied anew from the next leader" in told
    assert "empty directory" in told
    assert "tailrace repair" not in told, "a repaired directory starts as no member"


def test_good_copies_come_with_the_most_complete_first():
    voters = {"a:1": state(held=5), "b:1": state(1, held=99), "c:1": state(held=9), "d:1": state(held=1, held_term=4)}
    assert good_copies(voters) == ["d:1", "c:1", "a:1"]
    assert instead(voters) == "promote d:1, which can read all its partitions"
    assert instead({"b:1": state(1)}) == "no other voter that answers can read all its partitions"


@pytest.mark.parametrize(
    ("voters", "best"),
    [
        ({}, ""),
        ({"b:1": state(2), "a:1": state(2)}, "a:1"),
        ({"a:1": state(2, held=99), "b:1": state(1, held=1)}, "b:1"),
        ({"a:1": state(1, held=1), "b:1": state(1, held=2)}, "b:1"),
        ({"a:1": state(1, held=9, held_term=2), "b:1": state(1, held=2)}, "b:1"),
    ],
)
def test_the_best_copy_lacks_the_fewest_partitions_and_is_the_most_complete_of_these(voters, best):
    assert best_copy(voters) == best


def test_none_leads_only_if_no_voter_can_read_its_copy():
    damaged = {"a:1": state(1), "b:1": state(3)}
    assert not why_none_leads("a:1", {}, [])
    assert not why_none_leads("a:1", {**damaged, "c:1": state()}, [])
    told = why_none_leads("a:1", damaged, ["c:1"])
    assert "a:1 cannot read 1 partition; b:1 cannot read 3 partitions" in told
    assert "Start c:1 again, whose copy may be good. Otherwise stop a node, and put a good copy" in told
    assert "tailrace repair" not in told
    assert "`tailrace promote --force --node a:1` (this node has the best copy)" in told
    assert "Stop a node, and put a good copy" in why_none_leads("b:1", damaged, [])
    assert "(it has the best copy)" in why_none_leads("b:1", damaged, [])
