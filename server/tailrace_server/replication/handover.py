"""A leadership that is given away without losing anything: the leader's side, and that of the one who takes it over.

    leader                                              the other one
    pauses writes
    waits until the other one has everything
    TAKE_OVER ──────────────────────────────────────>   promises itself the next term
    promises it, durably: never writes again   <─────   PROMISE, to the leader before all others
                                                        a majority has promised; it has all that the leader had
                                                        leads on the same branches
    follows                                    <─────   the answer

Whatever goes wrong ends in one leader. Before the leader has promised it goes on leading; afterwards it never does by
itself but by promotion, as the last leader that all know of, where the other one does not come to lead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tailrace.address import Address
from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.wire.bodies import seq_field
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.lists import why_other_list
from tailrace_server.replication.peers import ask, look_at, seqs_from_json
from tailrace_server.replication.promotion import Outcome, Promotion
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# How often the other one is asked whether it has everything: writers wait meanwhile.
_ASK_AGAIN_SECONDS = 0.02


async def hand_over(member: Member, to: Address) -> int:
    """Gives the leadership to the member at ``to``; the term in which that leads.

    Raises NotLeader where this node does not lead, TailraceError that says why it was not given away.
    """
    node, config = member.node, member.node.config.replication
    async with member.procedure:
        if node.role is not Role.LEADER:
            raise NotLeader("this node does not lead, and has nothing to give away", leader=node.leader or None)
        if to not in member.others or not member.is_in_set:
            raise TailraceError(f"{to} is no other member of this set: {', '.join(map(str, member.others))} are")
        seen = await look_at(node, to, config.ask_timeout_s)
        misfit = why_other_list(member.members, str(to), seen.members)
        if misfit:
            raise TailraceError(misfit)
        if not member.counts(seen.votes, seen.placement_id):
            raise TailraceError(f"{to} has no vote yet: it has not caught up")
        member.progress = f"hands over to {to}"
        node.pause_writes()
        try:
            with trio.move_on_after(config.step_timeout_s) as scope:
                await node.all_durable()
                await _has_everything(member, to)
            if scope.cancelled_caught:
                raise Unreachable(f"{to} has not caught up within {config.step_timeout_s:g} s")
            # The other one asks this one for its promise, and then all others, each with a time-out of its own.
            timeout_s = 5 * config.step_timeout_s
            answer = await ask(node, to, Opcode.TAKE_OVER, {"term": node.term}, timeout_s)
        finally:
            node.resume_writes()
            member.progress = ""
            member.wake()
        return int(seq_field(answer, "term", "the answer to TAKE_OVER"))


async def _has_everything(member: Member, to: Address) -> None:
    node = member.node
    while True:
        answer = await ask(node, to, Opcode.MEMBER, {"seqs": True}, node.config.replication.ask_timeout_s)
        held = seqs_from_json(answer.get("seqs"), "the answer to MEMBER")
        if node.role is not Role.LEADER:
            raise NotLeader("another one came to lead meanwhile")
        wanted = high_seqs_of(member)
        if all(held.get(feed_id) == seqs for feed_id, seqs in wanted.items()):
            return
        await trio.sleep(_ASK_AGAIN_SECONDS)


def high_seqs_of(member: Member) -> dict[bytes, list[int]]:
    """The high seq of each partition, by feed id."""
    feeds = member.node.feeds
    return {feed.info.feed_id: [p.high_seq for p in feed.partitions] for feed in [feeds.system, *feeds]}


async def take_over(member: Member, term: int) -> Outcome:
    """Leads in place of the leader of ``term``, which this node follows and which has asked for it.

    Raises TailraceError that says why not.
    """
    async with member.procedure:
        following = member.following
        if following is None or member.file.now.leader_term != term:
            raise NotLeader(f"this node does not follow the leader of term {term}")
        await member.node.all_durable()
        try:
            return await Promotion(member, leader=str(following.address)).run()
        finally:
            member.wake()
