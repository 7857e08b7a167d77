from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.replication.quorum import Acknowledgements

U, V = b"u" * 16, b"v" * 16
LOG = FailoverLog([(U, 1, 0)])
LATER = LOG.with_entry(FailoverEntry(V, 2, 10))
A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


def test_the_leader_and_one_other_are_a_majority_of_three():
    acknowledgements = Acknowledgements(1)
    assert acknowledgements.quorum_seq(10, LOG) == 0
    assert acknowledgements.acknowledged(A, U, 7, LOG)
    assert acknowledgements.quorum_seq(10, LOG) == 7
    assert acknowledgements.acknowledged(B, U, 9, LOG)
    assert acknowledgements.quorum_seq(10, LOG) == 9


def test_a_leader_that_is_no_voter_needs_a_majority_of_others():
    acknowledgements = Acknowledgements(1)
    acknowledgements.acknowledged(A, U, 7, LOG)
    acknowledgements.need(2)
    assert acknowledgements.quorum_seq(10, LOG) == 0
    acknowledgements.acknowledged(B, U, 5, LOG)
    assert acknowledgements.quorum_seq(10, LOG) == 5


def test_a_majority_includes_the_leaders_disk():
    """Hazard 3: two others that have it on their disks are not enough."""
    acknowledgements = Acknowledgements(1)
    acknowledgements.acknowledged(A, U, 7, LOG)
    acknowledgements.acknowledged(B, U, 7, LOG)
    assert acknowledgements.quorum_seq(3, LOG) == 3


def test_what_was_held_under_an_older_branch_does_not_count():
    """Hazard 4: a dead tail can be as long."""
    acknowledgements = Acknowledgements(1)
    assert not acknowledgements.acknowledged(A, U, 15, LATER)
    assert acknowledgements.quorum_seq(20, LATER) == 0


def test_an_acknowledgement_counts_from_the_base_of_the_branch_on():
    acknowledgements = Acknowledgements(1)
    assert not acknowledgements.acknowledged(A, V, 9, LATER)
    assert acknowledgements.acknowledged(A, V, 10, LATER)
    assert acknowledgements.quorum_seq(20, LATER) == 10


def test_a_new_branch_forgets_what_was_acknowledged_of_the_one_before():
    acknowledgements = Acknowledgements(1)
    acknowledgements.acknowledged(A, U, 10, LOG)
    assert acknowledgements.quorum_seq(20, LATER) == 0
    assert acknowledgements.acknowledged(B, V, 10, LATER)
    assert acknowledgements.quorum_seq(20, LATER) == 10


def test_a_voter_that_has_no_vote_any_more():
    acknowledgements = Acknowledgements(2)
    acknowledgements.acknowledged(A, U, 5, LOG)
    acknowledgements.acknowledged(B, U, 5, LOG)
    assert acknowledgements.quorum_seq(5, LOG) == 5
    acknowledgements.forget(B)
    assert acknowledgements.quorum_seq(5, LOG) == 0


said = st.tuples(st.sampled_from([A, B, C, D]), st.sampled_from([U, V]), st.integers(0, 20))


@given(st.lists(said, max_size=30), st.integers(0, 20), st.sampled_from([2, 3]), st.sampled_from([LOG, LATER]))
def test_against_counting_who_holds_each_seq(all_said, durable_seq, majority, log):
    acknowledgements = Acknowledgements(majority - 1)
    valid = []
    for voter, branch, seq in all_said:
        counts = acknowledgements.acknowledged(voter, branch, seq, log)
        assert counts == (branch == log.branch and seq >= log[0].base)
        if counts:
            valid.append((voter, seq))

    def holders(wanted):
        return len({voter for voter, seq in valid if seq >= wanted}) + 1

    held = [seq for seq in range(1, durable_seq + 1) if holders(seq) >= majority]
    assert acknowledgements.quorum_seq(durable_seq, log) == max(held, default=0)
