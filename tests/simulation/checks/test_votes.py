"""The check of votes notices a leader without a majority of its record's seats, and one that is no member."""

from types import SimpleNamespace

import pytest
from tests.processes.violation import Violation

from tailrace_server.replication.membership import Membership
from tailrace_server.replication.role import Role
from tailrace_server.replication.voters import Voters

from .votes import Votes

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))
RECORD = Voters(2, 3, (A, B, C))


def made(votes, placement_id, term, number=0, voters=RECORD):
    """Returns a node that has promised ``term``; ``lead`` lets it lead."""
    led = []
    leadership = SimpleNamespace(become_leader=led.append, step_down=led.append, role=Role.LEADER, term=5)
    local = SimpleNamespace(file=SimpleNamespace(now=Membership(term=term, voters=voters)), number=number)
    successor = SimpleNamespace(why_unfit=lambda: "")
    node = SimpleNamespace(
        identity=SimpleNamespace(placement_id=placement_id), leaderships=SimpleNamespace(system=leadership)
    )
    node.members = {0: SimpleNamespace(local=local, node=node, successor=successor)}
    votes.attach("node", node)
    node.lead = lambda term: leadership.become_leader(term)
    node.step_down = lambda: leadership.step_down(5)
    node.file, node.successor = local.file, successor
    return node


@pytest.fixture
def votes():
    votes = Votes()
    votes.founded()
    return votes


def test_a_leader_needs_the_promises_of_a_majority_of_the_seats(votes):
    leader = made(votes, A, 5)
    made(votes, B, 4)
    made(votes, D, 5)
    with pytest.raises(Violation, match="by 1 promises of voters, and 2 are a majority"):
        leader.lead(5)
    made(votes, C, 5)
    leader.lead(5)


def test_a_promise_counts_while_its_node_is_down(votes):
    leader = made(votes, A, 5)
    made(votes, B, 5)
    made(votes, B, 4)  # the last life of that node has taken nothing back
    leader.lead(5)


def test_a_node_that_is_no_member_does_not_lead(votes):
    made(votes, B, 5)
    made(votes, C, 5)
    with pytest.raises(Violation, match="is no member"):
        made(votes, D, 5, number=-1).lead(5)


def test_a_leader_by_force_and_the_one_that_founds_need_no_promise():
    votes = Votes()
    founder = made(votes, A, 1)
    founder.lead(1)
    votes.founded()
    founder.file.now = founder.file.now._replace(forced=True)
    founder.lead(7)


def test_a_leader_steps_down_for_its_own_promise_or_another_leader(votes):
    leader, other = made(votes, A, 5), made(votes, B, 7)
    with pytest.raises(Violation, match="steps down in term 5"):
        leader.step_down()
    other.file.now = other.file.now._replace(leader_term=5)
    with pytest.raises(Violation, match="steps down in term 5"):
        leader.step_down()
    other.file.now = other.file.now._replace(led=True)
    leader.step_down()
    other.file.now = other.file.now._replace(leader_term=6, led=False)
    leader.step_down()


def test_a_leader_steps_down_for_its_promise_its_removal_or_its_disk(votes):
    made(votes, A, 6).step_down()
    made(votes, B, 5, number=-1).step_down()
    leader = made(votes, C, 5)
    leader.successor.why_unfit = lambda: "its disk hangs"
    leader.step_down()


def test_the_latest_record_is_that_of_the_highest_term_and_epoch(votes):
    assert votes.latest() == Voters()
    made(votes, A, 5)
    later = RECORD.led_in(4)
    made(votes, B, 5, voters=later)
    assert votes.latest() == later
