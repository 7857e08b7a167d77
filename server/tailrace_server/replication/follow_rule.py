"""Decides whether a node may follow a leader that it has found. Pure.

a leader of another cluster    a directory of a cluster follows it never; a new one if it may join that cluster,
                               and if no two members lead clusters
a leader of the same cluster   a plain replica follows it
                               a member does if it is in the leader's list, if the leader's record of the voters is
                               not older, and if this node has no later history without a vote
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.outsider import why_not_added
from tailrace_server.replication.voters import Voters


class Follower(NamedTuple):
    """The node that is to follow, as in `LocalMember`."""

    name: str
    cluster_id: bytes
    is_new: bool
    may_join: bool
    is_in_set: bool
    voters: Voters
    foreign_term: int


def why_not_follow(own: Follower, name: str, leader: MemberState, states: Iterable[MemberState | None]) -> str:
    """Returns why ``own`` must not follow the leader at ``name``, and what to do; "" if it may.

    ``states`` are the last answers of all other nodes, None without an answer.
    """
    if leader.cluster_id != own.cluster_id:
        if own.is_new and not own.may_join:
            return f"{name} leads cluster {leader.cluster_id.hex()}, and this node has not joined that one yet"
        if not own.is_new:
            return (
                f"{name} leads cluster {leader.cluster_id.hex()}, and this directory is of cluster "
                f"{own.cluster_id.hex()}; give this node an empty directory"
            )
        clusters = {state.cluster_id.hex() for state in states if state is not None and state.leads}
        if len(clusters) > 1:
            return (
                f"this directory is new, and members lead clusters {', '.join(sorted(clusters))}: one of them was "
                "started on a wrong directory, stop it"
            )
    if not own.is_in_set:
        return ""
    if own.name not in leader.members:
        return why_not_added(own.name, {name: leader})
    if own.voters.term > leader.term or (own.voters.epoch and not leader.voters.epoch):
        return (
            f"{name} leads in term {leader.term} by {leader.voters}, and the voters of term {own.voters.term} are "
            f"{own.voters}: it has been deposed, or is of an earlier version"
        )
    if own.foreign_term > leader.term:
        return (
            f"this node has no vote, and holds a history of term {own.foreign_term}, later than term {leader.term}, in "
            f"which {name} leads: it was restored from a backup, or led by itself. Give it an empty directory"
        )
    return ""
