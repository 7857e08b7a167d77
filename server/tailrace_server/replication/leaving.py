"""Gives a leadership away before a clean stop, so that writers need not wait until the leader counts as gone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import parse_address
from tailrace_server.replication.handover import hand_over
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# A stop waits no longer than this for each handover; the others choose a leader without it, too.
_SECONDS_MAX = 2.0


async def leave(members: Iterable[Member]) -> None:
    """Hands over each leadership of this node to the voter that lacks least. Failures are logged."""
    for member in members:
        if not member.successor.is_on or member.leadership.role is not Role.LEADER:
            continue
        to = most_complete(member)
        if to is None:
            continue
        try:
            with trio.move_on_after(_SECONDS_MAX) as scope:
                await hand_over(member, parse_address(to), force=True)
        except (TailraceError, OSError) as error:
            log.warning("the leadership was not handed over to %s before the stop: %s", to, error)
        if scope.cancelled_caught:
            log.warning("%s has not taken over within %g s: this node stops", to, _SECONDS_MAX)


def most_complete(member: Member, besides: Collection[str] = (), *, needs_room: bool = False) -> str | None:
    """Returns the address of the connected voter that lacks least; None without one. None of ``besides`` is chosen.

    A voter that cannot read its copy is passed over: it takes no leadership. One with a full disk would refuse writes,
    and comes last; with ``needs_room`` it is passed over, too.
    """
    leadership, seen = member.leadership, member.peers.states
    partitions, level = list(leadership.group), leadership.safest_level
    passed_over = {name for name, state in seen.items() if state is not None and state.unreadable}.union(besides)
    voters = (peer for peer in leadership.replicas.voters() if peer.is_connected and peer.address not in passed_over)
    full = {name for name, state in seen.items() if state is not None and not state.has_room}
    if needs_room:
        voters = (peer for peer in voters if peer.address not in full)
    found = ((peer.address in full, peer.missing(partitions, level), peer.address) for peer in voters)
    return min(found, default=(False, 0, None))[-1]
