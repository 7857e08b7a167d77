"""Handles the frames of other nodes, and of an operator who changes the leader.

Longer work runs in a task of the member, so that it completes even if the requester is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tailrace.errors import Overloaded, ProtocolError, TailraceError, Unreachable
from tailrace.link.address import parse_address
from tailrace.wire.bodies import decode_json, encode_json, field, hex_field, seq_field
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.election import MemberState
from tailrace_server.replication.eligibility import require_cluster, why_other_list
from tailrace_server.replication.handover import hand_over, high_seqs_of, take_over
from tailrace_server.replication.member_changes import ChangeAction, change_members, plan_change
from tailrace_server.replication.peers import awaited_field, held_of, members_field, name_of, seen_to_json
from tailrace_server.replication.pre_votes import Completeness
from tailrace_server.replication.promises import Promise, answer_promise
from tailrace_server.replication.promotion import promote as promote_member
from tailrace_server.replication.unreadable import unreadable_of
from tailrace_server.replication.voters import Voters, voters_field, voters_to_json

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member
    from tailrace_server.serving.connection import Connection
    from tailrace_server.serving.services import Services

log = logging.getLogger("tailrace.server")

# Operators' requests that wait for each other, in tasks that outlive their connections.
TURNS_MAX = 16
# An action that begins with this changes nothing. It is no field: a leader of an earlier version would not read that,
# and begin the change.
_PLAN = "plan_"


def _member_or_none(connection: Connection) -> Member | None:
    """Returns the member of the group that requests are about, since they do not name one."""
    return connection.node.members.get(connection.unnamed.group.number)


def _member(connection: Connection) -> Member:
    member = _member_or_none(connection)
    if member is None:
        raise TailraceError("this node is alone: it is no member of a set and no replica (--members, --replica-of)")
    return member


def _on_member(connection: Connection, frame: Frame) -> None:
    """What this node is among others; with ``seqs`` how far it has each partition, with ``candidate`` its pre-vote."""
    what, node = "MEMBER", connection.node
    value = decode_json(frame.body, what)
    identity, member, leadership = node.identity, _member_or_none(connection), connection.unnamed
    if member is None:
        seen = MemberState(
            identity.placement_id, identity.cluster_id, votes=True, leads=True, term=leadership.term, led=True
        )
        held, held_term = held_of(leadership.group.unsorted())
        unreadable = len(unreadable_of(node, leadership.group))
        seen = seen._replace(held=held, held_term=held_term, unreadable=unreadable)
    else:
        if connection.access.is_of_node:
            _learn_voters(member, value, what)
        seen = member.local.state()
    answer = {
        **seen_to_json(seen),
        "node_id": identity.node_id.hex(),
        "address": name_of(node) if member is None else member.local.name,
    }
    if field(value, "seqs", bool, what, False):
        seqs = _seqs(node) if member is None else high_seqs_of(member)
        answer["seqs"] = {feed_id.hex(): found for feed_id, found in seqs.items()}
    if value.get("candidate") is not None and member is not None:
        refused = member.successor.why_refused(_candidate(value, what))
        answer["pre_vote"] = refused or _why_later(member, value, what)
    connection.answers.add(encode_json(Opcode.RESULT, answer, frame.id))


def _learn_voters(member: Member, value: dict[str, Any], what: str) -> None:
    """Takes the asker's record of the voters, if the asker is a member of this set."""
    voters = voters_field(value, what)
    if voters is None:
        return
    is_named = voters.is_named or member.local.file.now.voters.is_named
    if why_other_list(member.local.members, "", members_field(value, what), is_named=is_named):
        return
    cluster_id = hex_field(value, "cluster_id", 16, what)
    member.peers.learn_voters(cluster_id, voters)
    if "term" in value and cluster_id == member.node.identity.cluster_id:
        member.told_term(hex_field(value, "placement_id", 16, what), seq_field(value, "term", what))
        member.follow_first(awaited_field(value, what))


def _why_later(member: Member, value: dict[str, Any], what: str) -> str:
    """Returns the sentence that this member knows a later record than the candidate; "" if it does not."""
    known, told = member.local.file.now.voters, voters_field(value, what)
    return f"the voters of term {known.term} are {known}" if known.is_later(told or Voters()) else ""


def _candidate(value: dict[str, Any], what: str) -> Completeness:
    told = field(value, "candidate", dict, what)
    return Completeness(seq_field(told, "held_term", what), seq_field(told, "held", what))


def _seqs(node: Services) -> dict[bytes, list[int]]:
    feeds = [node.feeds.system, *node.feeds]
    return {feed.info.feed_id: [p.high_seq for p in feed.partitions] for feed in feeds}


