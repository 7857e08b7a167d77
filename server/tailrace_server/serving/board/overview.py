"""The overview of a node: whether everything moves, and if not, what does not, since when and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tailrace import _version
from tailrace.link.address import Address
from tailrace.model.json_rows import bytes_field
from tailrace_server.replication.role import Role
from tailrace_server.serving.board.consumers import may_see, replica_rows
from tailrace_server.serving.board.problems import ERROR, WARNING, Problem
from tailrace_server.serving.board.sample import FeedSums
from tailrace_server.serving.board.states import State
from tailrace_server.serving.narrowed_status import HIDDEN

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.board.board import Board
    from tailrace_server.serving.board.sample import ConsumerSums, Sample
    from tailrace_server.state.principal import Principal

PROBLEMS_MAX = 100
# A problem, and for how many seconds it has been seen.
Aged: TypeAlias = "tuple[Problem, float | None]"


def overview(board: Board, sample: Sample, access: Access) -> dict[str, Any]:
    """Returns what the console's first page shows, in a size that does not grow with the node."""
    node, leadership = board.node, board.node.leaderships.unnamed
    member = node.members.get(leadership.group.number)
    replicas = replica_rows(board, sample)
    consumers = [each for each in sample.consumers.values() if may_see(access, each)]
    is_whole = not access.principal.feeds
    known = _known(board, access)
    problems = known + _of_replicas(board, replicas) + _of_consumers(board, consumers)
    problems.sort(key=lambda each: each[0].severity != ERROR)
    return {
        "at_s": sample.wall_us / 1e6,
        "software": f"tailrace {_version.__version__}",
        "node_id": node.identity.node_id.hex(),
        "cluster": node.config.cluster,
        "cluster_id": node.identity.cluster_id.hex(),
        "listening": None if node.listening is None else str(Address(*node.listening)),
        "uptime_s": node.clock.monotonic() - node.started_at,
        "principal": _principal(access.principal),
        "state": _state(board, problems, consumers),
        "problems": [_problem(*each) for each in problems[:PROBLEMS_MAX]],
        "problems_more": max(0, len(problems) - PROBLEMS_MAX),
        "role": leadership.role.value,
        "term": leadership.term or sample.term,
        "leader": _own_or(board, leadership, leadership.leader_address),
        "doing": member.progress if is_whole and member is not None else "",
        "default_level": leadership.safest_level.name.lower(),
        "members": [each if is_whole else each | {"reason": ""} for each in _members(board, leadership)],
        "promotion": board.health().promotion if is_whole else "",
        "replicas": replicas,
        "totals": _totals(board, sample, access, consumers),
    }


def _known(board: Board, access: Access) -> list[Aged]:
    """Returns the problems of the node and of the feeds that are shown. A token for some feeds is not told texts."""
    if not access.principal.feeds:
        return list(board.health().problems)
    return [
        each if each[0].feed else (each[0]._replace(name="", text=HIDDEN), each[1])
        for each in board.health().problems
        if not each[0].feed or access.shows(each[0].feed)
    ]


def _own_or(board: Board, leadership: Leadership, leader: str) -> str:
    if leadership.role is Role.LEADER and board.node.listening is not None:
        return str(Address(*board.node.listening))
    return leader


def _principal(principal: Principal) -> dict[str, Any]:
    return {
        "name": principal.name,
        "role": principal.role,
        "feeds": sorted(principal.feeds),
        **bytes_field("key_prefix", principal.key_prefix),
    }


def _problem(problem: Problem, seconds: float | None) -> dict[str, Any]:
    return {
        "severity": problem.severity,
        "state": problem.state,
        "subject": problem.subject,
        "name": problem.name,
        "text": problem.text,
        "since_s": seconds,
    }


def _of_replicas(board: Board, replicas: list[dict[str, Any]]) -> list[Aged]:
    ages = board.seconds_as("replica", {each["placement_id"]: each["state"] for each in replicas})
    return [
        (Problem(WARNING, "replica", each["address"], each["reason"]), ages[each["placement_id"]])
        for each in replicas
        if each["state"] in (State.AWAY, State.STUCK)
    ]


