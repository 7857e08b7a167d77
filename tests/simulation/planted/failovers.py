"""Bugs of failover by itself: who may stand, who refuses, and when a leader takes no writes."""

from __future__ import annotations

from tailrace_server.replication import succession
from tailrace_server.replication.leader_watch import LeaderWatch, Patience
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.succession import Succession

from .bug import Bug

_why_refused, _begin = succession.why_refused, LeaderWatch.begin


async def _ask_nobody(member):
    """Stands without pre-votes."""
    return ""


def _refuse_unless_ahead(candidate, voter):
    """Refuses for the other reasons only, whatever the candidate holds."""
    return _why_refused(candidate, voter._replace(has=candidate))


def _begin_surely(watch, now, grace_s, *, is_sure=True):
    """Counts each leader as heard that is followed, and each of its questions."""
    _begin(watch, now, grace_s)


BUGS = {
    "a candidate that asks for no pre-votes": Bug(
        [(Succession, "_ask_pre_votes", _ask_nobody)], {"leader_and_follower_cut": 0}
    ),
    "a member that hears the leader and lets another one lead": Bug(
        [(Succession, "why_sticky", lambda member: "")], {"leader_and_follower_cut": 0}
    ),
    "a leader without a majority that takes writes": Bug(
        [(Leadership, "withhold_writes", lambda leadership, why: None)], {"leader_isolated": 0}
    ),
    "a leader without a majority that is heard by a member which follows it again": Bug(
        # With patience the member also gives that leader up less often, and another one comes to lead between.
        [(LeaderWatch, "begin", _begin_surely), (Patience, "factor", lambda patience, now: 1)],
        {"leader_sees_one_of_three": 0},
    ),
    "a follower that waits no longer for a leader that it has given up in error": Bug(
        [(Patience, "factor", lambda patience, now: 1)], {"slow_leader": 0}
    ),
    "a pre-vote that does not look at what the candidate holds": Bug(
        [
            (succession, "why_refused", _refuse_unless_ahead),
            (succession, "rank_of", lambda own, name, others: 0),
        ],
        {"the_complete_one_leads": 0},
    ),
}
