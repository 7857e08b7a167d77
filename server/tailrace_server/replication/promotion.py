"""Makes a member the leader.

    look        asks who is there, and for the highest term; without a majority nothing is promised at all
    promise     this node promises the next term, then all others: no promising node accepts a lower term any more
    choose      chooses the history of each partition: the highest (term, seq) of the voters who promised
    fetch       fetches the rows that others have more: the list of feeds first, then the feeds
    begin       begins a branch of the new term in every partition, fsynced; none in a handover to the very next term
    lead        stores that it leads, then takes writes

Each step may fail, and then no node leads by it; promises stay. A higher term that this node promises meanwhile also
ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from tailrace.errors import Forbidden, NotLeader, TailraceError
from tailrace.link.address import Address, parse_address
from tailrace.wire.bodies import field, hex_field, seq_field
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.replication.debts import FEEDS
from tailrace_server.replication.election import MemberState, majority_of, why_not_again
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.lineage import line_from_json, line_to_json
from tailrace_server.replication.peers import ask, ask_all, never_enough, standings_of
from tailrace_server.replication.promises import Promised, keep_promise, why_refused
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.replication.role import Role
from tailrace_server.replication.standings import Best, PartitionId, Standings, choose, readable
from tailrace_server.replication.term_branches import TermBranches
from tailrace_server.replication.unreadable import listed, told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")


class PromotionResult(NamedTuple):
    """A promotion that has succeeded: the term, its steps, and the rows that may be lost ("" for none)."""

    term: int
    steps: list[str]
    may_be_lost: str


class Promotion:
    """One try to lead. ``run`` may be called once, with the member's ``procedure`` lock held."""

    def __init__(self, member: Member, *, force: bool = False, leader: str = "", again: bool = False) -> None:
        """``force``: leads without a majority too. ``leader``: hands over, and has to promise before all others.

        ``again``: no operator has asked for it; the last leader of a set leads again.
        """
        self._member = member
        self._node = member.node
        self._leadership = member.leadership
        self._force = force
        self._leader = leader
        self._leader_term = member.local.file.now.leader_term
        self._last_led = self._leader_term if again else None
        self._steps: list[str] = []
        self._term = 0
        self._promised: dict[str, Promised] = {}
        self._silent: dict[str, str] = {}  # why a member has not promised, by address
        self._later = ""  # the refusal of a member that knows of a later leader
        self._unpaid: list[str] = []  # debts that no promising member can pay
        self._unreadable = ""  # the partitions that this node cannot read
        self._cannot_read: dict[tuple[str, PartitionId], str] = {}  # why a copy could not be read by its member
        self._lost: dict[PartitionId, str] = {}  # the rows that only such copies have
        self._checked: Collection[PartitionId] = ()  # the partitions that have the highest standing

    async def run(self) -> PromotionResult:
        """Makes this node the leader. Raises TailraceError that says why it failed; promises that were made stay."""
        self._member.local.begin_promotion()
        try:
            self._term = await self._look()
            await keep_promise(self._member, self._term)
            self._say(f"promised itself term {self._term}")
            await self._gather()
            kept_branch = await self._fetch_all()
            return await self._lead(kept_branch)
        finally:
            self._member.local.end_promotion()

    def _say(self, step: str) -> None:
        log.warning("promotion: %s", step)
        self._steps.append(step)
        self._member.report(f"promotion: {step}")

    # Look

    async def _look(self) -> int:
        """Returns the term to ask for. Raises NotLeader if there is no majority, and the operator does not force it."""
        member = self._member
        await member.peers.look(self._has_found_enough if self._leader else None)
        answers = {address: seen for address, seen in member.peers.states.items() if seen is not None}
        self._silent = {
            name: member.peers.misfits.get(name, "no answer") for name in member.peers.states.keys() - answers.keys()
        }
        self._require_last(answers)
        self._require_readable()
        voters = [seen for seen in answers.values() if member.local.counts_seen(seen)]
        self._require_voters(map(member.local.counts_seen, answers.values()))
        self._join(seen for seen in answers.values() if not seen.is_new)
        self._require_known(voters)
        terms = [seen.term for seen in voters] + [member.local.file.now.term, self._leadership.term]
        return max(terms + [p.log.term for p in self._leadership.group]) + 1

    def _has_found_enough(self, found: Mapping[str, MemberState | None]) -> bool:
        """In a handover: returns whether the leader has answered, and the voters that answered are a majority."""
        member = self._member
        votes = sum(member.local.counts_seen(seen) for seen in found.values() if seen is not None)
        return found.get(self._leader) is not None and votes + member.local.votes >= majority_of(
            len(member.local.others) + 1
        )

    def _require_last(self, answers: Mapping[str, MemberState]) -> None:
        """Raises NotLeader if this node leads again by itself, and another one came to lead after it."""
        why = "" if self._last_led is None else why_not_again(self._last_led, answers)
        if why:
            raise NotLeader(f"it does not lead again by itself: {why}")

    def _require_known(self, voters: Sequence[MemberState]) -> None:
        """Raises NotLeader if this node has no vote, and a history that none of the voters, a majority, knows of."""
        own, known = self._member.local.foreign_term, max((seen.term for seen in voters), default=0)
        if own > known and len(voters) >= majority_of(len(self._member.local.others) + 1):
            raise NotLeader(
                f"refused: this node has no vote, and holds a history of term {own}, later than term {known}, the last "
                "that the voters know of: it was restored from a backup, or led by itself. Promote a member that has a "
                "vote, and give this node an empty directory"
            )

    def _require_readable(self) -> None:
        """Raises NotLeader if this node is known to be unable to read a partition, unless forced.

        The last leader leads again all the same: the other partitions must not lack a leader for that.
        """
        self._unreadable = told(unreadable_of(self._node, self._leadership.group))
        if not self._unreadable:
            return
        if not self._force and self._last_led is None:
            raise NotLeader(
                f"refused: {self._unreadable}: promote a member whose copy is good, or mend this one with `tailrace "
                "repair`. --force leads all the same, without what cannot be read"
            )
        self._say(self._unreadable)

    def _join(self, others: Iterable[MemberState]) -> None:
        """Joins the cluster of the members that are not new, if this node is new.

        Raises NotLeader without such members: there is nothing to lead.
        """
        if not self._member.local.is_new:
            return
        clusters = {seen.cluster_id for seen in others}
        if len(clusters) != 1:
            raise NotLeader(
                "this node is new and holds nothing, and no member that holds anything has answered. A set is "
                "founded by itself, once all its members are there and new"
            )
        self._node.join(clusters.pop())

    def _require_voters(self, votes: Iterable[bool]) -> None:
        member = self._member
        if self._force:
            return
        if not member.local.is_in_set:
            raise NotLeader(
                "a plain replica has no set whose majority could say that nothing is lost; with --force it leads. "
                f"{self._may_be_lost()}"
            )
        needed, found = majority_of(len(member.local.others) + 1), sum(votes) + member.local.votes
        if found < needed:
            own = "" if member.local.votes else "; this node has no vote: its disk is new, and it has not caught up"
            silent = ", ".join(f"{address} ({why})" for address, why in sorted(self._silent.items()))
            raise NotLeader(
                f"refused: {found} of the {needed} voters that it takes were found{own}. Without: {silent or 'none'}."
                f" --force leads all the same. {self._may_be_lost()}"
            )

    def _may_be_lost(self) -> str:
        member = self._member
        without = ", ".join(sorted(self._silent)) or "none"
        if not member.local.is_in_set:
            return f"What may be lost: all that {member.local.source} has acknowledged and this node does not have"
        gaps = [*self._lost.values(), *self._unpaid]
        if self._has_majority() and gaps:
            return f"What may be lost: writes of every level, quorum among them: {listed(gaps, '; ')}"
        if self._has_majority():
            text = f"nothing at level quorum; at levels disk and memory what only {without} had"
            return text if self._silent else ""
        text = f"What may be lost: writes of every level, quorum among them, that only {without} had"
        return "; ".join([text, listed(gaps, "; ")]) if gaps else text

    def _has_majority(self) -> bool:
        member = self._member
        found = sum(promised.votes for promised in self._promised.values()) + member.local.votes
        return member.local.is_in_set and found >= majority_of(len(member.local.others) + 1)

    # Promise

    async def _gather(self) -> None:
        """Asks all others for the term. Raises NotLeader if too few promise.

        A member that did not answer the look is asked too, since a leader that hears of the term takes no more writes.
        It has had its time, so it is waited for only if the others are no majority. A handover waits for no member for
        long once its leader has promised, in a majority: the leader has all rows, and the others learn of the term from
        the new leader.
        """
        config = self._node.config.replication
        # A member has to end its tasks, and to write all its rows, before it promises.
        timeout_s = 2 * config.step_timeout_s
        others = {str(address): address for address in self._member.local.others}
        silent = {name: others.pop(name) for name in list(others) if name in self._silent}
        self._silent = {name: self._silent[name] for name in silent} | dict.fromkeys(others, "no answer")
        if self._leader:
            if self._leader in silent:
                raise NotLeader(f"{self._leader} does not answer, and has not given the leadership away")
            await self._ask(self._leader, others.pop(self._leader), timeout_s)
            if self._leader not in self._promised:
                raise NotLeader(f"{self._leader} has not given the leadership away: {self._silent[self._leader]}")
        async with trio.open_nursery() as late:
            for name, address in silent.items():
                late.start_soon(self._ask, name, address, config.step_timeout_s)
            questions = [partial(self._ask, name, address, timeout_s) for name, address in others.items()]
            await ask_all(questions, self._has_majority if self._leader else never_enough)
            if self._has_majority():
                late.cancel_scope.cancel()
        if self._later:
            raise NotLeader(f"it does not lead again by itself: {self._later}")
        self._require_voters(promised.votes for promised in self._promised.values())
        self._require_term()
        said = ", ".join(sorted(self._promised)) or "no other member"
        self._say(f"{said} promised it too" + "".join(f"; {a} did not ({why})" for a, why in self._silent.items()))

    async def _ask(self, name: str, address: Address, timeout_s: float) -> None:
        node = self._node
        value = {
            "term": self._term,
            "address": self._member.local.name,
            "placement_id": node.identity.placement_id.hex(),
            "cluster_id": node.identity.cluster_id.hex(),
            "handover": bool(self._leader),
            "last_led": self._last_led,
            "members": self._member.local.members,
            "line": line_to_json(self._member.local.line),
        }
        try:
            if not self._member.local.is_in_set:
                raise TailraceError("it is no member of a set, and promises nothing")
            answer = await ask(node, address, Opcode.PROMISE, value, timeout_s)
            what = "the answer to PROMISE"
            self._require_cluster(name, answer, what)
            placement_id = hex_field(answer, "placement_id", 16, what)
            why = self._member.peers.why_no_disk(name, placement_id, line_from_json(answer, what))
            if why:
                raise Forbidden(why)
            if not field(answer, "promised", bool, what):
                if self._last_led is not None and "later" in answer:
                    self._later = f"{name} knows of the leader of term {seq_field(answer, 'later', what)}"
                self._silent[name] = f"it has promised term {seq_field(answer, 'term', what)}"
                return
            self._silent.pop(name, None)
            promised = Promised.from_json(answer, what)
            votes = self._member.local.counts(promised.votes, placement_id)
            self._promised[name] = self._counting(promised._replace(votes=votes))
        except (TailraceError, OSError) as error:
            self._silent[name] = why_refused(error)

    def _counting(self, promised: Promised) -> Promised:
        """Returns the part of a promise that counts: it tells of other groups' partitions as empty.

        A member without a vote may hold a history of its own, and no node relies on its acknowledgements: neither
        counts.
        """
        if not promised.votes:
            return Promised(False, {})
        includes = self._leadership.group.includes
        standings = {id: standing for id, standing in promised.standings.items() if includes(*id)}
        return promised._replace(standings=standings)

    def _require_cluster(self, name: str, answer: dict[str, Any], what: str) -> None:
        """Raises Forbidden if another cluster's node has answered."""
        told = hex_field(answer, "cluster_id", 16, what)
        why = why_other_cluster(self._node.identity.cluster_id, name, told)
        is_new = field(answer, "is_new", bool, what)
        if why and not (is_new and self._leadership.group.lists_feeds):
            raise Forbidden(why)

    def _require_term(self) -> None:
        now = self._member.local.file.now.term
        if now != self._term:
            raise NotLeader(f"term {now} was promised to another node meanwhile")

    # Fetch

    async def _fetch_all(self) -> bool:
        """Brings this node to the highest standing of each partition.

        Returns whether the leader's branches may go on.
        """
        node, group = self._node, self._leadership.group
        if group.lists_feeds:
            await self._bring([FEEDS])
            node.feed_changes.reconcile()
        else:
            await self._hear_of_feeds()
        partition_ids = [PartitionId(p.feed_id, p.id) for p in group]
        await self._bring([partition_id for partition_id in partition_ids if partition_id != FEEDS])
        for partition in list(group):
            await node.storage.installer.settle(partition)
        await node.storage.all_durable()
        self._require_term()
        own = standings_of(group)
        for partition_id, best in choose(own, self._others, own.keys() - self._closed()).items():
            if best.address:
                raise NotLeader(
                    f"{partition_id} stands at {tuple(own[partition_id])}, and "
                    f"{best.address} has {tuple(best.standing)}: it was not fetched"
                )
        self._checked = own.keys()
        return self._keeps_branch(own)

    async def _hear_of_feeds(self) -> None:
        """Returns once this node has all feeds of which a promising member has rows at quorum.

        Raises NotLeader, unless forced, if this node lacks such a feed and the leader of ``_feeds`` does not say that
        the feed was dropped. To lead without it would lose its rows.
        """
        feeds = self._node.feeds
        found = {id: standing for standings in self._others.values() for id, standing in standings.items()}
        unknown = [id for id, standing in found.items() if standing.seq and id.feed_id not in feeds]
        if not unknown:
            return
        try:
            await self._node.feed_changes.confirm_known()
        except (TailraceError, OSError) as error:
            self._lost |= {
                id: f"{id}: another member has rows, and this node has not heard of the feed ({error})"
                for id in unknown
                if id.feed_id not in feeds
            }
            if self._lost and not self._force:
                raise NotLeader(f"refused: {next(iter(self._lost.values()))}. Try again later") from error

    @property
    def _others(self) -> Mapping[str, Standings]:
        """The copies that the others can read, as far as this node knows."""
        return readable({name: promised.standings for name, promised in self._promised.items()}, self._cannot_read)

    def _closed(self) -> set[PartitionId]:
        """Returns the partitions that take no rows here, since a segment could not be opened at the start."""
        return {PartitionId(p.feed_id, p.id) for p in self._leadership.group if p.damage is not None}

    async def _bring(self, partition_ids: Iterable[PartitionId]) -> None:
        """Brings this node to the highest standing of ``partition_ids`` that can be read.

        Only a fetch shows whether a copy can be read. If it cannot, the next best one is chosen.
        """
        partition_ids = list(partition_ids)
        while True:
            chosen = choose(standings_of(self._leadership.group), self._others, partition_ids)
            self._require_told(chosen, {name: promised.standings for name, promised in self._promised.items()})
            self._require_read(chosen)
            self._require_paid(chosen)
            for partition_id in self._closed() & chosen.keys():
                del chosen[partition_id]
            if await self._fetch(chosen):
                return

    def _require_read(self, chosen: Mapping[PartitionId, Best]) -> None:
        """Raises NotLeader if no readable copy has as much as an unreadable one, unless forced."""
        closed = self._closed()
        for (address, partition_id), why in self._cannot_read.items():
            if (
                partition_id not in chosen
                or self._promised[address].standings[partition_id] <= chosen[partition_id].standing
            ):
                continue
            held = self._promised[address].standings[partition_id]
            self._lost[partition_id] = (
                f"{self._named(partition_id)}: {address} has it up to seq {held.seq}, and "
                f"cannot read it ({why}); it goes on from seq {chosen[partition_id].standing.seq}"
            )
        for partition_id in closed & chosen.keys():
            best = chosen[partition_id]
            if best.address:
                self._lost[partition_id] = (
                    f"{self._named(partition_id)}: {best.address} has it up to seq {best.standing.seq}, and this node, "
                    "which cannot read its own copy, cannot fetch that; promote a member whose copy is good"
                )
        if self._lost and not self._force:
            raise NotLeader(
                f"refused: {next(iter(self._lost.values()))}. Mend that copy with `tailrace repair`; --force leads all "
                "the same"
            )

    def _named(self, partition_id: PartitionId) -> str:
        feed = self._node.feeds.of_id(partition_id.feed_id)
        return f"partition {partition_id.partition} of feed {feed.info.name}"

    def _keeps_branch(self, own: Standings) -> bool:
        """Returns whether the leader's branches may go on: in a handover, if this node has all rows of the leader.

        In a term between the leader's and this one another member may have begun a branch that no other one has heard
        of. That branch would be preferred to one of the leader's term at a later promotion.
        """
        if not self._leader or self._term != self._leader_term + 1:
            return False
        return own == self._promised[self._leader].standings

    def _require_told(self, chosen: Mapping[PartitionId, Best], others: Mapping[str, Standings]) -> None:
        """Raises NotLeader if this node has no vote, and holds more than the majority that has promised."""
        if self._member.local.votes or not self._has_majority():
            return
        told = choose({}, others, chosen)
        for partition_id, best in chosen.items():
            if best.standing > told[partition_id].standing:
                held = tuple(told[partition_id].standing)
                raise NotLeader(
                    f"refused: this node has no vote, and holds {tuple(best.standing)} (term, seq) of "
                    f"{partition_id}, the voters {held}: promote a "
                    "member that has a vote"
                )

    def _require_paid(self, chosen: Mapping[PartitionId, Best]) -> None:
        """Raises NotLeader if a promising member owes rows that none of them has, unless forced."""
        owed = {"this node": self._member.local.file.now.owes} | {name: p.owes for name, p in self._promised.items()}
        for name, debts in owed.items():
            for partition_id, standing in debts:
                if partition_id in chosen and chosen[partition_id].standing < standing:
                    unpaid = (
                        f"{name} had acknowledged {partition_id} up to seq {standing.seq}, and no node here has that: "
                        f"{name} has to get it again from one that does"
                    )
                    if unpaid not in self._unpaid:  # each choice asks again
                        self._unpaid.append(unpaid)
        if self._unpaid and not self._force:
            silent = ", ".join(sorted(self._silent)) or "none"
            raise NotLeader(f"refused: {self._unpaid[0]}. Without: {silent}. --force leads all the same")

    async def _fetch(self, chosen: dict[PartitionId, Best]) -> bool:
        """Fetches the rows that others have more. Returns False if ``_cannot_read`` has a copy more than before."""
        has_all = True
        until: dict[tuple[str, bytes], dict[int, int]] = {}
        for partition_id, best in chosen.items():
            if best.address:
                until.setdefault((best.address, partition_id.feed_id), {})[partition_id.partition] = best.standing.seq
        for (address, feed_id), seqs in until.items():
            feed = self._node.feeds.of_id(feed_id)
            self._say(f"fetches {len(seqs)} partitions of feed {feed.info.name} from {address}")
            puller = ReplicaPuller(
                self._node,
                self._leadership,
                feed,
                parse_address(address),
                self._replica(),
                state="follower",
                until=seqs,
            )
            self._member.pulls(puller)
            await puller.run()
            self._require_term()
            await self._node.storage.all_durable()
            for number, failed in puller.failed.items():
                has_all = False
                self._cannot_read[address, PartitionId(feed_id, number)] = failed.message
                self._say(f"{address} cannot read partition {number} of feed {feed.info.name}: {failed.message}")
        return has_all

    def _replica(self) -> Replica:
        identity = self._node.identity
        return Replica(
            identity.placement_id, self._term, self._member.local.name, self._member.local.votes, identity.cluster_id
        )

    # Lead

    async def _lead(self, kept_branch: bool) -> PromotionResult:
        node, member, group = self._node, self._member, self._leadership.group
        kept = (p for p in group if PartitionId(p.feed_id, p.id) in self._checked)
        branches = TermBranches(node, group, self._term, kept if kept_branch else ())
        if not kept_branch:
            branches.begin()
            await node.storage.all_durable()
        self._require_term()
        branches.begin()
        forced = not self._has_majority() or bool(self._unpaid)
        leading = member.local.file.now.leading(self._term, forced=forced)
        member.local.file.store(leading.caught_up(member.local.new_token()))
        self._leadership.become_leader(self._term)
        self._say(f"leads in term {self._term}" + (", on the same branches" if kept_branch else ""))
        member.report("")
        lost = "; ".join(filter(None, [self._may_be_lost(), self._unreadable]))
        return PromotionResult(self._term, self._steps, lost)


async def promote(member: Member, *, force: bool) -> PromotionResult:
    """Makes this node lead, as an operator has asked for. Raises TailraceError that says why it does not."""
    async with member.procedure:
        leadership = member.leadership
        if leadership.role is Role.LEADER:
            return PromotionResult(leadership.term, ["this node leads already"], "")
        try:
            return await Promotion(member, force=force).run()
        finally:
            member.wake()


async def lead_again(member: Member) -> PromotionResult:
    """Makes this node lead as it did before, with ``procedure`` held. Raises TailraceError, OSError."""
    return await Promotion(member, force=not member.local.is_in_set, again=member.local.is_in_set).run()
