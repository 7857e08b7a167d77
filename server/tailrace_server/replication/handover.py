"""A leadership that is given away without losing anything: the leader's side, and that of the one who takes it over.

    leader                                              the other one
    waits until the other one has nearly everything
    pauses writes
    waits until the other one has everything; where that takes long, lets writes go on, and begins again
    TAKE_OVER ──────────────────────────────────────>   promises itself the next term
    promises it, durably: never writes again   <─────   PROMISE, to the leader before all others
                                                        a majority has promised; it has all that the leader had
                                                        leads on the same branches
    follows                                    <─────   the answer

Writes are paused so that nobody waits long for what is under way, and not to keep what is written: that is all in the
leader's promise, after which it writes nothing. So it lets them go on wherever the other one takes its time.

Whatever goes wrong ends in one leader. Before the leader has promised it goes on leading; afterwards it never does by
itself but by promotion, as the last leader that all know of, where the other one does not come to lead.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.wire.bodies import seq_field
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication.peers import ask, look_at, seqs_from_json
from tailrace_server.replication.promotion import Promotion, PromotionResult
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

# By feed id: of each partition.
Seqs = dict[bytes, list[int]]

log = logging.getLogger("tailrace.server")

# How often the other one is asked whether it has everything.
_ASK_AGAIN_SECONDS = 0.02
# Writes are paused for so long at most until the other one has the last of them; then they have as long to themselves.
_PAUSED_SECONDS = 0.5
# The other one has so long to ask for the leader's promise, before writes go on.
_UNASKED_SECONDS = 0.5


async def hand_over(member: Member, to: Address) -> int:
    """Gives the leadership to the member at ``to``; the term in which that leads.

    Raises NotLeader where this node does not lead, TailraceError that says why it was not given away.
    """
    node, leadership, config = member.node, member.leadership, member.node.config.replication
    async with member.procedure:
        if leadership.role is not Role.LEADER:
            raise NotLeader("this node does not lead, and has nothing to give away", leader=leadership.leader or None)
        if to not in member.others or not member.is_in_set:
            raise TailraceError(f"{to} is no other member of this set: {', '.join(map(str, member.others))} are")
        seen = await look_at(node, to, config.ask_timeout_s)
        misfit = member.why_misfit(str(to), seen)
        if misfit:
            raise TailraceError(misfit)
        if not member.counts(seen.votes, seen.placement_id):
            raise TailraceError(f"{to} has no vote yet: it has not caught up")
        member.progress = f"hands over to {to}"
        try:
            with trio.move_on_after(config.step_timeout_s) as scope:
                await _pause_when_level(member, to)
            if scope.cancelled_caught:
                raise Unreachable(f"{to} has not caught up within {config.step_timeout_s:g} s")
            answer = await _ask_to_take_over(member, to)
        finally:
            leadership.resume_writes()
            member.progress = ""
            member.wake()
        return int(seq_field(answer, "term", "the answer to TAKE_OVER"))


async def _pause_when_level(member: Member, to: Address) -> None:
    """At the end writes are paused, and the member at ``to`` has all there is."""
    node = member.node
    while True:
        so_far = high_seqs_of(member)
        await node.storage.all_durable()
        await _has(member, to, so_far)
        member.leadership.pause_writes()
        with trio.move_on_after(_PAUSED_SECONDS):
            await node.storage.all_durable()
            await _has(member, to)
            return
        member.leadership.resume_writes()
        await trio.sleep(_PAUSED_SECONDS)


async def _has(member: Member, to: Address, wanted: Seqs | None = None) -> None:
    """Returns once the member at ``to`` has what is ``wanted`` of what this node has; None: all of it."""
    node = member.node
    while True:
        answer = await ask(node, to, Opcode.MEMBER, {"seqs": True}, node.config.replication.ask_timeout_s)
        held = seqs_from_json(answer.get("seqs"), "the answer to MEMBER")
        if member.leadership.role is not Role.LEADER:
            raise NotLeader("another one came to lead meanwhile")
        own = high_seqs_of(member)
        # A feed may have been dropped meanwhile.
        wanted_now = own if wanted is None else {feed_id: wanted[feed_id] for feed_id in own.keys() & wanted.keys()}
        if all(_reaches(held.get(feed_id, []), seqs) for feed_id, seqs in wanted_now.items()):
            return
        await trio.sleep(_ASK_AGAIN_SECONDS)


def _reaches(held: list[int], seqs: list[int]) -> bool:
    return len(held) == len(seqs) and all(has >= seq for has, seq in zip(held, seqs, strict=True))


async def _ask_to_take_over(member: Member, to: Address) -> dict[str, Any]:
    # The other one asks this one for its promise, and then all others, each with a time-out of its own.
    node = member.node
    timeout_s = 5 * node.config.replication.step_timeout_s
    answer: dict[str, Any] = {}
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_resume_unless_asked, member)
        try:
            value = {"term": member.leadership.term, "cluster_id": node.identity.cluster_id.hex()}
            answer = await ask(node, to, Opcode.TAKE_OVER, value, timeout_s)
        except (TailraceError, OSError) as error:
            failure = error  # raised below, outside of the nursery, which would make a group of it
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer


async def _resume_unless_asked(member: Member) -> None:
    """What is written then comes with the promise, and is fetched. After the promise this changes nothing."""
    await trio.sleep(_UNASKED_SECONDS)
    member.leadership.resume_writes()


def high_seqs_of(member: Member) -> Seqs:
    """The high seq of each partition, by feed id."""
    feeds, group = member.node.feeds, member.leadership.group
    return {feed.info.feed_id: [p.high_seq for p in group.of_feed(feed)] for feed in [feeds.system, *feeds]}


async def take_over(member: Member, term: int) -> PromotionResult:
    """Leads in place of the leader of ``term``, which this node follows and which has asked for it.

    Raises TailraceError that says why not.
    """
    async with member.procedure:
        following = member.following
        if following is None or member.file.now.leader_term != term:
            raise NotLeader(f"this node does not follow the leader of term {term}")
        await member.node.storage.all_durable()
        try:
            return await Promotion(member, leader=str(following.address)).run()
        finally:
            member.wake()
