"""Hands a leadership over without losing anything: the leader's side, and the successor's.

    leader                                              successor
    waits until the successor has nearly everything; flushes, so that partitions in mode ``segment`` are shipped
    pauses writes, and flushes the rest
    waits until the successor has everything; if that takes long, resumes writes and begins again
    TAKE_OVER ──────────────────────────────────────>   promises itself the next term
    promises it, durably: never writes again   <─────   PROMISE, to the leader before all others
                                                        a majority has promised; it has all that the leader had
                                                        leads on the same branches
    follows                                    <─────   the answer

The pause only shortens the wait for the last writes. It does not keep anything from being lost: all writes precede the
leader's promise, after which it writes nothing. So the leader resumes writes whenever the successor takes its time.

Each failure ends with one leader. Before its promise the old leader goes on leading. After it the old leader can only
lead again by a promotion, as the last leader that all know of, if the successor does not come to lead.

A leader that cannot write its promise steps down without one (promises.py). Its vote does not count, and the successor
begins branches of its own. So a disk that is full, or fails, does not keep the leadership from others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
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
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.member import Member

# The seqs of each partition, by feed id.
Seqs = dict[bytes, list[int]]

log = logging.getLogger("tailrace.server")

# The partitions that are flushed at the same time. A flush mostly waits for the disk.
_FLUSHED_TOGETHER = 8
# The seconds between two questions whether the successor has everything.
_ASK_AGAIN_SECONDS = 0.02
# The seconds that writes are paused at most until the successor has the last of them. Then they run for the first
# number of seconds, and the next pause may be twice as long: a writer waits less in one long pause than in many.
_PAUSED_SECONDS = 0.5
_PAUSED_SECONDS_MAX = 2.0
# Writes are paused if the last round of shipping has taken less than this, or if rounds do not get shorter by a fifth.
_ROUND_SECONDS = 0.25
_ROUND_SHRINKS = 0.8
# The time-outs that the successor has to catch up if partitions are shipped as segments: a segment may be large.
_SHIPPING_TIMEOUTS = 6
# The seconds that the successor has to ask for the leader's promise, before writes are resumed.
_UNASKED_SECONDS = 0.5


async def hand_over(member: Member, to: Address, *, force: bool = False) -> int:
    """Hands the leadership over to the member at ``to``. Returns the term in which that leads.

    A member whose disk is nearly full or fails is refused, unless ``force``: it would refuse writes.

    Raises NotLeader if this node does not lead, and TailraceError that says why the handover failed.
    """
    node, leadership, config = member.node, member.leadership, member.node.config.replication
    async with member.procedure:
        if leadership.role is not Role.LEADER:
            raise NotLeader(
                "this node does not lead, and has nothing to give away", leader=leadership.leader_address or None
            )
        if to not in member.local.others or not member.local.is_in_set:
            raise TailraceError(f"{to} is no other member of this set: {', '.join(map(str, member.local.others))} are")
        seen = await look_at(node, to, member.local.question(), config.ask_timeout_s)
        misfit = member.peers.why_misfit(str(to), seen)
        if misfit:
            raise TailraceError(misfit)
        if not member.local.counts_seen(seen):
            raise TailraceError(f"{to} has no vote yet: it has not caught up")
        if not seen.has_room and not force:
            raise TailraceError(
                f"the disk of {to} is nearly full or fails, so it would refuse writes as the leader: see to it, or "
                "take another member. --force hands over all the same"
            )
        member.report(f"hands over to {to}")
        try:
            timeout_s = config.step_timeout_s * (_SHIPPING_TIMEOUTS if any(_pushed(member)) else 1)
            with trio.move_on_after(timeout_s) as scope, node.storage.compactor.holding_pushed():
                await _pause_when_level(member, to)
            if scope.cancelled_caught:
                raise Unreachable(f"{to} has not caught up within {timeout_s:g} s")
            answer = await _ask_to_take_over(member, to)
        finally:
            leadership.resume_writes()
            member.report("")
            member.wake()
        return int(seq_field(answer, "term", "the answer to TAKE_OVER"))


async def _pause_when_level(member: Member, to: Address) -> None:
    """Pauses writes and returns once the member at ``to`` has everything."""
    node, paused_s = member.node, _PAUSED_SECONDS
    while True:
        await _ship_most(member, to)
        member.leadership.pause_writes()
        with trio.move_on_after(paused_s):
            await node.storage.all_durable()
            await _flush_pushed(member)
            await _has(member, to)
            return
        member.leadership.resume_writes()
        await trio.sleep(_PAUSED_SECONDS)
        paused_s = min(2 * paused_s, _PAUSED_SECONDS_MAX)


async def _ship_most(member: Member, to: Address) -> None:
    """Returns once the member at ``to`` lacks little. Writes go on.

    Each round ships the writes of the round before it, so rounds get shorter until writers are as fast as the shipping.
    """
    node, monotonic = member.node, member.node.host.clock.monotonic
    round_s = math.inf
    while True:
        began_at, before_s = monotonic(), round_s
        so_far = high_seqs_of(member)
        await node.storage.all_durable()
        await _flush_pushed(member)
        await _has(member, to, so_far)
        round_s = monotonic() - began_at
        if round_s < _ROUND_SECONDS or round_s > _ROUND_SHRINKS * before_s:
            return


def _pushed(member: Member) -> Iterator[Partition]:
    """Yields the partitions whose followers get segments instead of rows."""
    return (partition for partition in member.leadership.group if partition.pushes.by_segments)


async def _flush_pushed(member: Member) -> None:
    """Flushes the present rows of the partitions in mode ``segment``, several partitions at the same time."""
    due = [partition for partition in _pushed(member) if partition.tree.block_count]
    for begin in range(0, len(due), _FLUSHED_TOGETHER):
        failures: list[Exception] = []

        async def flush(partition: Partition, failures: list[Exception] = failures) -> None:
            try:
                # Not ``flush_all``: beside fast writers that does not end.
                await member.node.storage.flusher.flush_through(partition, partition.high_seq)
            except (TailraceError, OSError) as error:
                failures.append(error)  # raised below, outside of the nursery, which would make a group of it

        async with trio.open_nursery() as nursery:
            for partition in due[begin : begin + _FLUSHED_TOGETHER]:
                nursery.start_soon(flush, partition)
        if failures:
            raise failures[0]


async def _has(member: Member, to: Address, wanted: Seqs | None = None) -> None:
    """Returns once the member at ``to`` has ``wanted``, or if that is None everything that this node has."""
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
    # The successor asks this node for its promise, and then all others, each with a time-out of its own.
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
    """Resumes writes after 0.5 s; does nothing if the leader has promised by then.

    Later writes come with the promise, and are fetched.
    """
    await trio.sleep(_UNASKED_SECONDS)
    member.leadership.resume_writes()


def high_seqs_of(member: Member) -> Seqs:
    """Returns the high seq of each partition, by feed id."""
    feeds, group = member.node.feeds, member.leadership.group
    return {feed.info.feed_id: [p.high_seq for p in group.of_feed(feed)] for feed in [feeds.system, *feeds]}


async def take_over(member: Member, term: int) -> PromotionResult:
    """Leads in place of the leader of ``term``, which this node follows and which has asked for it.

    Raises TailraceError that says why it failed.
    """
    async with member.procedure:
        following = member.following
        if following is None or member.local.file.now.leader_term != term:
            raise NotLeader(f"this node does not follow the leader of term {term}")
        await member.node.storage.all_durable()
        try:
            return await Promotion(member, leader=str(following.address)).run()
        finally:
            member.wake()
