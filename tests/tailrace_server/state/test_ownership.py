"""The table of a partition in a group."""

import pytest

from tailrace_server.state.ownership import Ownership, OwnershipEvent, transition


def test_the_way_from_one_owner_to_the_next():
    state = Ownership.FREE
    for event in (OwnershipEvent.GRANT, OwnershipEvent.CONFIRMED, OwnershipEvent.REVOKE, OwnershipEvent.RELEASED):
        state = transition(state, event)
    assert state is Ownership.FREE


def test_a_partition_is_granted_only_when_it_is_free():
    for state in Ownership:
        if state is not Ownership.FREE:
            with pytest.raises(RuntimeError, match="grant of a partition"):
                transition(state, OwnershipEvent.GRANT)


def test_the_end_of_a_lease_frees_whatever_is_owned():
    for state in (Ownership.GRANTING, Ownership.OWNED, Ownership.REVOKING):
        assert transition(state, OwnershipEvent.EXPIRED) is Ownership.FREE
