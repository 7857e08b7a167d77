"""Bugs of promotions and handovers: votes, fetched data, entries, and the fate of the leader before."""

from __future__ import annotations

from tailrace.model import Level
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication import gathered_promises, local_member, member, missing_rows, peer_states, promises
from tailrace_server.replication import pulled_node as taking
from tailrace_server.replication.gathered_promises import GatheredPromises
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.local_member import LocalMember
from tailrace_server.replication.member import Member
from tailrace_server.replication.promises import Promised
from tailrace_server.replication.promotion import Promotion
from tailrace_server.replication.role import Role
from tailrace_server.replication.seats import Seats
from tailrace_server.replication.standings import NOTHING, Best, Standing
from tailrace_server.serving import member_requests, stream_requests
from tailrace_server.serving.connection import Connection

from .bug import Bug

# The modules that check whether another node is of the same cluster.
JUDGES = (peer_states, promises, gathered_promises, taking, stream_requests)
_step_down = Member.step_down
_later_leader = member.later_leader
_choose = missing_rows.choose
_gather, _fetch_all = GatheredPromises.gather, Promotion._fetch_all


async def _promise_again(member, promise):
    """Promises a term to a second candidate."""
    if promise.term < member.local.file.now.term:
        return promises._answer(member, promised=False, standings={})
    await promises.keep_promise(member, promise.term)
    return promises._answer(member, promised=True, standings=promises.standings_of(member.leadership.group))


def _lead_on(member):
    """Does not step down as a leader that has promised a higher term."""
    if member.leadership.role is not Role.LEADER:
        _step_down(member)


def _follow_on(member):
    """Goes on following and acknowledging in the lower term as a follower that has promised a higher one."""
    if member.leadership.role is Role.LEADER:
        _step_down(member)


async def _wait_for_nothing(member):
    """Does not wait for the end of the streams that it follows."""


def _require_nobody(promoting, votes):
    """Requires no majority of voters."""


def _choose_own(own, others, places):
    """Chooses the candidate's own copies, so that no data is fetched."""
    return {place: Best("", own.get(place, Standing(*NOTHING))) for place in places}


def _choose_own_feeds(own, others, places):
    """Chooses the candidate's own copy of the list of feeds."""
    own_of = {place: place.feed_id == SYSTEM_FEED_ID for place in places}
    kept = _choose_own(own, others, [place for place, is_own in own_of.items() if is_own])
    return kept | _choose(own, others, [place for place, is_own in own_of.items() if not is_own])


async def _keep_branch(promoting):
    """Makes no entry in the failover logs."""
    await _fetch_all(promoting)
    return True


async def _keep_branch_of_handover(promoting):
    """Goes on with the branch after a handover, though rows of it may be missing."""
    leader, promoting._leader = promoting._leader, ""
    await _fetch_all(promoting)
    promoting._leader = leader
    return bool(leader)


def _keep_branch_in_any_term(promoting, own):
    """Keeps the branch after a handover, though another member may have led in between."""
    return bool(promoting._leader) and own == promoting._promises.promised[promoting._leader].standings


async def _gather_without_leader(gathered, term):
    """Asks the leader that hands over like all other members, and not first."""
    leader, gathered.leader = gathered.leader, ""
    await _gather(gathered, term)
    gathered.leader = leader


def _of_one_cluster(own, name, told):
    """Takes any node for a member of this cluster."""
    return ""


async def _look_at_nobody(member):
    """Never looks for a later leader."""
    await member._pause(2)


def _step_down_for_leaders_only(term, placement_id, answers, is_voter):
    """Ignores the leaders that voters have followed."""
    return _later_leader(term, placement_id, {name: seen for name, seen in answers.items() if seen.leads}, is_voter)


def _promise_whoever_led(promoting, answers):
    """Requires of no candidate that it knows the last leader."""
    promoting._last_led = promoting._promises._last_led = None


