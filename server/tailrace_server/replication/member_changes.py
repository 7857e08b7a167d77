"""Adds a member to a set, and removes one: the leader writes down what is to become of it, and answers.

    MEMBER_CHANGE ──> refused? ──> a record with the intent ──> a majority has stored it ──> RESULT
                         └─ a plan only ──> RESULT

Each leader from then on goes on with it (seats.py): a member that is to join gets a seat once it has caught up; one
that is to leave loses its seat once a majority of the others holds all rows. The refusals are pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import Forbidden, Overloaded, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.peers import look_at
from tailrace_server.replication.voters import SEATS_MAX, Voters

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

# A set of fewer members does not stand the loss of one.
MEMBERS_MIN = 3
# A node of a set has others to ask.
_MEMBERS_LEAST = 2


class ChangeAction(enum.Enum):
    """The changes of the members of a set."""

    ADD = "add"
    REMOVE = "remove"


def is_done(voters: Voters, action: ChangeAction, name: str) -> bool:
    """Returns whether the change has come to its end by the record, which names the members."""
    if action is ChangeAction.ADD:
        return name in voters.names and name not in voters.leaving
    return name not in voters.members


def intended(voters: Voters, action: ChangeAction, name: str) -> Voters:
    """Returns the record that a change begins with; ``voters`` if it has begun or ended. It names the members."""
    if action is ChangeAction.ADD:
        return voters if name in voters.members else voters.with_joining(name)
    return voters if name not in voters.members or name in voters.leaving else voters.with_leaving(name)


def why_not(
    voters: Voters, action: ChangeAction, name: str, storing: Collection[bytes], *, is_forced: bool = False
) -> str:
    """Returns the sentence why the change must not begin; "" if it may.

    Args:
        voters: The present record, with the names of the members.
        action: The change.
        name: Of the member.
        storing: The directories that answer, and have stored the record.
        is_forced: Whether an operator takes less than three members, or a set that does not answer.
    """
    if action is ChangeAction.ADD:
        if name in voters.leaving:
            return f"{name} is to leave this set: add it when it has left"
        full = name not in voters.members and len(voters.members) >= SEATS_MAX
        return f"a set has {SEATS_MAX} members at most" if full else ""
    if name not in voters.names or name in voters.leaving:
        return ""
    after = voters
    for each in (*voters.leaving, name):
        after = after.without(each)
    if len(after.seats) < _MEMBERS_LEAST:
        return f"without {name} the set has {len(after.seats)} members, and a set has {_MEMBERS_LEAST} at least"
    if len(after.seats) < MEMBERS_MIN and not is_forced:
        return (
            f"without {name} the set has {len(after.seats)} members, which do not stand the loss of one: add another "
            "member first, or use --force"
        )
    left = len(after.ids.intersection(storing))
    if left < after.majority and not is_forced:
        return (
            f"{left} of the {after.majority} voters answer that are a majority without {name}: start the others, or "
            "use --force, and it leaves once they answer"
        )
    return ""


def why_no_newcomer(cluster_id: bytes, name: str, seen: MemberState) -> str:
    """Returns the sentence why the node at ``name`` must not become a member; "" if it may.

    Args:
        cluster_id: Of the set.
        name: The address of the node.
        seen: Its answer.
    """
    if not seen.members:
        return (
            f"{name} is a node outside of a set: start it with an empty directory, and with --members that names it "
            "and the members of this set; in a set in etcd with its --cluster-store"
        )
    if seen.is_new and name not in seen.members:
        return f"the node at {name} is none of its own members, {', '.join(seen.members)}: start it with {name} in them"
    other = "" if seen.is_new else why_other_cluster(cluster_id, name, seen.cluster_id)
    return other and f"{other}. A member is added with an empty directory"


async def change_members(member: Member, action: ChangeAction, address: Address, *, is_forced: bool) -> dict[str, Any]:
    """Begins a change, if it has not begun yet. Returns, once a majority has stored it, what the answer tells.

    Raises:
        NotLeader: This node does not lead, or no more.
        Forbidden: The change is refused, or no majority is there to store it.
        Overloaded: Too few members answer at present; the change has not begun.
        Unreachable: The change has begun here, and it is not known whether a majority has stored that.
        OSError: The record cannot be written.
    """
    local, name = member.local, str(address)
    begins_with = await _agreed(member, action, address, is_forced=is_forced)
    if begins_with.epoch > local.file.now.voters.epoch:
        member.seats.intend(begins_with)
    intent = local.file.now.voters.epoch
    with trio.move_on_after(member.node.config.replication.step_timeout_s) as scope:
        while not member.seats.is_stored and local.file.now.voters.epoch == intent:
            await _look(member)
    member.leadership.require_leader()
    if scope.cancelled_caught:
        raise Unreachable(
            f"a majority has not stored in time that {name} is to {'join' if action is ChangeAction.ADD else 'leave'}: "
            "see `tailrace member list`, or ask again",
            outcome="unknown",
        )
    return _told(member, action, name)


async def plan_change(member: Member, action: ChangeAction, address: Address, *, is_forced: bool) -> dict[str, Any]:
    """Returns what the answer to a plan tells; changes nothing. Raises as `change_members` would before it begins."""
    await _agreed(member, action, address, is_forced=is_forced)
    return _told(member, action, str(address))


def _told(member: Member, action: ChangeAction, name: str) -> dict[str, Any]:
    """Returns the present record, and whether the change has come to its end by it."""
    voters = member.local.file.now.voters.naming(member.local.members)
    return {"epoch": voters.epoch, "term": voters.term, "done": is_done(voters, action, name)}


async def _agreed(member: Member, action: ChangeAction, address: Address, *, is_forced: bool) -> Voters:
    """Returns the record that a change begins with, or the present one if it has begun or ended.

    The caller may store it before it waits for anything. Raises as `change_members`.
    """
    local = member.local
    member.leadership.require_leader()
    if not local.is_in_set:
        raise Forbidden("this node is in no set (--members, --cluster-store): it has no members to change")
    if action is ChangeAction.ADD and address not in local.leadership.members.now:
        await _require_newcomer(member, address)
    found = None
    with trio.move_on_after(member.node.config.replication.step_timeout_s):
        found = await _next_record(member, action, str(address), is_forced=is_forced)
    if found is None:
        _require_majority(member)
        raise Overloaded(f"nothing is changed: a majority has not stored {local.file.now.voters} yet; ask again")
    return found


def _require_majority(member: Member) -> None:
    """Raises Forbidden if fewer voters than a majority answered the last look: no change can be stored then."""
    local = member.local
    found = local.votes + sum(local.counts_seen(seen) for seen in member.peers.states.values() if seen is not None)
    if found < local.majority:
        raise Forbidden(
            f"refused: {found} voters answer, and {local.majority} are a majority, which has to store each change: "
            f"start the others. If their disks are lost, run `tailrace promote --force --node {local.name}`, and start "
            "one of the others with an empty directory"
        )


async def _next_record(member: Member, action: ChangeAction, name: str, *, is_forced: bool) -> Voters:
    """Returns the record of `_agreed`, when the last one is stored by a majority. Raises Forbidden, NotLeader."""
    local = member.local
    while True:
        missing = await _look(member)
        if missing or not local.file.now.voters.epoch:
            continue
        voters = local.file.now.voters.naming(local.members)
        after = intended(voters, action, name)
        why = "" if after == voters else why_not(voters, action, name, member.seats.storing, is_forced=is_forced)
        if why:
            raise Forbidden(f"refused: {why}")
        return after


async def _look(member: Member) -> str:
    """Asks the others. Returns why the leader must not make another record yet; "" if it may. Raises NotLeader."""
    await member.peers.look()
    member.leadership.require_leader()
    missing = member.seats.noted({name: seen for name, seen in member.peers.states.items() if seen is not None})
    if member.procedure.locked():
        missing = "a handover is under way"
    if missing:
        await trio.sleep(member.node.config.replication.poll_s)
        member.leadership.require_leader()
    return missing


async def _require_newcomer(member: Member, address: Address) -> None:
    local, name, config = member.local, str(address), member.node.config.replication
    try:
        seen = await look_at(member.node, address, local.question(), config.ask_timeout_s)
    except (TailraceError, OSError) as error:
        raise Forbidden(
            f"refused: {name} does not answer as a node: {error}. Start it first, with --members that names it and "
            f"{', '.join(local.members)}; in a set in etcd with its --cluster-store"
        ) from None
    why = why_no_newcomer(member.node.identity.cluster_id, name, seen) or member.peers.why_copy(name, seen.placement_id)
    if why:
        raise Forbidden(f"refused: {why}")
