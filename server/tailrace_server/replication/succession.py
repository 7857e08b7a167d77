"""Fails over without an operator: watches the leader or the majority, and stands for the leadership.

    following    each LEADER_CHECK is a sign of life; after a time-out of silence the following ends
    no leader    pauses by its rank, asks for pre-votes, and with those of a majority begins a promotion
    leading      asks its replicas all the time; takes no writes while no majority has answered for a time-out;
                 steps down if its own disk fails or hangs

The states are in failover.py, the rules in pre_votes.py and leader_watch.py. Promises and promotions are those of an
operator's `promote`, and the only thing that makes a leader.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.wire.bodies import field
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Failover
from tailrace_server.host.randomness import fraction
from tailrace_server.replication.departing_leader import DepartingLeader
from tailrace_server.replication.election import MemberState, NextStep
from tailrace_server.replication.failover import FailoverEvent, FailoverState, noticed, transition
from tailrace_server.replication.giving_way import GivingWay
from tailrace_server.replication.leader_watch import MajorityWatch, Patience
from tailrace_server.replication.peers import ask, ask_all, seen_from_json
from tailrace_server.replication.pre_votes import Completeness, Voter, pause_seconds, rank_of, why_refused
from tailrace_server.replication.readable_copies import MEND
from tailrace_server.replication.role import Role
from tailrace_server.replication.unreadable import told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# The cases of election.py in which the leader is gone, and a majority may choose another one.
_LEADERLESS = frozenset({"was_follower", "later_leader", "promised_away"})
# The random part that a follower adds to its time-out, as a part of it.
_JITTER = 0.2
# After its start a member leaves the last leader this many time-outs to lead again, which keeps rows at level disk.
_START_TIMEOUTS = 2
# The time-outs by which a leader's first question may be later than others: streams have to open before it.
_FIRST_TIMEOUTS = 3
# The seconds that a candidate waits for the look at its files: a disk that hangs must not hold up the others.
_LOOK_SECONDS = 0.25
# A watch that wakes up after this many intervals was itself held up.
_HELD_UP_INTERVALS = 3


class Succession:
    """The failover of one member. Only its own methods change its fields."""

    def __init__(self, member: Member, stand: Callable[[Member], Awaitable[object]]) -> None:
        """``stand``: `tailrace_server.replication.promotion.stand`, called with the member's ``procedure`` held."""
        self._member = member
        self._stand = stand
        self._node = member.node
        self._config = member.node.config.replication
        self._clock = member.node.clock
        self._leadership = member.leadership
        self._majority = MajorityWatch()
        self._patience = Patience()
        self._giving_way = GivingWay(member)
        self._departing = DepartingLeader(member)
        self.state = FailoverState.WAITS
        self._why = ""  # for people: the reason of the state
        self._failures = 0
        self._leader = ""  # the leader that was followed last
        self._started_at = self._ticked_at = self._clock.monotonic()
        self._timeout_s = self._new_timeout_s()

    @property
    def is_on(self) -> bool:
        """Whether this member fails over by itself."""
        return self._config.failover is Failover.AUTO and self._member.local.is_in_set

    def _new_timeout_s(self) -> float:
        return self._config.leader_timeout_s * (1 + _JITTER * fraction(self._node.host.randomness))

    # States

    def _note(self, event: FailoverEvent, why: str = "") -> None:
        after = transition(self.state, event)
        log.info("failover: %s, %s -> %s%s", self.state.value, event.value, after.value, why and f" ({why})")
        self.state, self._why = after, why

    def _is(self, state: FailoverState) -> bool:
        """Returns whether the member is in ``state`` now: other tasks change it during each wait."""
        return self.state is state

    def _notice(self) -> None:
        """Takes over what has become of the member meanwhile."""
        leads, has_leader = self._leadership.role is Role.LEADER, bool(self._leadership.leader)
        withholds = bool(self._leadership.withheld)
        while (event := noticed(self.state, leads=leads, withholds=withholds, has_leader=has_leader)) is not None:
            self._note(event)
            if event in (FailoverEvent.LEADER_FOUND, FailoverEvent.WON):
                self._failures = 0
            if event is FailoverEvent.WON:  # the leader that it gave up was gone, even if that one leads again later
                self._patience.found(self._member.local.name, self._clock.monotonic())

    def to_json(self) -> dict[str, Any]:
        """Returns the part of the status."""
        mode = Failover.AUTO if self.is_on else Failover.MANUAL
        if self.is_on:
            self._notice()
        return {"mode": mode.value, "state": self.state.value if self.is_on else "", "why": self._why}

    # Watching

    async def run(self) -> None:
        """Watches the leader, or the majority, until cancelled."""
        while self.is_on:
            self._tick(self._clock.monotonic())
            await trio.sleep(self._config.heartbeat_s)

    def _tick(self, now: float) -> None:
        since_s, self._ticked_at = now - self._ticked_at, now
        self._notice()
        unfit = self.why_unfit()
        if unfit:
            self._member.local.end_promotion()  # it may never end, and the others would wait for it
        if unfit and self.state is not FailoverState.UNFIT:
            log.error("%s: this node neither leads nor votes for a leader until that ends", unfit)
            led = self._leadership.role is Role.LEADER
            self._note(FailoverEvent.DISK_STUCK, unfit)
            if led:
                self._member.step_down()
        elif self.state is FailoverState.UNFIT and not unfit:
            self._note(FailoverEvent.DISK_WELL)
        elif self._leadership.role is Role.LEADER:
            self._watch_majority(now)
            if self.state is FailoverState.LEADS:
                self._giving_way.consider(now)
        else:
            if since_s > _HELD_UP_INTERVALS * self._config.heartbeat_s:
                self._leadership.watch.excuse(now)
            self._watch_leader(now)

    def _watch_leader(self, now: float) -> None:
        following, silent_s = self._member.following, self._leadership.watch.silent_s(now)
        if following is None or following.is_stopped or silent_s < self._timeout_s * self._patience.factor(now):
            return
        log.warning(
            "no sign of life of the leader at %s for %.1f s: it is not followed any more", self._leader, silent_s
        )
        self._timeout_s = self._new_timeout_s()
        self._patience.gave_up(self._leader)
        following.stop()

    def _watch_majority(self, now: float) -> None:
        leadership, majority, changes = self._leadership, self._majority, self._leadership.changes
        majority.lead(changes, now)
        if not majority.is_asking:
            majority.asked()
            leadership.confirm(partial(self._confirmed, now, changes))
            self._node.connections.flush()
        self._tell_majority()
        if self.state is FailoverState.LEADS and majority.unconfirmed_s(now) >= self._config.majority_timeout_s:
            log.error("%s", self._why_unsure)
            self._note(FailoverEvent.MAJORITY_GONE, self._why_unsure)
            leadership.withhold_writes(self._why_unsure)

    def _tell_majority(self) -> None:
        """Tells the leadership until when the last confirmation by a majority counts."""
        self._leadership.is_sure_until(self._majority.confirmed_at + self._config.majority_timeout_s, self._why_unsure)

    @property
    def _why_unsure(self) -> str:
        return (
            f"no majority of the set has confirmed for {self._config.majority_timeout_s:g} s that this node leads: "
            "it takes no writes, at any level, until a majority does"
        )

    def _confirmed(self, asked_at: float, changes: int, error: TailraceError | None) -> None:
        if error is not None:
            self._majority.failed(changes)
            return
        self._majority.confirmed(changes, asked_at)
        if changes == self._leadership.changes:
            self._tell_majority()
        is_late = self._clock.monotonic() - asked_at >= self._config.majority_timeout_s
        if self.state is FailoverState.WITHHOLDS and changes == self._leadership.changes and not is_late:
            log.warning("a majority of the set confirms that this node leads: it takes writes again")
            self._note(FailoverEvent.MAJORITY_BACK)
            self._leadership.restore_writes()

    def won(self) -> None:
        """Notes that this member leads from now on, by the word of a majority. Call it before anything is written.

        The first look of the watch may be long after: the process may be stopped in between.
        """
        if self.is_on:
            self._majority.lead(self._leadership.changes, self._clock.monotonic())
            self._tell_majority()

    def depart(self) -> None:
        """Hands over if this node leads and is to leave the set; with ``--failover manual`` too."""
        self._departing.consider()

    def found(self, name: str, *, asks: bool, is_sure: bool) -> None:
        """Notes that the leader ``name`` is followed from now on.

        ``asks``: it will ask this member all the time. ``is_sure``: a majority confirms it, as it says.
        """
        self._leader, now = name, self._clock.monotonic()
        self._patience.found(name, now)
        timeout_s = self._config.leader_timeout_s * self._patience.factor(now)
        self._leadership.watch.begin(now, _FIRST_TIMEOUTS * timeout_s if asks else math.inf, is_sure=is_sure)

    def lost(self) -> None:
        """Notes that the following has ended."""
        self._leadership.watch.end()

    def knows_all(self, found: Mapping[str, MemberState | None]) -> bool:
        """Returns whether all have answered but the leader that was lost."""
        if not self.is_on:
            return False
        missing = {str(address) for address in self._member.local.others} - found.keys()
        return missing <= {self._leader}

    def why_unfit(self) -> str:
        """Returns why this member's disk cannot be counted on; "" if it can."""
        if not self.is_on:
            return ""
        storage = self._node.storage
        failure = storage.committer.failure or storage.journal.failed
        if failure is not None:
            return f"the disk fails: {failure}"
        member = self._member
        if member.local.file.failure and self._leadership.role is not Role.LEADER and member.following is None:
            return member.local.file.failure
        busy_s = storage.committer.busy_s(self._clock.monotonic())
        return f"an fsync has taken {busy_s:.0f} s so far" if busy_s >= self._config.disk_timeout_s else ""

    # Answering

    def why_no_promise(self) -> str:
        """Returns why no node that stands by itself gets a promise now; "" if it may.

        A promise on a disk that hangs would not come, and the candidate would wait for it.
        """
        return self.why_unfit() or self.why_sticky()

    def why_sticky(self) -> str:
        """Returns the sentence that this node leads, or has heard the leader lately; "" if neither."""
        now = self._clock.monotonic()
        if self._member.following is not None and self._leadership.watch.hears(now, self._config.leader_timeout_s):
            return f"it hears the leader at {self._leader}"
        if self._leadership.role is Role.LEADER and self.state is not FailoverState.WITHHOLDS:
            return "it leads"
        return ""

    def why_refused(self, candidate: Completeness) -> str:
        """Returns why this member would not let the candidate lead now; "" if it would."""
        local, state = self._member.local, self._member.local.state()
        stands = self.is_on and local.votes and not state.unreadable and not self._has_no_room()
        stands = stands and self._member.following is None
        voter = Voter(
            self.why_unfit(), self.why_sticky(), local.promoting, stands, Completeness(state.held_term, state.held)
        )
        return why_refused(candidate, voter)

    # Standing

    async def succeed(self, step: NextStep) -> bool:
        """Tries to lead if ``step`` waits for a leader that is gone. Returns False if it does not try."""
        member = self._member
        if not self.is_on or step.case not in _LEADERLESS or not member.local.votes:
            return False
        self._notice()
        now = self._clock.monotonic()
        has_begun = bool(self._leader) or now - self._started_at >= _START_TIMEOUTS * self._config.leader_timeout_s
        if not has_begun or not self._is(FailoverState.WAITS):
            return False
        unreadable = self._unreadable()
        if not unreadable:
            await self._node.storage.checks.looked(_LOOK_SECONDS)
            if not self._is(FailoverState.WAITS) or not self._may_go_on():
                return True
            unreadable = self._unreadable()
        if unreadable:
            why = f"it does not stand for the leadership: {unreadable}. The set passes over this copy: {MEND}"
            if why != self._why:
                log.error("%s", why)
            self._why = why
            return False
        own, others = self._own(), self._others()
        rank = rank_of(own, member.local.name, others)
        if self._has_no_room():
            rank += len(member.local.others)  # it would take no writes, so each member with room stands first
        seconds = pause_seconds(rank, self._failures, fraction(self._node.host.randomness))
        member.report(f"waits: there is no leader, and this node asks the others in {seconds:.1f} s; {self._why}")
        # The disk may have hung meanwhile, which the watch has noted.
        if await member.woken_within(seconds) or not self._may_go_on() or not self._is(FailoverState.WAITS):
            return True
        term = member.local.file.now.term
        self._note(FailoverEvent.DUE)
        why = await self._ask_pre_votes()
        self._notice()
        if not self._is(FailoverState.ASKS):
            return True
        if why or member.local.file.now.term != term or not self._may_go_on():
            self._failures += 1
            self._note(FailoverEvent.REFUSED, why)
            return True
        self._note(FailoverEvent.GRANTED)
        await self._promote()
        return True

    def _has_no_room(self) -> bool:
        """Returns whether this member would soon refuse writes as the leader, because of its disk."""
        return self._node.storage.is_hindered

    def _unreadable(self) -> str:
        """Returns the sentence on the partitions that this member is known to be unable to read; "" without any."""
        return told(unreadable_of(self._node, self._leadership.group))

    def _own(self) -> Completeness:
        state = self._member.local.state()
        return Completeness(state.held_term, state.held)

    def _others(self) -> list[tuple[Completeness, str]]:
        """Returns what the other voters that answer have, by the last look."""
        seen = self._member.peers.states.items()
        return [
            (Completeness(state.held_term, state.held), name)
            for name, state in seen
            if state is not None and self._member.local.counts_seen(state) and not state.unreadable
        ]

    def _may_go_on(self) -> bool:
        """Returns whether there is still no leader, and no other procedure under way."""
        leads, is_busy = self._leadership.role is Role.LEADER, self._member.procedure.locked()
        return not leads and not is_busy and self._member.following is None

    def _is_majority(self, others: int) -> bool:
        """Returns whether this node and so many other voters are a majority."""
        local = self._member.local
        return others + local.votes >= local.majority

    async def _ask_pre_votes(self) -> str:
        """Returns why fewer than a majority would let this node lead; "" if a majority would."""
        granted: list[str] = []
        refused: dict[str, str] = {}
        own = self._own()
        questions = [partial(self._ask_one, address, own, granted, refused) for address in self._member.local.others]
        await ask_all(questions, lambda: self._is_majority(len(granted)), more_s=0.0)
        if self._is_majority(len(granted)):
            return ""
        return "; ".join(f"{name}: {why}" for name, why in sorted(refused.items()))

    async def _ask_one(self, address: Address, own: Completeness, granted: list[str], refused: dict[str, str]) -> None:
        name, member, what = str(address), self._member, "the answer to MEMBER"
        try:
            value = {**member.local.question(), "candidate": own._asdict()}
            answer = await ask(self._node, address, Opcode.MEMBER, value, self._config.ask_timeout_s)
            seen = seen_from_json(answer)
            why = member.peers.why_misfit(name, seen) or field(answer, "pre_vote", str, what)
            if not why and not member.local.counts_seen(seen):
                why = "it has no vote"
        except (TailraceError, OSError) as error:
            why = str(error) or type(error).__name__
        if why:
            refused[name] = why
        else:
            granted.append(name)

    async def _promote(self) -> None:
        member = self._member
        async with member.procedure:
            if self._leadership.role is Role.LEADER or member.following is not None:
                self._notice()
                return
            log.warning("there is no leader, and a majority lets this node stand: it begins a promotion")
            why = ""
            try:
                await self._stand(member)
            except (TailraceError, OSError) as error:
                why = str(error) or type(error).__name__
                log.warning("it does not lead: %s", why)
        self._notice()
        if self._is(FailoverState.STANDS):
            self._failures += 1
            self._note(FailoverEvent.FAILED, why)
            self._leadership.step_down(member.local.file.now.term)
