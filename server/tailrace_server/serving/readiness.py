"""Tells whether a node serves clients, for load balancers. `status.health_of` tells whether anything is wrong with it.

| node | serves clients when |
|---|---|
| leads | it takes writes: the journal works, and a majority has confirmed it lately |
| follows | it follows a leader, and has nearly all that the leader has on disk |
| neither | never |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.replication.promotion_forecast import set_problem
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.services import Services

# A follower that lacks more mutations of its leader's disk than this is not current: a second of a busy writer.
BEHIND_MAX = 10_000


async def why_not_ready(node: Services) -> str:
    """Returns why the node does not serve clients, or "". It looks at the partitions of a follower, in turns."""
    failure = node.storage.committer.failure or node.storage.journal.failed
    if failure is not None:
        return str(failure)
    if node.listening is None:
        return "the node does not listen yet"
    for leadership in node.leaderships:
        why = _why_no_leader(node, leadership) if leadership.role is Role.LEADER else _why_no_follower(leadership)
        if why:
            return why
    return await _why_behind(node)


def _why_no_leader(node: Services, leadership: Leadership) -> str:
    try:
        leadership.require_writable()
        leadership.require_sure(node.clock.monotonic())
    except TailraceError as error:
        return str(error)
    # A leader that does not fail over by itself takes writes without a majority, and does not answer those at quorum.
    member = node.members.get(leadership.group.number)
    return (set_problem(member) if member is not None else None) or ""


def _why_no_follower(leadership: Leadership) -> str:
    return "" if leadership.leader else "this node neither leads nor follows a leader"


async def _why_behind(node: Services) -> str:
    """Returns by how much a follower is behind its leader, if that is too much. Feeds by segments are always behind."""
    behind, turns = 0, InTurns()
    for feed in node.feeds:
        for partition in () if feed.by_segments else feed.partitions:
            if partition.state == Role.LEADER.value:
                break
            await turns.look()
            if not partition.knows_leader_seqs:
                return "the leader has not told yet how far all partitions are"
            behind += max(0, partition.leader_durable_seq - partition.durable_seq)
            if behind > BEHIND_MAX:
                return f"this follower lacks more than {BEHIND_MAX:,} mutations that are on its leader's disk"
    return ""
