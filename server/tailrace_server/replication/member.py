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
from tailrace.link.address import Address, parse_address
from tailrace.model import EndReason
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.host.randomness import fraction
from tailrace_server.partition.branching import begin_branch
from tailrace_server.replication.debts import Debt, unpaid, with_debt
from tailrace_server.replication.election import (
    MemberState,
    OwnState,
    Step,
    StepKind,
    counts,
    decide,
    decide_replica,
    later_leader,
)
from tailrace_server.replication.eligibility import why_copy, why_other_cluster, why_other_list
from tailrace_server.replication.following import Following, VoteGained
from tailrace_server.replication.lineage import TOKEN_BYTES, Lineage, MemberStart, learned, why_older
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.peers import (
    ask,
    ask_all,
    held_of,
    look_at,
    name_of,
    never_enough,
    seqs_from_json,
    standings_of,
)
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.replica_rollback import roll_back_newer
from tailrace_server.replication.role import Role
from tailrace_server.replication.standings import PartitionId, Standing
from tailrace_server.replication.unreadable import unreadable_of

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
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
        config = node.config
        self.node = node
        self.leadership = leadership
        members = leadership.members
        self.is_in_set = leadership.in_set
        own = Address(*config.listen)
        self._number = members.index(own) if self.is_in_set else -1  # in the list of members
        identity = node.identity
        self.file = MembershipFile(node.host.disk, config.data, identity.placement_id, len(members), self._number)
        self.others = [a for a in members if a != own] if self.is_in_set else [_source(config.replica_of)]
        self.procedure = trio.Lock()
        self.following: Following | None = None
        self.under_way: Following | ReplicaPuller | None = None  # what takes, or took last, from another node
        self.promoting = False
        self.turns = 0  # requests that are to change who leads, and have not ended
        self.seen: dict[str, MemberState | None] = {str(address): None for address in self.others}
        self.asked: set[str] = set()
        self._disks: dict[str, bytes] = {}  # the placement id that each other member has told last, if that counts
        self.misfits: dict[str, str] = {}  # whose last answer counts for nothing, by address: the sentence why
        self._doing = ""
        self._looking = trio.CancelScope()  # of the look of a node that leads
        self._higher_looks = 0
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._last_case = self._last_warning = self._gave_up = ""

    # What it is

    @property
    def votes(self) -> bool:
        """Whether this node's promises and acknowledgements count."""
        return self.file.now.counts

    @property
    def line(self) -> Lineage:
        """What this node tells of the starts of its directory."""
        now = self.file.now
        start = now.start._replace(end=self.node.storage.journal.synced_end)
        return Lineage(start, now.before, now.older is not None)

    def new_token(self) -> bytes:
        """Returns the token of another start."""
        return self.node.host.randomness.token(TOKEN_BYTES)

    @property
    def progress(self) -> str:
        """For people: what it does, or waits for, and whose answers count for nothing."""
        return "; ".join(filter(None, [self._doing, *self.misfits.values()]))

    @progress.setter
    def progress(self, text: str) -> None:
        self._doing = text

    @property
    def members(self) -> tuple[str, ...]:
        """The list that this node was started with; empty where it is a plain replica."""
        return tuple(map(str, self.leadership.members))

    @property
    def source(self) -> str:
        """The node that a plain replica is one of."""
        return str(self.others[0])

    @property
    def is_new(self) -> bool:
        """The directory has never belonged to a set, and there is nothing in it."""
        feeds = self.node.feeds
        return not self.file.now.founded and not len(feeds) and not feeds.system.partitions[0].high_seq

    def counts(self, votes: bool, placement_id: bytes) -> bool:
        """Whether the promise of such a member counts for a majority."""
        return counts(MemberState(placement_id, votes=votes), frozenset(self.file.now.founders))

    def counts_seen(self, seen: MemberState) -> bool:
        """Whether what this other member says of itself counts: one without a vote moves nothing."""
        return self.counts(seen.votes, seen.placement_id)

    @property
    def foreign_term(self) -> int:
        """The newest term of what a member without a vote holds, 0 of one with a vote, or if nothing is held.

        Such a node may have led by itself, or be restored from a backup: no voter need know of that term.
        """
        held = (partition.log.term for partition in self.leadership.group if partition.high_seq)
        return 0 if self.votes else max(held, default=0)

    def own(self) -> MemberState:
        """What this node answers to MEMBER."""
        node, leadership, now = self.node, self.leadership, self.file.now
        leads = leadership.role is Role.LEADER
        return MemberState(
            node.identity.placement_id,
            node.identity.cluster_id,
            self.is_new,
            now.counts,
            leads,
            leadership.term if leads else now.term,
            now.leader_term,
            now.led,
            self.promoting,
            name_of(node) if leads else leadership.leader,
            now.founders,
            *held_of(leadership.group),
            self.members,
            len(unreadable_of(node, leadership.group)),
            self.line if self.is_in_set and not self.is_new else None,  # copies of a new directory are alike
            {placement_id: MemberStart(*start) for placement_id, start in node.storage.held.others.items()},
        )

    # Running

    def begin(self) -> None:
        """Before the node serves: it follows until it knows better.

        What the logs of partitions say was promised, whoever wrote that: no term is ever used again.
        """
        now = self.file.now
        floor = max([now.term, *(partition.log.term for partition in self.leadership.group)])
        now = now.promised(floor)
        self.file.store(now)
        if self.is_in_set:
            with contextlib.suppress(OSError):  # on a full disk this start counts as one with the last one
                self.file.store(now.begun(self.new_token(), self.node.storage.journal_found))
        self.progress = "begins"
        self.leadership.decided_by(lambda term: self.wake(), self.accepted_seqs, self.owe)
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
                    self.progress = f"waits: MEMBERSHIP or the journal cannot be written: {error}"
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

    async def look(self, is_enough: Callable[[Mapping[str, MemberState | None]], bool] | None = None) -> None:
        """Asks all others what they are: ``seen`` and ``asked``.

        Once ``is_enough`` of what was found, the rest is not waited for much longer: it is taken for unreachable.
        """
        asked = self.asked
        found: dict[str, MemberState | None] = {}
        addresses = [*self.others, *self._hints()]
        questions = [partial(self._look_at, address, found) for address in addresses]
        await ask_all(questions, never_enough if is_enough is None else partial(is_enough, found))
        # All at once: who has looked decides by its own look, whoever else looks meanwhile.
        self.seen = {str(address): found.get(str(address)) for address in addresses}
        asked.update(found)

    def _hints(self) -> list[Address]:
        """The leader that a plain replica's source has named."""
        seen = self.seen.get(str(self.others[0]))
        if self.is_in_set or seen is None or seen.leads or not seen.leader:
            return []
        try:
            hint = parse_address(seen.leader)
        except ValueError:
            return []
        return [] if hint in self.others or str(hint) == name_of(self.node) else [hint]

    async def _look_at(self, address: Address, found: dict[str, MemberState | None]) -> None:
        name = str(address)
        try:
            seen = await look_at(self.node, address, self.node.config.replication.ask_timeout_s)
        except (TailraceError, OSError) as error:
            log.debug("%s does not answer: %s", name, error)
            found[name] = None
            return
        found[name] = None if self._is_misfit(name, seen) else seen

    def _is_misfit(self, name: str, seen: MemberState) -> bool:
        """Whether its answer counts for nothing, to decide anything; status and log say so."""
        why = self.why_misfit(name, seen)
        if why != self.misfits.get(name, ""):
            if why:
                log.warning("%s: its answers count for nothing", why)
                self.misfits[name] = why
            else:
                del self.misfits[name]
        if not why:
            self.knows_disk(name, seen.placement_id)
            if seen.line is not None:
                self._learn(seen.placement_id, seen.line.now)
            for placement_id, start in seen.known.items():
                self._learn(placement_id, start)
        return bool(why)

    def _learn(self, placement_id: bytes, start: MemberStart) -> None:
        """``start`` is one that a directory has had, which may be this one."""
        if not self.is_in_set:
            return
        if placement_id != self.node.identity.placement_id:
            self.node.storage.held.remember(placement_id, learned(self._known(placement_id), start))
            return
        now = self.file.now
        if self.is_new:
            return
        if now.older is None and why_older("", start, self.line):
            older = now.found_older(start)
        elif now.older is not None and start > now.older:
            older = now._replace(older=start)
        else:
            return
        leads = self.leadership.role is Role.LEADER
        if leads:  # what it holds is what the set has, by definition
            older = older.caught_up(self.new_token())._replace(led=now.led)
        try:
            self.file.store(older)
        except OSError as error:  # the next look tells it again, and the others know by themselves
            self._warn(f"MEMBERSHIP cannot be written: {error}")
            return
        if leads:
            return
        log.error("%s", why_older(name_of(self.node), None, self.line))
        self.step_down()  # it follows anew, without a vote

    def why_misfit(self, name: str, seen: MemberState) -> str:
        """Returns why nothing that the node ``name`` says counts in this set, in a sentence; "" if it does.

        A new directory is of no cluster yet: it may found a set with others, or join one.
        """
        if not self.is_in_set:
            return ""
        is_new = seen.is_new or self.is_new
        other = "" if is_new else why_other_cluster(self.node.identity.cluster_id, name, seen.cluster_id)
        disk = self.why_no_disk(name, seen.placement_id, seen.line)
        return why_other_list(self.members, name, seen.members) or other or disk

    def why_no_disk(self, name: str, placement_id: bytes, line: Lineage | None) -> str:
        """Returns why nothing counts that a member on this disk says, in a sentence; "" if it counts.

        It is another member's, a copy of one, or an older copy of its own.
        """
        copy = self.why_copy(name, placement_id)
        return copy or (why_older(name, self._known(placement_id), line) if self.is_in_set else "")

    def _known(self, placement_id: bytes) -> MemberStart | None:
        """The last start that this node was told of a directory."""
        start = self.node.storage.held.others.get(placement_id)
        return None if start is None else MemberStart(*start)

    def why_copy(self, name: str, placement_id: bytes) -> str:
        """Returns why nothing counts that a member with this placement id says, if another one has it; else ""."""
        if not self.is_in_set:
            return ""
        return why_copy(self.node.identity.placement_id, name, placement_id, self._disks)

    def knows_disk(self, name: str, placement_id: bytes) -> None:
        """The member ``name`` is on the disk ``placement_id``, which ``why_copy`` has nothing against."""
        self._disks[name] = placement_id

    async def _look_beside(self, scope: trio.CancelScope) -> None:
        """For status, while a leader is followed: what the others are, which decides nothing meanwhile."""
        seconds = _LOOKS_WHILE_FOLLOWING * self.node.config.replication.poll_s
        with scope:
            while True:
                await trio.sleep(seconds)
                await self.look()

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
        await self.look(self._is_led)
        if self.procedure.locked() or self.leadership.role is Role.LEADER:
            return
        step = self._decide(self.seen)
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
                self.progress = f"waits: {step.why}"
                await self._pause()

    def _is_led(self, found: Mapping[str, MemberState | None]) -> bool:
        """Somebody leads, whom this node may follow."""
        step = self._decide(found)
        return step.kind is StepKind.FOLLOW

    def _decide(self, seen: Mapping[str, MemberState | None]) -> Step:
        now, number = self.file.now, max(self._number, 0)
        placement_id = self.node.identity.placement_id
        founders = frozenset(now.founders)
        own = OwnState(number, self.is_new, now.counts, now.term, now.leader_term, now.led, founders, placement_id)
        if self.is_in_set:
            return decide(own, seen, self.asked)
        return decide_replica(own, seen)

    async def _follow(self, name: str) -> None:
        """Follows the one that leads, for as long as that goes."""
        node, seen = self.node, self.seen[name]
        assert seen is not None
        if seen.cluster_id != node.identity.cluster_id:
            if not self.is_new:
                self.progress = (
                    f"waits: {name} leads cluster {seen.cluster_id.hex()}, and this directory is of cluster "
                    f"{node.identity.cluster_id.hex()}; give this node an empty directory"
                )
                self._warn(self.progress)
                return
            clusters = {other.cluster_id.hex() for other in self.seen.values() if other is not None and other.leads}
            if len(clusters) > 1:
                self.progress = (
                    f"waits: this directory is new, and members lead clusters {', '.join(sorted(clusters))}: one of "
                    "them was started on a wrong directory, stop it"
                )
                self._warn(self.progress)
                return
            self.node.join(seen.cluster_id)
        if self.is_in_set and self.foreign_term > seen.term:
            self.progress = (
                f"waits: this node has no vote, and holds a history of term {self.foreign_term}, later than term "
                f"{seen.term}, in which {name} leads: it was restored from a backup, or led by itself. Give it an "
                "empty directory"
            )
            self._warn(self.progress)
            return
        now = self.file.now
        term = max(seen.term, now.term) if not self.is_in_set else seen.term
        self.file.store(now.followed(term, seen.founders, node.identity.placement_id))
        identity, votes = node.identity, self.votes and self.is_in_set
        replica = Replica(identity.placement_id, seen.term, name_of(node), votes, identity.cluster_id)
        self.following = self.under_way = following = Following(
            node, self.leadership, self.file, parse_address(name), replica
        )
        self.leadership.become_follower(seen.term, name)
        self.progress = f"follows {name}{self._gave_up}"
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
            self.progress = f"does not follow {name}: {error}"
        except Exception as error:  # a bug, as in ``Connections.handle``: what is held is served on
            if str(error) != self._last_warning:
                self._last_warning = str(error)
                log.exception("the following of %s ended by an internal error", name)
            self.progress = f"does not follow {name}: an internal error, which the log has"
        finally:
            beside.cancel()
            if self.following is following:
                self.following = None
                self.leadership.step_down(self.file.now.term)
        if isinstance(failure, StreamEnded) and failure.reason is EndReason.BEHIND and not self.is_in_set:
            await self._give_up(name)

    async def _give_up(self, name: str) -> None:
        """A plain replica has seen later terms than the leader that it was told to follow, or one that is behind."""
        async with self.procedure:
            if self.leadership.role is Role.LEADER or self.file.now.led:  # an operator has come in between
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
        node, file = self.node, self.file
        others = [seen.placement_id for seen in self.seen.values() if seen is not None]
        founders = (node.identity.placement_id, *others)
        term = file.now.term + 1  # 1, unless a term was promised to somebody who came to nothing
        file.store(file.now.leading(term, forced=False, founders=founders))
        for partition in self.leadership.group:
            begin_branch(partition, node.host.randomness.token(16), node.storage.journal, term)
        await node.storage.all_durable()
        if file.now.term == term:
            self.leadership.become_leader(term)
            self.progress = ""
            log.warning("a set of %s members is founded, and this node leads it", len(founders))

    async def _lead_again(self) -> None:
        """Leads again, as it did before; a plain replica that was told to lead, by itself."""
        # One that leads goes on leading by this, in a term that those who have promised more can follow it in.
        async with self.procedure:
            try:
                await self._lead_as_before(self)
            except (TailraceError, OSError) as error:
                self.progress = f"waits: it cannot lead again: {error}"
                self._warn(f"it cannot lead again: {error}")
        if self.leadership.role is not Role.LEADER:
            self.leadership.step_down(self.file.now.term)
            await self._pause(1 + _LOOKS_AFTER_FAILURE * fraction(self.node.host.randomness))

    # What it owes

    def owe(self, partition: Partition, term: int, seq: int) -> None:
        """``partition`` is about to go back below (``term``, ``seq``), which may have been acknowledged. OSError."""
        if not self.is_in_set or not self.file.now.votes:
            return
        debt = Debt(PartitionId(partition.feed_id, partition.id), Standing(term, seq))
        self.file.store(self.file.now.owing(with_debt(self.file.now.owes, debt)))
        log.warning(
            "partition %s of feed %s goes back below seq %s, which this node may have acknowledged: by its promise "
            "nobody is promoted who has less",
            *(partition.id, partition.feed_id.hex(), seq),
        )

    def settle_debts(self) -> None:
        """What is there again, durably, is owed no more. OSError."""
        if self.file.now.owes:
            held = standings_of(self.leadership.group)
            self.file.store(self.file.now.owing(unpaid(self.file.now.owes, held)))

    # With it

    async def _look_as_leader(self) -> None:
        if not self.is_in_set:
            self._changed = trio.Event()
            await self._changed.wait()
            return
        await self._pause(2)
        if self.procedure.locked() or self.leadership.role is not Role.LEADER:
            return
        with trio.CancelScope() as self._looking:
            await self.look()
        if self.procedure.locked() or self.leadership.role is not Role.LEADER:
            return
        term = self.leadership.term
        answers = {name: seen for name, seen in self.seen.items() if seen is not None}
        later = later_leader(term, self.node.identity.placement_id, answers, frozenset(self.file.now.founders))
        if later is not None:
            log.warning("%s, and this node in term %s: it steps down", later.why, term)
            try:
                if later.term > self.file.now.term:
                    self.file.store(self.file.now.promised(later.term))
            finally:
                self.step_down()
            return
        higher = [name for name, seen in answers.items() if seen.term > term and self.counts_seen(seen)]
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
            self.asked = set()
            self._looking.cancel()  # it decides nothing any more
        self.following = None
        if self.under_way is not None:
            self.under_way.stop()
        self.leadership.step_down(self.file.now.term)
        self.wake()

    async def nothing_under_way(self) -> None:
        """Returns once what was stopped has ended: a segment or a rollback that was being installed is, by then."""
        if self.under_way is not None:
            await self.under_way.ended.wait()


def _source(address: Address | None) -> Address:
    assert address is not None, "a node without a set and without a source is alone"
    return address
