"""A node that is no member of the set that it asks: what it says, and the leader that it names to clients. Pure.

A node that was not added yet has itself in its list, and the members do not. One that was removed knows the members'
record, which it is not in. Both ask the members all the time, to hear that they were added.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace_server.replication.election import MemberState


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
