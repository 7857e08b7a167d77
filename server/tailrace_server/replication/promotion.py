"""Makes a member the leader.

    look        asks who is there, and for the highest term; without a majority nothing is promised at all
    promise     this node promises the next term, then all others (gathered_promises.py): no promising node accepts a
                lower term any more
    choose      chooses the history of each partition: the highest (term, seq) of the voters who promised
    fetch       fetches the rows that others have more (missing_rows.py): the list of feeds first, then the feeds
    drop        drops rows that came ahead of others that are still missing (ahead_stream.py), and says which
    begin       begins a branch of the new term in every partition, fsynced; none in a handover to the very next term
    lead        stores that it leads, then takes writes

Each step may fail, and then no node leads by it; promises stay. A higher term that this node promises meanwhile also
ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from tailrace.errors import NotLeader, TailraceError
from tailrace_server.replication.ahead_stream import drop_ahead
from tailrace_server.replication.election import MemberState, why_no_vacancy, why_not_again
from tailrace_server.replication.gathered_promises import GatheredPromises
from tailrace_server.replication.missing_rows import MissingRows
from tailrace_server.replication.promises import keep_promise
from tailrace_server.replication.readable_copies import PUT_BACK, instead, passed_over, why_no_writes
from tailrace_server.replication.role import Role
from tailrace_server.replication.standings import PartitionId, Standings
from tailrace_server.replication.term_branches import TermBranches
from tailrace_server.replication.unreadable import listed, told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# The seconds that a promotion waits for the look at this node's files. A disk that hangs fails at a later step.
_LOOK_SECONDS = 0.25


# A node that is forced without the promises of a majority leads so many terms above those that it knows of. The lost
# members may have had later leaders. When they come back, they follow this one, and clients that knew those leaders
# find it.
FORCED_TERMS = 1 << 10


class PromotionResult(NamedTuple):
    """A promotion that has succeeded: the term, its steps, and the rows that may be lost ("" for none)."""

    term: int
    steps: list[str]
    may_be_lost: str


class Promotion:
    """One try to lead. ``run`` may be called once, with the member's ``procedure`` lock held."""

    def __init__(
        self,
        member: Member,
        *,
        force: bool = False,
        leader: str = "",
        again: bool = False,
        by_itself: bool = False,
    ) -> None:
        """``force``: leads without a majority too. ``leader``: hands over, and has to promise before all others.

        ``again``: no operator has asked for it; the last leader of a set leads again. ``by_itself``: no operator
        either; the leader is gone, and a member that hears it promises nothing.
        """
        self._member = member
        self._node = member.node
        self._leadership = member.leadership
        self._force = force
        self._leader = leader
        self._leader_term = member.local.file.now.leader_term
        self._last_led = self._leader_term if again else None
        self._by_itself = by_itself
        self._steps: list[str] = []
        self._term = 0
        self._has_skipped = False  # whether the term is one above those that lost members may have had
        self._promises = GatheredPromises(member, leader, self._last_led, by_itself=by_itself)
        self._rows = MissingRows(member, self._promises, self._say, force=force)
        self._unreadable = ""  # the partitions that this node cannot read
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
        if member.local.why_no_member():
            raise NotLeader(f"refused: {member.local.why_no_member()}")
        await member.peers.look(self._has_found_enough if self._leader or self._by_itself else None)
        answers = {address: seen for address, seen in member.peers.states.items() if seen is not None}
        self._promises.silent = {
            name: member.peers.misfits.get(name, "no answer") for name in member.peers.states.keys() - answers.keys()
        }
        self._require_last(answers)
        self._require_vacancy(answers)
        await self._require_readable(answers)
        voters = [seen for seen in answers.values() if member.local.counts_seen(seen)]
        self._require_voters(map(member.local.counts_seen, answers.values()))
        self._join(seen for seen in answers.values() if not seen.is_new)
        for seen in answers.values():
            member.peers.learn_voters(seen.cluster_id, seen.voters)
        self._require_known(voters)
        now = member.local.file.now
        terms = [seen.term for seen in voters] + [now.term, now.voters.term, self._leadership.term]
        terms += member.told_terms.values()
        is_majority = not member.local.is_in_set or len(voters) + member.local.votes >= member.local.majority
        self._has_skipped = not is_majority
        step = FORCED_TERMS if self._has_skipped else 1
        return max(terms + [p.log.term for p in self._leadership.group.unsorted()]) + step

    def _has_found_enough(self, found: Mapping[str, MemberState | None]) -> bool:
        """Returns whether the voters that answered are a majority, and in a handover the leader has answered."""
        member = self._member
        votes = sum(member.local.counts_seen(seen) for seen in found.values() if seen is not None)
        if self._leader and found.get(self._leader) is None:
            return False
        return votes + member.local.votes >= member.local.majority

    def _require_last(self, answers: Mapping[str, MemberState]) -> None:
        """Raises NotLeader if this node leads again by itself, and another one came to lead after it."""
        why = "" if self._last_led is None else why_not_again(self._last_led, answers)
        if why:
            raise NotLeader(f"it does not lead again by itself: {why}")

    def _require_vacancy(self, answers: Mapping[str, MemberState]) -> None:
        """Raises NotLeader if this node stands by itself, and another one leads or is about to."""
        why = why_no_vacancy(self._member.local.file.now.term, answers) if self._by_itself else ""
        if why:
            raise NotLeader(f"it does not stand for the leadership: {why}")

    def _require_known(self, voters: Sequence[MemberState]) -> None:
        """Raises NotLeader if this node has no vote, and a history that none of the voters, a majority, knows of."""
        own, known = self._member.local.foreign_term, max((seen.term for seen in voters), default=0)
        if own > known and len(voters) >= self._member.local.majority:
            raise NotLeader(
                f"refused: this node has no vote, and holds a history of term {own}, later than term {known}, the last "
                "that the voters know of: it was restored from a backup, or led by itself. Promote a member that has a "
                "vote, and give this node an empty directory"
            )

    async def _require_readable(self, answers: Mapping[str, MemberState]) -> None:
        """Raises NotLeader if this node is known to be unable to read a partition, unless forced.

        The last leader leads again all the same: the other partitions must not lack a leader for that.
        """
        await self._node.storage.checks.looked(_LOOK_SECONDS)
        self._unreadable = told(unreadable_of(self._node, self._leadership.group))
        if self._unreadable and not self._force and self._last_led is None:
            voters = {name: seen for name, seen in answers.items() if self._member.local.counts_seen(seen)}
            raise NotLeader(
                f"refused: {self._unreadable}: {instead(voters)}. Or stop this node, and {PUT_BACK}. --force leads all "
                "the same, without what cannot be read"
            )
        for step in [*([self._unreadable] if self._unreadable else []), *passed_over(answers)]:
            self._say(step)
        if self._node.storage.is_hindered:
            self._say(why_no_writes(self._node.storage.refusal, answers))

    def _join(self, others: Iterable[MemberState]) -> None:
        """Joins the cluster of the members that are not new, if this node is new.

        Raises NotLeader without such members: there is nothing to lead.
        """
        if not self._member.local.is_new:
            return
        others = list(others)
        why, _ = self._member.peers.outside()
        if why:
            raise NotLeader(f"refused: {why}")
        clusters = {seen.cluster_id for seen in others}
        if len(clusters) != 1:
            raise NotLeader(
                "this node is new and holds nothing, and no member that holds anything has answered. A set is "
                "founded by itself, once all its members are there and new"
            )
        self._node.join(clusters.pop())

    def _require_voters(self, votes: Iterable[bool]) -> None:
        member = self._member
        needless = member.peers.why_needless()
        if self._force and not needless:
            return
        if not member.local.is_in_set:
            raise NotLeader(
                "a plain replica has no set whose majority could say that nothing is lost; with --force it leads. "
                f"{self._may_be_lost()}"
            )
        needed, found = member.local.majority, sum(votes) + member.local.votes
        if found < needed:
            own = "" if member.local.votes else "; this node has no vote: its disk is new, and it has not caught up"
            silent = ", ".join(f"{address} ({why})" for address, why in sorted(self._promises.silent.items()))
            forced = f"--force changes nothing: {needless}" if needless else "--force leads all the same"
            raise NotLeader(
                f"refused: {found} of the {needed} voters that it takes were found{own}. Without: {silent or 'none'}."
                f" {forced}. {'' if needless else self._may_be_lost()}".rstrip()
            )

    def _may_be_lost(self) -> str:
        member = self._member
        without = ", ".join(sorted(self._promises.silent))
        if not member.local.is_in_set:
            return f"What may be lost: all that {member.local.source} has acknowledged and this node does not have"
        gaps = [*self._rows.lost.values(), *self._rows.unpaid]
        if self._promises.has_majority() and gaps:
            return f"What may be lost: writes of every level, quorum among them: {listed(gaps, '; ')}"
        if self._promises.has_majority():
            text = f"What may be lost: nothing at level quorum; at levels disk and memory what only {without} had"
            return text if self._promises.silent else ""
        whose = f"only {without} had" if without else "none of the members has any more"
        text = f"What may be lost: writes of every level, quorum among them, that {whose}"
        return "; ".join([text, listed(gaps, "; ")]) if gaps else text

    # Promise and fetch

    async def _gather(self) -> None:
        """Asks all others for the term. Raises NotLeader if too few promise.

        A node that is forced skips terms if a majority has answered and does not promise: the others may have promised
        this very term to another candidate, and two leaders would begin branches of one term.
        """
        promises = self._promises
        await promises.gather(self._term)
        if self._force and self._member.local.is_in_set and not (self._has_skipped or promises.has_majority()):
            self._say(f"{promises}; forced, it asks for a term that no other candidate has")
            self._term += FORCED_TERMS
            await keep_promise(self._member, self._term)
            await promises.gather(self._term)
        if promises.later:
            raise NotLeader(f"it does not lead again by itself: {promises.later}")
        self._require_voters(promised.votes for promised in promises.promised.values())
        promises.require_term()
        self._say(str(promises))

    async def _fetch_all(self) -> bool:
        """Fetches the missing rows. Returns whether the leader's branches may go on."""
        own = await self._rows.fetch()
        self._checked = own.keys()
        return self._keeps_branch(own)

    def _keeps_branch(self, own: Standings) -> bool:
        """Returns whether the leader's branches may go on: in a handover, if this node has all rows of the leader.

        In a term between the leader's and this one another member may have begun a branch that no other one has heard
        of. That branch would be preferred to one of the leader's term at a later promotion.
        """
        if not self._leader or self._term != self._leader_term + 1:
            return False
        leader = self._promises.promised[self._leader]
        return leader.votes and own == leader.standings

    # Lead

    async def _lead(self, kept_branch: bool) -> PromotionResult:
        node, member, group = self._node, self._member, self._leadership.group
        for dropped in await drop_ahead(node, group.unsorted()):
            self._say(dropped)
        kept = (p for p in group.unsorted() if PartitionId(p.feed_id, p.id) in self._checked)
        branches = TermBranches(node, group, self._term, kept if kept_branch else ())
        if not kept_branch:
            await branches.begin(self._promises.require_term)
            await node.storage.all_durable()
        self._promises.require_term()
        if member.local.why_no_member():
            raise NotLeader(f"refused: {member.local.why_no_member()}")
        branches.begin_rest()
        forced = not self._promises.has_majority() or bool(self._rows.unpaid)
        leading = member.local.file.now.leading(self._term, forced=forced)
        if forced and leading.voters.epoch and not leading.voters.has(node.identity.placement_id):
            seated = leading.voters.with_seat(member.local.number, node.identity.placement_id)
            leading = leading.knowing(seated)
        member.local.file.store(leading.caught_up(member.local.new_token()))
        member.local.take_list()
        member.local.count()
        member.lead(self._term)
        self._say(f"leads in term {self._term}" + (", on the same branches" if kept_branch else ""))
        member.report("")
        lost = "; ".join(filter(None, [self._may_be_lost(), self._unreadable]))
        return PromotionResult(self._term, self._steps, lost)


