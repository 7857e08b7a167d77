"""Which leaders a node may follow."""

import pytest

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.follow_rule import Follower, why_not_follow
from tailrace_server.replication.voters import Voters

OURS, THEIRS = b"c" * 16, b"d" * 16
NAMES = ("a:1", "b:1", "c:1")
VOTERS = Voters(4, 1, (b"1" * 16, b"2" * 16, b"3" * 16))
MEMBER = Follower(
    "b:1", OURS, is_new=False, may_join=False, is_in_set=True, voters=VOTERS._replace(term=3), foreign_term=0
)
REPLICA = MEMBER._replace(is_in_set=False, voters=Voters())
LEADER = MemberState(b"1" * 16, OURS, leads=True, term=4, members=NAMES, voters=VOTERS)


def why(own, leader=LEADER, *others):
    return why_not_follow(own, "a:1", leader, [leader, None, *others])


@pytest.mark.parametrize("own", [MEMBER, REPLICA])
def test_a_leader_of_the_same_cluster_is_followed(own):
    assert why(own) == ""


@pytest.mark.parametrize("own", [MEMBER, REPLICA])
def test_a_directory_of_another_cluster_never_follows(own):
    assert "give this node an empty directory" in why(own._replace(cluster_id=THEIRS))
    assert "give this node an empty directory" in why(own._replace(cluster_id=THEIRS, may_join=True))


@pytest.mark.parametrize("own", [MEMBER, REPLICA])
def test_a_new_directory_follows_if_it_may_join(own):
    new = own._replace(cluster_id=THEIRS, is_new=True, voters=Voters())
    assert why(new).endswith("this node has not joined that one yet")
    assert why(new._replace(may_join=True)) == ""


@pytest.mark.parametrize("own", [MEMBER, REPLICA])
def test_a_new_directory_waits_while_members_lead_two_clusters(own):
    new = own._replace(cluster_id=b"n" * 16, is_new=True, may_join=True, voters=Voters())
    other = LEADER._replace(cluster_id=THEIRS)
    assert f"members lead clusters {OURS.hex()}, {THEIRS.hex()}" in why(new, LEADER, other)
    assert why(new, LEADER, other._replace(leads=False)) == ""


def test_a_member_that_the_leader_does_not_list_waits_to_be_added():
    assert why(MEMBER._replace(name="d:1")).startswith("d:1 is no member yet")
    assert why(REPLICA._replace(name="d:1")) == ""


@pytest.mark.parametrize(
    ("own", "leader"),
    [
        (MEMBER._replace(voters=VOTERS._replace(term=5)), LEADER),
        (MEMBER, LEADER._replace(voters=Voters())),
    ],
    ids=["deposed", "earlier version"],
)
def test_a_member_with_a_later_record_of_the_voters_does_not_follow(own, leader):
    assert why(own, leader).endswith("it has been deposed, or is of an earlier version")
    assert why(own._replace(is_in_set=False), leader) == ""


def test_a_member_without_a_vote_keeps_its_later_history():
    assert "holds a history of term 5, later than term 4, in which a:1 leads" in why(MEMBER._replace(foreign_term=5))
    assert why(MEMBER._replace(foreign_term=4)) == ""
    assert why(REPLICA._replace(foreign_term=5)) == ""