def _told_by_anyone(gathered, answer, placement_id, what):
    """Keeps the standings of a member without a vote."""
    promised = Promised.from_json(answer, what)
    return promised._replace(votes=gathered._member.local.counts(promised.votes, placement_id))


# A member without a vote has a word in who leads, and with what.
HEARD = [
    (GatheredPromises, "_told", _told_by_anyone),
    (LocalMember, "counts_seen", lambda member, seen: True),
    (Seats, "why_no_seat", lambda seats: ""),
]
# No record of the voters is heard, which tells of a later leader, too.
DEAF = [
    (LocalMember, "learns", lambda member, voters: False),
    (promises, "_why_not_by_voters", lambda member, promise: ""),
]
BUGS = {
    "a leader that has promised leads on": Bug([(Member, "step_down", _lead_on)], {"promised_leader": 0}),
    "a follower that has promised follows on": Bug(
        [
            (Member, "step_down", _follow_on),
            (Member, "nothing_under_way", _wait_for_nothing),
        ],
        {"two_masters": 0},
    ),
    "a follower that takes writes": Bug(
        [
            (Leadership, "require_writable", lambda node: None),
            (Connection, "require_writable", lambda connection, leadership: None),
        ],
        {"busy_handover": 0},
    ),
    "a leader that does not look for a later one": Bug(
        [(Member, "_look_as_leader", _look_at_nobody), *DEAF], {"stale_leader": 0}
    ),
    "a leader that steps down only for one that it reaches": Bug(
        [
            (member, "later_leader", _step_down_for_leaders_only),
            (Promotion, "_require_last", _promise_whoever_led),
            *DEAF,
        ],
        {"lasting_bridge": 0, "lasting_cuts": 0},
    ),
    "a term that is promised twice": Bug([(member_requests, "answer_promise", _promise_again)], {"two_candidates": 0}),
    "a promotion without a majority": Bug([(Promotion, "_require_voters", _require_nobody)], {"lone_candidate": 0}),
    "a promotion that fetches nothing": Bug([(missing_rows, "choose", _choose_own)], {"laggard": 0}),
    "a promotion that does not fetch the list of feeds": Bug(
        [(missing_rows, "choose", _choose_own_feeds)], {"laggard": 0}
    ),
    "a promotion that goes on with the branch of the leader before": Bug(
        [(Promotion, "_fetch_all", _keep_branch)], {"dead_tail": 0}
    ),
    "a list of feeds that is written at level disk": Bug(
        [
            (Leadership, "safest_level", property(lambda node: Level.DISK)),
        ],
        {"lone_founder": 0},
    ),
    "a feed that a leader makes on a branch of the first term": Bug(
        [(Leadership, "branches_new_feeds", False)], {"feed_made_twice": 5}
    ),
    "a handover that keeps the branch in any term": Bug(
        [(Promotion, "_keeps_branch", _keep_branch_in_any_term)], {"dead_branch": 0}
    ),
    "a member without a vote that is heard": Bug(HEARD, {"old_backup": 0}),
    "an older copy of a member's own disk that votes": Bug(
        [(module, "why_older", lambda name, known, told: "") for module in (local_member, peer_states)],
        {"older_copy": 0},
    ),
    "another cluster that is heard, and members without a vote": Bug(
        [
            *HEARD,
            *((module, "why_other_cluster", _of_one_cluster) for module in JUDGES),
        ],
        {"strangers": 0},
    ),
    "a handover without the leader's promise": Bug(
        [
            (GatheredPromises, "gather", _gather_without_leader),
            (Promotion, "_fetch_all", _keep_branch_of_handover),
        ],
        {"lost_handover": 0},
    ),
    "a handover beside writes, of what has come": Bug(
        [
            (Leadership, "pause_writes", lambda node: None),
            (missing_rows, "choose", _choose_own),
            (Promotion, "_fetch_all", _keep_branch_of_handover),
        ],
        {"busy_handover": 0},
    ),
}