async def promote(member: Member, *, force: bool) -> PromotionResult:
    """Makes this node lead, as an operator has asked for. Raises TailraceError that says why it does not.

    A leader whose majority is lost leads anew: forced, it may give seats to new disks without that majority.
    """
    async with member.procedure:
        leadership = member.leadership
        if leadership.role is Role.LEADER and await is_confirmed(member):
            return PromotionResult(leadership.term, ["this node leads already"], "")
        try:
            return await Promotion(member, force=force).run()
        finally:
            member.wake()


async def is_confirmed(member: Member) -> bool:
    """Returns whether a majority confirms in time that this node leads. Outside of a set there is none to ask."""
    answers: list[TailraceError | None] = []
    answered = trio.Event()

    def note(error: TailraceError | None) -> None:
        answers.append(error)
        answered.set()

    cancel = member.leadership.confirm(note)
    member.node.connections.flush()
    with trio.move_on_after(member.node.config.replication.majority_timeout_s):
        await answered.wait()
    if cancel is not None:
        cancel()
    return answers == [None]


async def stand(member: Member) -> PromotionResult:
    """Makes this node lead because the leader is gone, with ``procedure`` held. Raises TailraceError, OSError."""
    return await Promotion(member, by_itself=True).run()


async def lead_again(member: Member) -> PromotionResult:
    """Makes this node lead as it did before, with ``procedure`` held. Raises TailraceError, OSError."""
    return await Promotion(member, force=not member.local.is_in_set, again=member.local.is_in_set).run()
