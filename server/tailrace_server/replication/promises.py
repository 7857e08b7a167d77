"""Answers a PROMISE: makes the promise durable, stops following or leading, and tells how far this member has come.

The order matters. Once the answer has left, its receiver may lead. By then nothing of a lower term may be applied,
acknowledged or confirmed any more, and all that the answer tells has to be on the disk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tailrace.errors import ProtocolError, TailraceError, Unreachable
from tailrace.wire.bodies import address_field, field, hex_field, seq_field
from tailrace_server.replication.debts import Debt, debts_from_json, debts_to_json
from tailrace_server.replication.election import is_later
from tailrace_server.replication.eligibility import why_other_cluster, why_other_list
from tailrace_server.replication.lineage import Lineage, line_from_json, line_to_json
from tailrace_server.replication.peers import members_field, standings_of
from tailrace_server.replication.role import Role
from tailrace_server.replication.standings import Standings, standings_from_json, standings_to_json
from tailrace_server.replication.voters import TERMS_AHEAD_MAX, Voters, voters_field, voters_to_json

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")


class Promise(NamedTuple):
    """A request to promise ``term`` to the node at ``address``; in a ``handover`` the leader itself is behind it.

    ``last_led``: the term in which the node led, if it leads again by itself; else None. ``by_itself``: the node stands
    because the leader is gone.
    ``cluster_id``, ``placement_id``, ``line``: of that node, the last two None if they are not told. ``members``: the
    list that it was started with, empty if it is not told. ``voters``: its record, of epoch 0 by an earlier version.
    """

    term: int
    address: str
    handover: bool
    cluster_id: bytes
    last_led: int | None = None
    members: tuple[str, ...] = ()
    placement_id: bytes | None = None
    line: Lineage | None = None
    by_itself: bool = False
    voters: Voters = Voters()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Promise:
        """Returns the body of a PROMISE. Raises ProtocolError."""
        what = "PROMISE"
        return cls(
            seq_field(value, "term", what),
            address_field(value, "address", what),
            field(value, "handover", bool, what, False),
            hex_field(value, "cluster_id", 16, what),
            None if value.get("last_led") is None else seq_field(value, "last_led", what),
            members_field(value, what),
            hex_field(value, "placement_id", 16, what) if "placement_id" in value else None,
            line_from_json(value, what),
            field(value, "by_itself", bool, what, False),
            voters_field(value, what) or Voters(),
        )


class Promised(NamedTuple):
    """Another member's promise, as its answer tells.

    Of a leader that has stepped down without one, what it has, without its vote.
    """

    votes: bool
    standings: Standings
    owes: tuple[Debt, ...] = ()

    @classmethod
    def from_json(cls, answer: dict[str, Any], what: str) -> Promised:
        """Returns the promise in the answer to a PROMISE. Raises ProtocolError."""
        votes = field(answer, "votes", bool, what)
        is_new = field(answer, "is_new", bool, what)  # a new member may be of any cluster, and holds nothing
        standings = {} if is_new else standings_from_json(answer.get("partitions"), what)
        try:
            return cls(votes, standings, debts_from_json(answer.get("owes", [])))
        except ValueError as error:
            raise ProtocolError(f"{what}: {error}") from None


async def answer_promise(member: Member, promise: Promise) -> dict[str, Any]:
    """Promises the term, unless a term as high was promised before. Returns the body of the answer.

    A node that leads again by itself gets no promise if it has missed a later leader, which may be this node. A node
    that stands because the leader is gone gets none while this member hears the leader, or leads, or
    has a disk that hangs. A node
    that wants to lead has joined its cluster; a new member that is asked has not yet. A node whose record of the voters
    is earlier gets no promise, and is told the later one. A member without a seat promises nothing, unless it leads.

    Raises:
        ProtocolError: No node can have come to that term by leading.
        TailraceError: The node has another list of members, and so another majority; or is of another cluster, or
            on a copy of a directory, an older one of its own included.
    """
    is_named = member.local.file.now.voters.is_named or promise.voters.is_named
    misfit = ""
    if promise.members:
        misfit = why_other_list(member.local.members, promise.address, promise.members, is_named=is_named)
    if not misfit and not member.local.may_join:
        misfit = why_other_cluster(member.node.identity.cluster_id, promise.address, promise.cluster_id)
    if not misfit and promise.placement_id is not None:
        misfit = member.peers.why_no_disk(promise.address, promise.placement_id, promise.line)
    if misfit:
        raise TailraceError(f"{misfit}: nothing is promised")
    await _check_term(member, promise.term)
    member.peers.learn_voters(promise.cluster_id, promise.voters)
    now = member.local.file.now
    refused = _why_not_by_voters(member, promise)
    if refused:
        return _answer(member, promised=False, standings={}) | {"refused": refused}
    if promise.last_led is not None and is_later(now, promise.last_led):
        return _answer(member, promised=False, standings={}) | {"later": now.leader_term}
    refused = member.successor.why_no_promise() if promise.by_itself else ""
    if refused:
        return _answer(member, promised=False, standings={}) | {"refused": refused}
    if promise.term <= now.term:
        return _answer(member, promised=False, standings={})
    log.warning("term %s is promised to %s", promise.term, promise.address)
    led = member.leadership.role is Role.LEADER
    try:
        await keep_promise(member, promise.term)
    except OSError as error:
        if not led or not promise.handover or not member.local.file.failure:
            raise
        return await _step_down_unpromised(member, error)
    if member.local.file.now.term != promise.term:  # another term was promised during the wait
        return _answer(member, promised=False, standings={})
    return _answer(member, promised=True, standings=standings_of(member.leadership.group.unsorted()))


def _why_not_by_voters(member: Member, promise: Promise) -> str:
    """Returns why this member promises nothing, by the records of the voters; "" if it may."""
    known = member.local.file.now.voters
    if known.is_later(promise.voters):
        return (
            f"the voters of term {known.term} are {known}, and {promise.address} stands by {promise.voters} of term "
            f"{promise.voters.term}"
        )
    leads = member.leadership.role is Role.LEADER
    return "" if leads or member.local.is_new else member.seats.why_no_seat()


async def _check_term(member: Member, term: int) -> None:
    """Raises ProtocolError if no member, this one included, knows of a term near ``term``."""
    if term <= member.local.file.now.term + TERMS_AHEAD_MAX:
        return
    await member.peers.look()
    voters = [seen for seen in member.peers.states.values() if seen is not None and member.local.counts_seen(seen)]
    known = max([member.local.file.now.term, *(seen.term for seen in voters)])
    if term > known + TERMS_AHEAD_MAX:
        raise ProtocolError(
            f"PROMISE: term {term} is more than {TERMS_AHEAD_MAX} above {known}, the highest that any member knows of: "
            "nothing is promised"
        )


async def keep_promise(member: Member, term: int) -> None:
    """Promises ``term``, durably, ends everything of lower terms, and makes all rows durable.

    Debts that are paid by then are dropped. Raises OSError if the promise cannot be written: then nothing has changed.
    """
    member.local.file.store(member.local.file.now.promised(term))
    member.step_down()
    await _ended(member)
    await member.node.storage.all_durable()
    member.local.settle_debts()


async def _ended(member: Member) -> None:
    """Returns once nothing of lower terms is under way. Raises Unreachable if that takes too long."""
    with trio.move_on_after(member.node.config.replication.step_timeout_s) as scope:
        await member.nothing_under_way()
    if scope.cancelled_caught:
        raise Unreachable("the requests to the leader before have not ended in time")


async def _step_down_unpromised(member: Member, error: OSError) -> dict[str, Any]:
    """Ends leading for a handover whose promise cannot be written. Returns the body of the answer.

    The vote does not count, so the next leader has a majority without this node. Without a durable promise this node
    leads again only by a later one, as a leader that was cut off does.
    """
    log.error("this leader steps down for a handover without its promise: %s", error)
    member.step_down()
    await _ended(member)
    await member.node.storage.all_durable()
    refused = f"it has stepped down, and cannot write its promise: {error.strerror or error}"
    standings = standings_of(member.leadership.group)
    return _answer(member, promised=False, standings=standings) | {"refused": refused, "stepped_down": True}


def _answer(member: Member, *, promised: bool, standings: Standings) -> dict[str, Any]:
    return {
        "promised": promised,
        "term": member.local.file.now.term,
        "placement_id": member.node.identity.placement_id.hex(),
        "cluster_id": member.node.identity.cluster_id.hex(),
        "is_new": member.local.is_new,
        "votes": member.local.votes,
        "line": line_to_json(member.local.line),
        "voters": voters_to_json(member.local.file.now.voters),
        "partitions": standings_to_json(standings),
        "owes": debts_to_json(member.local.file.now.owes),
    }


def why_refused(error: TailraceError | OSError) -> str:
    """Returns, for the operator, why another member has not promised."""
    return str(error) or type(error).__name__