def _of_consumers(board: Board, consumers: list[ConsumerSums]) -> list[Aged]:
    found: list[Aged] = []
    for consumer in consumers:
        judgement = board.judged(consumer)
        if judgement.state is State.STUCK or (judgement.state is State.AWAY and consumer.lag.mutations):
            name = consumer.name or consumer.id
            text = f"consumer {name!r} of feed {consumer.feed}: {judgement.reason}"
            found.append((Problem(WARNING, "consumer", consumer.id, text, consumer.feed), judgement.seconds))
    found.sort(key=lambda each: -(each[1] or 0))
    return found


def _state(board: Board, problems: list[Aged], consumers: list[ConsumerSums]) -> str:
    """Returns the worst of all: failed, stuck, waiting or moving."""
    states = {problem.state for problem, _ in problems}
    for state in ("failed", "stuck", "waiting"):
        if state in states:
            return state
    if any(board.judged(consumer).state is State.WAITING for consumer in consumers):
        return "waiting"
    return "moving"


def _members(board: Board, leadership: Leadership) -> list[dict[str, Any]]:
    """Returns the members of the set, as this node knows them; none for a node alone."""
    member = board.node.members.get(leadership.group.number)
    if member is None or not leadership.in_set:
        return []
    own, peers = member.local.name, member.peers
    leader = own if leadership.role is Role.LEADER else leadership.leader
    found = []
    for name in leadership.members.names:
        seen = peers.states.get(name)
        if name == own:
            state, reason = ("leads" if leader == own else "follows" if leader else "unknown"), ""
        elif name in peers.misfits:
            state, reason = "refused", peers.misfits[name]
        elif seen is not None:
            state, reason = ("leads" if seen.leads else "follows"), ""
        elif name in peers.asked:
            state, reason = "silent", "it does not answer: it is down, or the network to it is"
        else:
            state, reason = "unknown", "it was not asked yet"
        found.append(
            {
                "name": name,
                "is_self": name == own,
                "state": state,
                "reason": reason,
                "term": leadership.term if name == own else None if seen is None else seen.term,
                "votes": member.local.state().votes if name == own else None if seen is None else seen.votes,
                "software": member.local.state().software if name == own else "" if seen is None else seen.software,
            }
        )
    ages = board.seconds_as("member", {each["name"]: each["state"] for each in found})
    return [each | {"since_s": ages[each["name"]]} for each in found]


def _totals(board: Board, sample: Sample, access: Access, consumers: list[ConsumerSums]) -> dict[str, Any]:
    storage = board.node.storage
    sums, count = sample.all, len(sample.feeds)
    if access.principal.feeds:
        sums, shown = FeedSums(), [each for name, each in sample.feeds.items() if access.shows(name)]
        count = len(shown)
        for each in shown:
            sums.join(each)
    slowest = max(consumers, key=lambda each: each.lag.seconds(sample.wall_us), default=None)
    journal = storage.journal.statistics()
    return {
        "feeds": count,
        "partitions": sample.partitions,
        "consumers": len(consumers),
        "streams": sample.streams,
        "connections": sample.connections,
        "mutations": sums.mutations,
        **_rates(board, sample),
        "segments": sums.segments,
        "segment_bytes": sums.segment_bytes,
        "memory_bytes": storage.memory.held,
        "memory_bytes_max": storage.memory.bytes_max,
        "free_bytes": storage.space.free_bytes,
        "journal_bytes": journal.bytes,
        "journal_unsynced_bytes": journal.unsynced_bytes,
        "slowest_consumer": None
        if slowest is None
        else {
            "id": slowest.id,
            "name": slowest.name,
            "feed": slowest.feed,
            "lag_s": slowest.lag.seconds(sample.wall_us),
        },
    }


def _rates(board: Board, sample: Sample) -> dict[str, float | None]:
    seconds, before = board.seconds_between(), board.before
    names = ("mutations_rate", "written_bytes_rate", "sent_bytes_rate")
    if seconds is None or before is None:
        return dict.fromkeys(names)
    pairs = zip(sample.totals, before.totals, strict=True)
    return dict(zip(names, (max(0.0, (now - then) / seconds) for now, then in pairs), strict=True))
