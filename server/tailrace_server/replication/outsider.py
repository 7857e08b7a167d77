"""A node that is no member of the set that it asks: what it says, and the leader that it names to clients. Pure.

It may be no member yet, or no more; or it was started with another list of members.

A node that was not added yet has itself in its list, and the members do not. One that was removed knows the members'
record, which it is not in. Both ask the members all the time, to hear that they were added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.voters import Voters


def leader_outside(name: str, seen: Mapping[str, MemberState | None]) -> str:
    """Returns the address of the leader of a set that ``name`` is no member of; "" if none is known.

    Args:
        name: The address of this node.
        seen: The last answer of each other node by address, None without an answer.
    """
    found = ((state.term, address) for address, state in _strangers(name, seen).items() if state.leads)
    return max(found, default=(0, ""))[1]


def why_not_added(name: str, seen: Mapping[str, MemberState | None]) -> str:
    """Returns the sentence that the new node ``name`` is no member yet, and what to do; "" if no member says so."""
    strangers = _strangers(name, seen)
    if not strangers:
        return ""
    leader = leader_outside(name, seen)
    asked = leader or min(strangers)
    leads = f", and {leader} leads them" if leader else ""
    return f"{name} is no member yet: {', '.join(strangers[asked].members)} are{leads}. Run `{adding(name, asked)}`"


def why_needless(own_list: Sequence[str], own_id: bytes, seen: Mapping[str, MemberState]) -> str:
    """Returns the sentence that a majority of the voters of this node's cluster answers, and what to do; else "".

    Args:
        own_list: The members by this node's list.
        own_id: Its placement id.
        seen: The answers of nodes of its cluster that belong to a set, and have another list.
    """
    latest = max((state.voters for state in seen.values()), key=lambda each: (each.term, each.epoch), default=Voters())
    here = {state.placement_id: name for name, state in seen.items() if latest.has(state.placement_id)}
    if not latest.epoch or len(latest.ids & {own_id, *here}) < latest.majority:
        return ""
    theirs = next(state.members for state in seen.values() if state.voters == latest)
    what = f"Restart this node with their list, {','.join(theirs)}"
    if not latest.has(own_id):
        what = "This directory is none of theirs: stop this node, and start it with an empty one"
    return (
        f"{', '.join(sorted(here.values()))} answer, voters of this cluster by {latest}, and choose its leader by "
        f"themselves. Their list of members is not that of this node, {','.join(own_list)}. {what}"
    )


def adding(name: str, member: str) -> str:
    """Returns the command that adds ``name`` to the set of ``member``."""
    return f"tailrace member add {name} --node {member}"


def _strangers(name: str, seen: Mapping[str, MemberState | None]) -> dict[str, MemberState]:
    """Returns the nodes that belong to a set without ``name``. A new node belongs to none yet."""
    answers = {address: state for address, state in seen.items() if state is not None}
    return {
        address: state
        for address, state in answers.items()
        if name not in state.members and (state.leads or (state.members and not state.is_new))
    }