def _on_accepted_seqs(connection: Connection, frame: Frame) -> None:
    """A follower asks how far this leader has come in these feeds, or in all: once a majority says that it leads."""
    connection.require_node("ACCEPTED_SEQS")
    node, leadership = connection.node, connection.unnamed
    leadership.require_leader()
    value = decode_json(frame.body, "ACCEPTED_SEQS")
    require_cluster(node.identity.cluster_id, value, "ACCEPTED_SEQS")
    asked = value.get("feed_ids")
    if not isinstance(asked, list):
        raise ProtocolError("ACCEPTED_SEQS: field 'feed_ids' is missing, or no list")
    wanted = set(map(str, asked))
    feeds = [f for f in (node.feeds.system, *node.feeds) if not wanted or f.info.feed_id.hex() in wanted]
    seqs = {feed.info.feed_id.hex(): [p.high_seq for p in feed.partitions] for feed in feeds}
    member = _member_or_none(connection)
    told: dict[str, Any] = {"seqs": seqs}
    if member is not None and member.local.is_in_set:
        told["voters"] = voters_to_json(member.local.file.now.voters)
    answer = encode_json(Opcode.RESULT, told, frame.id)
    if value.get("joining") is True and member is not None and member.local.file.now.forced:
        # It may have no majority of voters until others have caught up with it: an operator has vouched for it.
        connection.answers.add(answer)
    else:
        connection.answers.add_when_confirmed(leadership, answer, frame.id)


def _on_promise(connection: Connection, frame: Frame) -> None:
    """Promises a term at once, before any other request; the facts of the answer may take longer."""
    connection.require_node("PROMISE")
    promise = Promise.from_json(decode_json(frame.body, "PROMISE"))
    member = _member(connection)
    if not member.local.is_in_set:
        raise TailraceError("this node is a plain replica: it promises nothing")
    _answer_later(connection, frame, member, lambda: answer_promise(member, promise))


def _on_promote(connection: Connection, frame: Frame) -> None:
    """Makes this node the leader."""
    member = _member(connection)
    force = field(decode_json(frame.body, "PROMOTE"), "force", bool, "PROMOTE", False)

    async def promote() -> dict[str, Any]:
        return (await promote_member(member, force=force))._asdict()

    _answer_in_turn(connection, frame, member, promote)


def _on_handover(connection: Connection, frame: Frame) -> None:
    """Gives the leadership of this node to another member."""
    member = _member(connection)
    value = decode_json(frame.body, "HANDOVER")
    text, force = field(value, "to", str, "HANDOVER"), field(value, "force", bool, "HANDOVER", False)
    try:
        to = parse_address(text)
    except ValueError as error:
        raise ProtocolError(f"HANDOVER: field 'to': {error}") from None

    async def give() -> dict[str, Any]:
        return {"term": await hand_over(member, to, force=force), "leader": str(to)}

    _answer_in_turn(connection, frame, member, give)


def _on_member_change(connection: Connection, frame: Frame) -> None:
    """Adds a member to the set that this node leads, or removes one; or tells why it would refuse that."""
    member, what = _member(connection), "MEMBER_CHANGE"
    value = decode_json(frame.body, what)
    text, is_forced = field(value, "action", str, what), field(value, "force", bool, what, False)
    change = plan_change if text.startswith(_PLAN) else change_members
    try:
        action, address = ChangeAction(text.removeprefix(_PLAN)), parse_address(field(value, "name", str, what))
    except ValueError as error:
        raise ProtocolError(f"{what}: {error}") from None
    _answer_in_turn(connection, frame, member, lambda: change(member, action, address, is_forced=is_forced))


def _on_take_over(connection: Connection, frame: Frame) -> None:
    """The leader that this node follows wants it to lead."""
    connection.require_node("TAKE_OVER")
    member = _member(connection)
    value = decode_json(frame.body, "TAKE_OVER")
    term = seq_field(value, "term", "TAKE_OVER")
    require_cluster(connection.node.identity.cluster_id, value, "TAKE_OVER")

    async def take() -> dict[str, Any]:
        return {"term": (await take_over(member, term)).term}

    _answer_in_turn(connection, frame, member, take)


def _answer_in_turn(
    connection: Connection, frame: Frame, member: Member, work: Callable[[], Awaitable[dict[str, Any]]]
) -> None:
    """Does the work of ``_answer_later`` for changes of the leader: one at a time, and a bounded number waits."""
    if member.turns >= TURNS_MAX:
        raise Overloaded(f"{member.turns} requests that change who leads are waiting for each other")

    async def turn() -> dict[str, Any]:
        try:
            return await work()
        finally:
            member.end_turn()

    _answer_later(connection, frame, member, turn)
    member.add_turn()


def _answer_later(
    connection: Connection, frame: Frame, member: Member, work: Callable[[], Awaitable[dict[str, Any]]]
) -> None:
    node, id = connection.node, frame.id
    connection.waiting.begin()

    async def run() -> None:
        try:
            answer = encode_json(Opcode.RESULT, await work(), id)
        except TailraceError as error:
            connection.answers.add_error(error, id)
        except OSError as error:
            connection.answers.add_error(Unreachable(f"the disk says: {error}", outcome="unknown"), id)
        except Exception:  # a bug, as in ``Connections.handle``: the node goes on
            log.exception("%s ended by an internal error", frame.opcode.name)
            connection.answers.add_error(TailraceError("an internal error: the node's log has it"), id)
        else:
            connection.answers.add(answer)
        finally:
            connection.waiting.end()
        node.connections.turn_ended()

    try:
        member.start(run)
    except TailraceError:
        connection.waiting.end()
        raise


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.MEMBER: _on_member,
    Opcode.ACCEPTED_SEQS: _on_accepted_seqs,
    Opcode.PROMISE: _on_promise,
    Opcode.PROMOTE: _on_promote,
    Opcode.HANDOVER: _on_handover,
    Opcode.TAKE_OVER: _on_take_over,
    Opcode.MEMBER_CHANGE: _on_member_change,
}
