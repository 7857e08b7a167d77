"""The task of a node that is not alone: it looks at the others, decides what to do next, and does it.

    not leading:  look at all others ── situation.decide ──> follow, found, lead again, or look again after a while
    leading:      look at all others now and then; a later leader, or a voter that has followed one, ends this
                  leadership, and a promise that came to nothing makes this node lead again, in a higher term, so that
                  the one who promised can follow it

Promotions and handovers come from an operator, as requests. One procedure at a time changes who leads (``procedure``).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import NotLeader, StreamEnded, TailraceError
from tailrace.link.address import parse_address
from tailrace.model import EndReason
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.host.randomness import fraction
from tailrace_server.partition.branching import begin_branch
from tailrace_server.replication.election import (
    MemberState,
    Step,
    StepKind,
    decide,
    decide_replica,
    later_leader,
)
from tailrace_server.replication.following import Following, VoteGained
from tailrace_server.replication.local_member import LocalMember
from tailrace_server.replication.peer_states import PeerStates
from tailrace_server.replication.peers import (
    ask,
    name_of,
    seqs_from_json,
)
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.replica_rollback import roll_back_newer
from tailrace_server.replication.role import Role

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# A leader that learns of a higher promise waits for so many looks whether somebody comes to lead by it.
_LOOKS_BEFORE_LEADING_AGAIN = 3
# After a try to lead that failed the next one comes after so many looks, at most: two who try must not go on meeting.
_LOOKS_AFTER_FAILURE = 10
# While it follows nothing is decided by a look: only status tells what the others are.
_LOOKS_WHILE_FOLLOWING = 10


class Member:
    """A member of a set, or a plain replica. ``run`` does everything; requests of others come in between."""

    def __init__(
        self, node: LocalNode, leadership: Leadership, lead_again: Callable[[Member], Awaitable[object]]
    ) -> None:
        """Reads what the directory has promised. Raises BadDirectory, OSError.

        ``leadership``: of the group whose leader this decides on. ``lead_again``:
        `tailrace_server.replication.promotion.lead_again`, called with ``procedure`` held.
        """
        self._lead_as_before = lead_again
        self.node = node
        self.leadership = leadership
        self.local = LocalMember(node, leadership)
        self.peers = PeerStates(self.local, self._warn, self.step_down)
        self.procedure = trio.Lock()
        self.following: Following | None = None
        self.turns = 0  # requests that are to change who leads, and have not ended
        self._under_way: Following | ReplicaPuller | None = None  # what pulls, or pulled last, from another node
        self._doing = ""
        self._looking = trio.CancelScope()  # of the look of a node that leads
        self._higher_looks = 0
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._last_case = self._last_warning = self._gave_up = ""

    @property
    def progress(self) -> str:
        """For people: what it does or waits for, and whose answers do not count."""
        return "; ".join(filter(None, [self._doing, *self.peers.misfits.values()]))

    def report(self, doing: str) -> None:
        """Sets the first part of ``progress``; "" if the member does nothing that people need to know of."""
        self._doing = doing

    def pulls(self, puller: ReplicaPuller) -> None:
        """Notes the puller of a promotion, so that ``step_down`` stops it."""
        self._under_way = puller

    def add_turn(self) -> None:
        """Counts a request that is to change who leads."""
        self.turns += 1

    def end_turn(self) -> None:
        """Ends what ``add_turn`` began."""
        self.turns -= 1

    # Running

    def begin(self) -> None:
        """Before the node serves: it follows until it knows better.

        What the logs of partitions say was promised, whoever wrote that: no term is ever used again.
        """
        now = self.local.file.now
        floor = max([now.term, *(partition.log.term for partition in self.leadership.group)])
        now = now.promised(floor)
        self.local.file.store(now)
        if self.local.is_in_set:
            with contextlib.suppress(OSError):  # on a full disk this start counts as one with the last one
                self.local.file.store(now.begun(self.local.new_token(), self.node.storage.journal_found))
        self.report("begins")
        self.leadership.decided_by(lambda term: self.wake(), self.accepted_seqs, self.local.owe)
        self.leadership.step_down(floor)

    async def run(self) -> None:
        """Runs until cancelled."""
        async with trio.open_nursery() as self._nursery:
            while True:
                async with self.procedure:
                    pass  # who promotes or hands over decides first
                try:
                    if self.leadership.role is Role.LEADER:
                        await self._look_as_leader()
                    else:
                        await self._look_as_follower()
                except (TailraceError, OSError) as error:  # of the disk: what was to be written down has not happened
                    self.report(f"waits: MEMBERSHIP or the journal cannot be written: {error}")
                    self._warn(self.progress)
                    await self._pause()

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Runs an async function beside, which may outlive who asked for it."""
        if self._nursery is None:
            raise NotLeader("this node has only just started: ask again")
        self._nursery.start_soon(function)

    def wake(self) -> None:
        """Look again soon: something has changed."""
        self._changed.set()

    def _warn(self, text: str) -> None:
        """Logs what may come again and again only when it changes."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)

    async def _pause(self, looks: float = 1.0) -> None:
        """About so many intervals of looking, each time another length; less where something changes."""
        self._changed = trio.Event()
        seconds = self.node.config.replication.poll_s * looks * (0.5 + fraction(self.node.host.randomness))
        with trio.move_on_after(seconds):
            await self._changed.wait()

    async def _look_beside(self, scope: trio.CancelScope) -> None:
        """For status, while a leader is followed: what the others are, which decides nothing meanwhile."""
        seconds = _LOOKS_WHILE_FOLLOWING * self.node.config.replication.poll_s
        with scope:
            while True:
                await trio.sleep(seconds)
                await self.peers.look()

    async def accepted_seqs(self, feed_ids: list[bytes]) -> dict[bytes, list[int]]:
        """How far the leader that this node follows has come in these feeds; it has made sure that it still leads.

        Raises NotLeader where none is followed, and what it answers.
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
        # The first row of the table in situation.py: whom another one hears of changes nothing then. Writes at quorum
        # wait for this node.
        await self.peers.look(self._is_led)
        if self.procedure.locked() or self.leadership.role is Role.LEADER:
            return
        step = self._decide(self.peers.states)
        if step.case != self._last_case:
            self._last_case = step.case
            log.info("%s: %s", step.case, step.why or step.kind.value)
        match step.kind:
            case StepKind.FOLLOW:
                await self._follow(step.address)
                await self._pause()
            case StepKind.FOUND:
                async with self.procedure:
                    await self._found()
            case StepKind.LEAD_AGAIN:
                await self._lead_again()
            case StepKind.WAIT:
                self.report(f"waits: {step.why}")
                await self._pause()

    def _is_led(self, found: Mapping[str, MemberState | None]) -> bool:
        """Somebody leads, whom this node may follow."""
        step = self._decide(found)
        return step.kind is StepKind.FOLLOW

    def _decide(self, seen: Mapping[str, MemberState | None]) -> Step:
        own = self.local.own_state()
        if self.local.is_in_set:
            return decide(own, seen, self.peers.asked)
        return decide_replica(own, seen)

    def _why_not_follow(self, name: str, leader: MemberState) -> str:
        """Returns why this node must not follow the leader at ``name``, and what to do; "" if it may."""
        local, own_id = self.local, self.node.identity.cluster_id
        if leader.cluster_id != own_id:
            if not local.is_new:
                return (
                    f"{name} leads cluster {leader.cluster_id.hex()}, and this directory is of cluster {own_id.hex()}; "
                    "give this node an empty directory"
                )
            states = self.peers.states.values()
            clusters = {state.cluster_id.hex() for state in states if state is not None and state.leads}
            if len(clusters) > 1:
                return (
                    f"this directory is new, and members lead clusters {', '.join(sorted(clusters))}: one of them was "
                    "started on a wrong directory, stop it"
                )
        if local.is_in_set and local.foreign_term > leader.term:
            return (
                f"this node has no vote, and holds a history of term {local.foreign_term}, later than term "
                f"{leader.term}, in which {name} leads: it was restored from a backup, or led by itself. Give it an "
                "empty directory"
            )
        return ""

    async def _follow(self, name: str) -> None:
        """Follows the one that leads, for as long as that goes."""
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
        self.local.file.store(now.followed(term, seen.founders, node.identity.placement_id))
        identity, votes = node.identity, self.local.votes and self.local.is_in_set
        replica = Replica(identity.placement_id, seen.term, name_of(node), votes, identity.cluster_id)
        self.following = self._under_way = following = Following(
            node, self.leadership, self.local.file, parse_address(name), replica
        )
        self.leadership.become_follower(seen.term, name)
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
        except Exception as error:  # a bug, as in ``Connections.handle``: what is held is served on
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                log.exception("the following of %s ended by an internal error", name)
            self.report(f"does not follow {name}: an internal error, which the log has")
        finally:
            beside.cancel()
            if self.following is following:
                self.following = None
                self.leadership.step_down(self.local.file.now.term)
        if isinstance(failure, StreamEnded) and failure.reason is EndReason.BEHIND and not self.local.is_in_set:
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        """A plain replica has seen later terms than the leader that it was told to follow, or one that is behind."""
        async with self.procedure:
            if self.leadership.role is Role.LEADER or self.local.file.now.led:  # an operator has come in between
                return
            try:
                count = await roll_back_newer(self.node, self.leadership, parse_address(name))
            except (TailraceError, OSError) as error:
                self._warn(f"{name} is behind, and what it does not have is not given up: {error}")
                return
        if count:
            self._gave_up = (
                f"; gave up what it held of later terms than {name} has in {count} partitions, which is in lost/"
            )
            self._warn(f"follows {name}{self._gave_up}")

    async def _found(self) -> None:
        """All are new, and this is the first of the list: the set begins."""
        node, file = self.node, self.local.file
        others = [seen.placement_id for seen in self.peers.states.values() if seen is not None]
        founders = (node.identity.placement_id, *others)
        term = file.now.term + 1  # 1, unless a term was promised to somebody who came to nothing
        file.store(file.now.leading(term, forced=False, founders=founders))
        for partition in self.leadership.group:
            begin_branch(partition, node.host.randomness.token(16), node.storage.journal, term)
        await node.storage.all_durable()
        if file.now.term == term:
            self.leadership.become_leader(term)
            self.report("")
            log.warning("a set of %s members is founded, and this node leads it", len(founders))

    async def _lead_again(self) -> None:
        """Leads again, as it did before; a plain replica that was told to lead, by itself."""
        # One that leads goes on leading by this, in a term that those who have promised more can follow it in.
        async with self.procedure:
            try:
                await self._lead_as_before(self)
            except (TailraceError, OSError) as error:
                self.report(f"waits: it cannot lead again: {error}")
                self._warn(f"it cannot lead again: {error}")
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
        later = later_leader(term, self.node.identity.placement_id, answers, frozenset(self.local.file.now.founders))
        if later is not None:
            log.warning("%s, and this node in term %s: it steps down", later.why, term)
            try:
                if later.term > self.local.file.now.term:
                    self.local.file.store(self.local.file.now.promised(later.term))
            finally:
                self.step_down()
            return
        higher = [name for name, seen in answers.items() if seen.term > term and self.local.counts_seen(seen)]
        if not higher or any(seen.promoting for seen in answers.values()):
            self._higher_looks = 0
            return
        self._higher_looks += 1
        if self._higher_looks >= _LOOKS_BEFORE_LEADING_AGAIN:
            self._higher_looks = 0
            log.warning("%s promised a higher term, and nobody leads by it: this node leads anew", ", ".join(higher))
            await self._lead_again()

    def step_down(self) -> None:
        """Ends leading and following, at once; what was under way then changes nothing any more."""
        if self.leadership.role is Role.LEADER:
            self.peers.forget_asked()
            self._looking.cancel()  # it decides nothing any more
        self.following = None
        if self._under_way is not None:
            self._under_way.stop()
        self.leadership.step_down(self.local.file.now.term)
        self.wake()

    async def nothing_under_way(self) -> None:
        """Returns once what was stopped has ended: a segment or a rollback that was being installed is, by then."""
        if self._under_way is not None:
            await self._under_way.ended.wait()
