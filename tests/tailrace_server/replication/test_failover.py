"""The table of failover: every state and event, and paths through it."""

import itertools

import pytest

from tailrace_server.replication.failover import FailoverEvent as E
from tailrace_server.replication.failover import FailoverState as S
from tailrace_server.replication.failover import noticed, transition

# Whether it leads, withholds writes, and follows a leader.
MEMBERS = [(False, False, False), (False, False, True), (True, False, False), (True, True, False)]


def walk(state, *events):
    for event in events:
        state = transition(state, event)
    return state


@pytest.mark.parametrize(
    ("begin", "events", "end"),
    [
        (S.FOLLOWS, [E.LEADER_LOST, E.DUE, E.GRANTED, E.WON], S.LEADS),
        (S.WAITS, [E.DUE, E.REFUSED, E.DUE, E.GRANTED, E.FAILED], S.WAITS),
        (S.WAITS, [E.DUE, E.LEADER_FOUND], S.FOLLOWS),
        (S.LEADS, [E.MAJORITY_GONE, E.MAJORITY_BACK], S.LEADS),
        (S.LEADS, [E.MAJORITY_GONE, E.WON], S.LEADS),
        (S.LEADS, [E.MAJORITY_GONE, E.DEPOSED, E.LEADER_FOUND], S.FOLLOWS),
        (S.LEADS, [E.DISK_STUCK, E.DISK_WELL], S.WAITS),
    ],
)
def test_paths(begin, events, end):
    assert walk(begin, *events) is end


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (S.FOLLOWS, E.DUE),
        (S.WAITS, E.GRANTED),
        (S.WAITS, E.MAJORITY_GONE),
        (S.LEADS, E.WON),
        (S.UNFIT, E.DUE),
        (S.UNFIT, E.LEADER_FOUND),
    ],
)
def test_other_events_are_errors(state, event):
    with pytest.raises(RuntimeError, match=f"failover state {state.name}: event {event.name} is not possible"):
        transition(state, event)


@pytest.mark.parametrize(("state", "member"), [*itertools.product(S, MEMBERS)])
def test_whatever_a_member_notices_is_possible_and_noticed_once(state, member):
    leads, withholds, has_leader = member

    def notice(state):
        return noticed(state, leads=leads, withholds=withholds, has_leader=has_leader)

    event = notice(state)
    if event is None:
        return
    after = transition(state, event)
    second = notice(after)
    if second is not None:
        # Deposed for another leader, which it follows.
        assert (event, second) == (E.DEPOSED, E.LEADER_FOUND)
        after = transition(after, second)
    assert notice(after) is None


def test_a_leader_that_withholds_writes_notices_that_it_leads_anew():
    assert noticed(S.WITHHOLDS, leads=True, withholds=True, has_leader=False) is None
    assert noticed(S.WITHHOLDS, leads=True, withholds=False, has_leader=False) is E.WON


@pytest.mark.parametrize("state", [state for state in S if state is not S.UNFIT])
def test_a_stuck_disk_ends_every_part(state):
    assert transition(state, E.DISK_STUCK) is S.UNFIT
