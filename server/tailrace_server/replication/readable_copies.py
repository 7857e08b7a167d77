"""Tells which members can read their copies and have room, and what an operator does about the others. Pure.

A member that is known to be unable to read a partition is passed over: it does not stand, and is promoted by force
only. If that is so of all voters that answer, none of them leads by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailrace_server.replication.election import MemberState

# `tailrace repair` is no way: a repaired directory may lack rows that it has acknowledged, and starts as no member.
PUT_BACK = "put a good copy of the damaged file, such as a backup's, in its place"
MEND = (
    "it is copied anew from the next leader. If that node does not start, start it with an empty directory: then it "
    "copies everything"
)


def partitions_of(count: int) -> str:
    """Returns "1 partition" or "2 partitions"."""
    return f"{count} partition" + ("s" if count > 1 else "")


def passed_over(seen: Mapping[str, MemberState]) -> list[str]:
    """Returns a sentence for each member that cannot read its copy; ``seen``: the answers by address."""
    return [
        f"passes over the copy of {name}, which cannot read {partitions_of(state.unreadable)} (`tailrace status --node "
        f"{name}` names them): {MEND}"
        for name, state in sorted(seen.items())
        if state.unreadable
    ]


def good_copies(voters: Mapping[str, MemberState]) -> list[str]:
    """Returns the voters that can read all their partitions as far as they know, the most complete first."""
    good = [(_completeness(state), name) for name, state in voters.items() if not state.unreadable]
    return [name for _, name in sorted(good)]


def best_copy(voters: Mapping[str, MemberState]) -> str:
    """Returns the voter that cannot read the fewest partitions, of equal ones the most complete; "" without voters.

    It fetches from the others what they have more and can read, so what it cannot read itself comes first.
    """
    return min(voters, key=lambda name: (voters[name].unreadable, *_completeness(voters[name]), name), default="")


def _completeness(state: MemberState) -> tuple[int, int]:
    """Returns a key by which the most complete copy comes first."""
    return -state.held_term, -state.held


def instead(voters: Mapping[str, MemberState]) -> str:
    """Returns what to promote in place of a node that cannot read its copy; ``voters``: those that answer."""
    good = good_copies(voters)
    if good:
        return f"promote {good[0]}, which can read all its partitions"
    return "no other voter that answers can read all its partitions"


def why_no_writes(refusal: str, others: Mapping[str, MemberState]) -> str:
    """Returns the sentence on a node that is to lead though its disk is nearly full or fails, and who has room.

    Args:
        refusal: Why the node refuses writes; "" if it takes them for now.
        others: The answers of the others by address.
    """
    roomy = [name for name in good_copies(others) if others[name].votes and others[name].has_room]
    there = f"{roomy[0]} has room" if roomy else "no other voter that answers has room"
    return (
        f"this node would {'' if refusal else 'soon '}refuse writes, because its disk is nearly full or fails; {there}"
    )


def why_none_leads(own: str, voters: Mapping[str, MemberState], silent: list[str]) -> str:
    """Returns why no voter that answers leads by itself, and what to do; "" if one can read its copy.

    Args:
        own: The address of this node.
        voters: The states of the voters that answer, of this node too if it has a vote.
        silent: The addresses of the members that do not answer.
    """
    if not voters or good_copies(voters):
        return ""
    told = "; ".join(f"{name} cannot read {partitions_of(state.unreadable)}" for name, state in sorted(voters.items()))
    back = f"Start {', '.join(silent)} again, whose copy may be good. Otherwise stop" if silent else "Stop"
    best = best_copy(voters)
    whose = "this node" if best == own else "it"
    return (
        f"no leader: no voter that answers can read its whole copy, so none leads by itself ({told}). {back} a node, "
        f"and {PUT_BACK}; or go on without what cannot be read: `tailrace promote --force --node {best}` ({whose} has "
        "the best copy)"
    )
