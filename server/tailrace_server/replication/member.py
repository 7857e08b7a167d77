"""The task of a node that is not alone: asks the others for their states, decides the next step, and does it.

    not leading:  asks all others ── election.decide ──> follows, founds the set, leads again, or asks again later
    leading:      asks all others now and then; steps down for a later leader, or if a voter has followed one; leads
                  again, in a higher term, if a promise came to nothing, so that the promising voter can follow it

Promotions and handovers come from an operator, as requests. One procedure at a time changes who leads (``procedure``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import NotLeader, StreamEnded, TailraceError
from tailrace.link.address import parse_address
from tailrace.model import EndReason
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.host.randomness import fraction
from tailrace_server.replication.election import (
    MemberState,
    NextStep,
    StepKind,
    decide,
    decide_replica,
    later_leader,
)
from tailrace_server.replication.follow_rule import Follower, why_not_follow
from tailrace_server.replication.following import Following, VoteGained
from tailrace_server.replication.local_member import LocalMember
from tailrace_server.replication.look_pace import LookPace
from tailrace_server.replication.member_list import ListChange
from tailrace_server.replication.peer_states import PeerStates
from tailrace_server.replication.peers import (
    ask,
    seqs_from_json,
)
from tailrace_server.replication.pulled_node import PulledNode
from tailrace_server.replication.replica_rollback import roll_back_newer
from tailrace_server.replication.role import Role
from tailrace_server.replication.seats import Seats
from tailrace_server.replication.successor import Successor
from tailrace_server.replication.term_branches import TermBranches
from tailrace_server.replication.voters import TERMS_AHEAD_MAX, Voters

if TYPE_CHECKING:
    from tailrace_server.replication.groups import GroupSettings
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# The number of looks that a leader waits, after it has learnt of a higher promise, for the leader of that term.
_LOOKS_BEFORE_LEADING_AGAIN = 3
# The highest number of looks before the next try to lead, after one that failed: two members must not go on colliding.
_LOOKS_AFTER_FAILURE = 10
# The number of intervals between two looks while this node follows. They decide nothing, and are for status only.
_LOOKS_WHILE_FOLLOWING = 10
# After a following that was shorter, a member that fails over by itself pauses too, before it looks for a leader.
_SHORT_FOLLOWING_SECONDS = 1.0


class Member:
    """A member of a set, or a plain replica. ``run`` does everything; requests of other nodes come in between."""

    def __init__(
        self,
        node: LocalNode,
        leadership: Leadership,
        lead_again: Callable[[Member], Awaitable[object]],
        settings: GroupSettings,
        successor: Callable[[Member], Successor],
    ) -> None:
        """Reads the promises of the directory. Raises BadDirectory, OSError.

        ``leadership`` and ``settings``: of the group whose leader this decides on. ``lead_again``:
        `tailrace_server.replication.promotion.lead_again`, called with ``procedure`` held. ``successor`` makes the part
        that fails over by itself.
        """
        self._lead_as_before = lead_again
        self.node = node
        self.leadership = leadership
        self.local = LocalMember(node, leadership, settings)
        self.seats = Seats(self.local, leadership, self.step_down, self._told_voters)
        self.peers = PeerStates(self.local, self.step_down, self.seats.learn)
        self.procedure = trio.Lock()
        self.following: Following | None = None
        self.told_terms: dict[bytes, int] = {}  # the promises that voters have told with their questions, by disk
        self.turns = 0  # the number of requests under way that are to change the leader
        self._under_way: Following | PulledNode | None = None  # the last task that pulled from another node
        self._doing = ""
        self._looking = trio.CancelScope()  # of the look of a node that leads
        self._higher_looks = 0
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._pace = LookPace()
        self._last_case = self._last_warning = self._gave_up = ""
        self.successor = successor(self)
        leadership.members.on_change(self._list_changed)

    @property
    def progress(self) -> str:
        """For people: the present work or wait of this member, and the members whose answers do not count."""
        leads = self.leadership.role is Role.LEADER
        seat = self.seats.why if leads else self.seats.why_no_vote()
        return "; ".join(filter(None, [self._doing, seat, *self.peers.misfits.values()]))

    def report(self, doing: str) -> None:
        """Sets the first part of ``progress``; "" for nothing that people need to know of."""
        self._doing = doing

    def pulls(self, pulled: PulledNode) -> None:
        """Notes the node that a promotion pulls from, so that ``step_down`` stops that."""
        self._under_way = pulled

    def add_turn(self) -> None:
        """Counts a request that is to change who leads."""
        self.turns += 1

    def end_turn(self) -> None:
        """Ends what ``add_turn`` began."""
        self.turns -= 1

    # Running

    def begin(self) -> None:
        """Begins as a follower without a leader, before the node serves.

        Every term in the logs of partitions counts as promised, so no term is ever used again.
        """
        now = self.local.file.now
        floor = max([now.term, *(partition.log.term for partition in self.leadership.group.unsorted())])
        now = now.promised(floor)
        self.local.file.store(now)
        token = self.local.begin_start()
        if self.local.is_in_set:
            with contextlib.suppress(OSError):  # if the disk is full, this start counts as one with the last one
                self.local.file.store(now.begun(token, self.node.storage.journal_found))
        self.report("begins")
        self.leadership.decided_by(
            lambda term: self.wake(), self.accepted_seqs, self.local.owe, self.local.owes, self.step_down
        )
        self.leadership.step_down(floor)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.successor.run)
            while True:
                async with self.procedure:
                    pass  # a promotion or handover decides first
                try:
                    if self.leadership.role is Role.LEADER:
                        await self._look_as_leader()
                    else:
                        await self._look_as_follower()
                except (TailraceError, OSError) as error:  # the step was not written down, so it has not happened
                    self.report(f"waits: MEMBERSHIP or the journal cannot be written: {error}")
                    self._warn(self.progress)
                    await self._pause()

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Runs an async function as a task of this member, which may outlive the request for it."""
        if self._nursery is None:
            raise NotLeader("this node has only just started: ask again")
        self._nursery.start_soon(function)

    def wake(self) -> None:
        """Looks again soon: something has changed."""
        self._changed.set()

    def _warn(self, text: str) -> None:
        """Logs a warning, once if the same one comes again and again."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)

    async def _pause(self, looks: float = 1.0) -> None:
        """Waits for about ``looks`` intervals, a random length each time; less if something changes."""
        await self.woken_within(
            self.node.config.replication.poll_s * looks * (0.5 + fraction(self.node.host.randomness))
        )

    async def woken_within(self, seconds: float) -> bool:
        """Waits for so long, less if something changes. Returns whether something has."""
        self._changed = trio.Event()
        with trio.move_on_after(seconds):
            await self._changed.wait()
        return self._changed.is_set()

    async def _look_beside(self, scope: trio.CancelScope) -> None:
        """Asks the others while a leader is followed, for status, and has unreadable partitions copied anew."""
        seconds = _LOOKS_WHILE_FOLLOWING * self.node.config.replication.poll_s
        with scope:
            while True:
                await trio.sleep(seconds)
                if self.following is not None:
                    self.following.copy_unreadable()
                await self.peers.look()
                if await self.local.twin.look():
                    self.step_down()

    async def accepted_seqs(self, feed_ids: list[bytes]) -> dict[bytes, list[int]]:
        """Returns how far the leader that this node follows has come in these feeds.

        The leader has made sure that it still leads. Raises NotLeader if this node follows no leader, and the leader's
        error.
        """
        following, config = self.following, self.node.config.replication
        if following is None:
            raise self.leadership.not_leader()
        cluster_id = self.node.identity.cluster_id.hex()
        value = {"feed_ids": [feed_id.hex() for feed_id in feed_ids], "cluster_id": cluster_id}
        timeout_s = 2 * config.ask_timeout_s  # it asks a majority first
        answer = await ask(self.node, following.address, Opcode.ACCEPTED_SEQS, value, timeout_s)
        return seqs_from_json(answer.get("seqs"), "the answer to ACCEPTED_SEQS")

    # Without the leadership

    async def _look_as_follower(self) -> None:
        # The first row of the table in election.py: with a leader, the other answers change nothing. Writes at quorum
        # wait for this node.
        self.local.file.try_again()
        await self.local.twin.look()
        unfit = self.successor.why_unfit() or self.local.file.failure or self.local.twin.why
        if unfit:
            self.report(f"stands back: {unfit}")
            await self._pause()
            return
        await self.peers.look(self._knows_enough)
        if self.procedure.locked() or self.leadership.role is Role.LEADER:
            return
        step = self._decide(self.peers.states)
        self.leadership.stand_outside(*self.peers.outside())
        if step.case != self._last_case:
            self._last_case = step.case
            log.info("%s: %s", step.case, step.why or step.kind.value)
        match step.kind:
            case StepKind.FOLLOW:
                began_at = self.node.clock.monotonic()
                await self._follow(step.address)
                if not self.successor.is_on or self.node.clock.monotonic() - began_at < _SHORT_FOLLOWING_SECONDS:
                    await self._pause()
            case StepKind.FOUND:
                async with self.procedure:
                    await self._found()
            case StepKind.LEAD_AGAIN:
                await self._lead_again()
            case StepKind.WAIT:
                if not await self.successor.succeed(step):
                    self.report(f"waits: {step.why}")
                    await self._pause(self._pace.pause(step.case))

    def _knows_enough(self, found: Mapping[str, MemberState | None]) -> bool:
        """Returns whether there is a leader that this node may follow, or none whose answer could be waited for."""
        step = self._decide(found)
        return step.kind is StepKind.FOLLOW or self.successor.knows_all(found)

    def _decide(self, seen: Mapping[str, MemberState | None]) -> NextStep:
        own = self.local.own_state()
        if self.local.is_in_set:
            return decide(own, seen, self.peers.asked)
        return decide_replica(own, seen)

    def _why_not_follow(self, name: str, leader: MemberState) -> str:
        """Returns why this node must not follow the leader at ``name``; "" if it may."""
        local = self.local
        cluster_id, voters = self.node.identity.cluster_id, local.file.now.voters
        own = Follower(
            local.name, cluster_id, local.is_new, local.may_join, local.is_in_set, voters, local.foreign_term
        )
        return why_not_follow(own, name, leader, self.peers.states.values())

    async def _follow(self, name: str) -> None:
        """Follows the leader at ``name`` until the following ends."""
        node, seen = self.node, self.peers.states[name]
        assert seen is not None
        waits = self._why_not_follow(name, seen)
        if waits:
            self.report(f"waits: {waits}")
            self._warn(self.progress)
            return
        if seen.cluster_id != node.identity.cluster_id:
            node.join(seen.cluster_id)
        now = self.local.file.now
        term = max(seen.term, now.term) if not self.local.is_in_set else seen.term
        voters = seen.voters if self.local.is_in_set else None
        self.local.file.store(now.followed(term, seen.founders, node.identity.placement_id, voters))
        self.local.take_list()
        identity, votes = node.identity, self.local.votes and self.local.is_in_set
        replica = Replica(
            identity.placement_id, seen.term, self.local.name, votes, identity.cluster_id, start=self.local.start_token
        )
        self.following = self._under_way = following = Following(
            node, self.leadership, self.local, parse_address(name), replica, self.seats.learn
        )
        self.leadership.become_follower(seen.term, name)
        self.successor.found(name, asks=seen.asks and votes, is_sure=not seen.withholds)
        self.report(f"follows {name}{self._gave_up}")
        beside = trio.CancelScope()
        self.start(partial(self._look_beside, beside))
        failure: Exception | None = None
        try:
            await following.run()
        except VoteGained:
            pass
        except (TailraceError, OSError) as error:
            failure = error
            self._warn(f"{name} is not followed any more: {error}")
            self.report(f"does not follow {name}: {error}")
        except Exception as error:  # a bug, as in ``Connections.handle``: the node goes on serving its rows
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                log.exception("the following of %s ended by an internal error", name)
            self.report(f"does not follow {name}: an internal error, which the log has")
        finally:
            beside.cancel()
            self.successor.lost()
            if self.following is following:
                self.following = None
                self.leadership.step_down(self.local.file.now.term)
        self.start(following.discard)
        if isinstance(failure, StreamEnded) and failure.reason is EndReason.BEHIND and not self.local.is_in_set:
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        """Rolls a plain replica back: it has seen later terms than its leader, or the leader is behind."""
        async with self.procedure:
            if self.leadership.role is Role.LEADER or self.local.file.now.led:  # an operator was faster
                return
            try:
                count = await roll_back_newer(self.node, self.leadership, parse_address(name))
            except (TailraceError, OSError) as error:
                self._warn(f"{name} is behind, and the rows that it lacks are not rolled back: {error}")
                return
        if count:
            self._gave_up = (
                f"; rolled back {count} partitions with rows of later terms than {name} has; lost/ keeps the rows"
            )
            self._warn(f"follows {name}{self._gave_up}")

    async def _found(self) -> None:
        """Founds the set: all members are new, and this is the first of the list."""
        node, file = self.node, self.local.file
        others = [seen.placement_id for seen in self.peers.states.values() if seen is not None]
        founders = (node.identity.placement_id, *others)
        # 1, unless a term was promised to a member that did not come to lead, or another group has listed feeds.
        term = max([file.now.term, *(partition.log.term for partition in self.leadership.group.unsorted())]) + 1
        file.store(file.now.leading(term, forced=False, founders=founders, voters=self._first_voters(term)))

        def require_term() -> None:
            if file.now.term != term:
                raise NotLeader(f"no set is founded: term {file.now.term} was promised to another node meanwhile")

        branches = TermBranches(node, self.leadership.group, term)
        await branches.begin(require_term)
        await node.storage.all_durable()
        require_term()
        branches.begin_rest()
        self.local.count()
        self.lead(term)
        self.report("")
        log.warning("a set of %s members is founded, and this node leads it", len(founders))

    def _first_voters(self, term: int) -> Voters:
        """Returns the record of a set that is founded: a seat for each member in the order of the list."""
        told = {name: seen.placement_id for name, seen in self.peers.states.items() if seen is not None}
        told[self.local.name] = self.node.identity.placement_id
        return Voters(term, 1, tuple(told[name] for name in self.local.members))

    async def _lead_again(self) -> None:
        """Leads again as it did before: the last leader of a set, or a plain replica that was told to lead.

        A leader goes on leading by this, in a term in which those that have promised more can follow it. If it cannot
        write that term, and the set fails over by itself, it steps down: they would wait for it.
        """
        async with self.procedure:
            try:
                await self._lead_as_before(self)
            except (TailraceError, OSError) as error:
                self.report(f"waits: it cannot lead again: {error}")
                self._warn(f"it cannot lead again: {error}")
                if self.successor.is_on and self.local.file.failure:
                    self.step_down()
        if self.leadership.role is not Role.LEADER:
            self.leadership.step_down(self.local.file.now.term)
            await self._pause(1 + _LOOKS_AFTER_FAILURE * fraction(self.node.host.randomness))

    # With it

    async def _look_as_leader(self) -> None:
        if not self.local.is_in_set:
            self._changed = trio.Event()
            await self._changed.wait()
            return
        await self._pause(2)
        if self.procedure.locked() or self.leadership.role is not Role.LEADER:
            return
        with trio.CancelScope() as self._looking:
            await self.peers.look()
        if self.procedure.locked() or self.leadership.role is not Role.LEADER:
            return
        term = self.leadership.term
        answers = {name: seen for name, seen in self.peers.states.items() if seen is not None}
        later = later_leader(term, self.node.identity.placement_id, answers, self.local.counts_seen)
        if later is not None:
            log.warning("%s, and this node in term %s: it steps down", later.why, term)
            try:
                if later.term > self.local.file.now.term:
                    self.local.file.store(self.local.file.now.promised(later.term))
            finally:
                self.step_down()
            return
        if self.seats.lead(answers):
            self.wake()  # the others are to store it soon
        self.successor.depart()
        higher = [name for name, seen in answers.items() if seen.term > term and self.local.counts_seen(seen)]
        higher += [f"disk {id.hex()[:8]}" for id, told in self.told_terms.items() if told > term]
        if not higher or any(seen.promoting for seen in answers.values()):
            self._higher_looks = 0
            return
        self._higher_looks += 1
        if self._higher_looks >= _LOOKS_BEFORE_LEADING_AGAIN:
            self._higher_looks = 0
            log.warning("%s promised a higher term, and no node leads by it: this node leads anew", ", ".join(higher))
            await self._lead_again()

    def told_term(self, placement_id: bytes, term: int) -> None:
        """Notes the promise that a voter has told with a question.

        This leader may not be able to ask that voter. Without its promise the voter would wait for ever for a leader
        that it may follow.
        """
        now = self.local.file.now
        if now.voters.has(placement_id) and term <= now.term + TERMS_AHEAD_MAX:
            told = self.told_terms | {placement_id: term}
            self.told_terms = {id: term for id, term in told.items() if now.voters.has(id)}

    def follow_first(self, feed_ids: Collection[bytes]) -> None:
        """Follows these feeds before the others that are not followed yet: writes wait for them at the leader."""
        if feed_ids and self.following is not None:
            self.following.begin_first(feed_ids)

    def _told_voters(self, is_other_vote: bool) -> None:
        """Goes on following by a later record of the voters, anew if this node has gained or lost its vote by it."""
        if self.following is not None and is_other_vote:
            self.following.stop()
        elif self.following is not None:
            self.following.voters_changed()

    def _list_changed(self, change: ListChange) -> None:
        """Ends the links to members that have left, and looks at the new ones soon."""
        if self.local.why_no_member():
            log.error("%s", self.local.why_no_member())
            self.step_down()
        elif self.leadership.role is Role.LEADER:
            self.leadership.end_replicas([str(address) for address in change.left])
        elif self.following is not None and self.following.address in change.left:
            self.following.stop()
        self.wake()

    def lead(self, term: int) -> None:
        """Leads in ``term`` from now on, which this member has stored and a majority has promised."""
        self.leadership.become_leader(term)
        self.successor.won()

    def step_down(self) -> None:
        """Ends leading and following at once. Tasks under way change nothing after this."""
        if self.leadership.role is Role.LEADER:
            self.peers.forget_asked()
            self._looking.cancel()  # the look decides nothing any more
        self.following = None
        if self._under_way is not None:
            self._under_way.stop()
        self.leadership.step_down(self.local.file.now.term)
        self.wake()

    async def nothing_under_way(self) -> None:
        """Returns once the stopped task has ended, and with it the installing of a segment or a rollback."""
        if self._under_way is not None:
            await self._under_way.ended.wait()
