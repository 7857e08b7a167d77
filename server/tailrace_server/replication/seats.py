"""The record of the voters at a member: stores later ones, and as the leader gives seats to disks that have caught up.

    told by another member ──> later than the own one? ──> MEMBERSHIP ──> the following, or the leading, ends if it must
    leading, after each look ──> first_record in epoch 0, next_step else ──> MEMBERSHIP ──> counts by it from now on

Each question and answer of MEMBER tells the sender's record. So a member stores a leader's new record within a look,
and the leader hears of that with the answer. The decisions are in voters.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tailrace_server.replication.election import MemberState
from tailrace_server.replication.lineage import why_older
from tailrace_server.replication.role import Role
from tailrace_server.replication.voters import (
    VACANT,
    Claim,
    Stored,
    Voters,
    Waiting,
    first_record,
    next_departure,
    next_step,
    storing_of,
    why_no_step,
    why_not_yet,
)

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_member import LocalMember

log = logging.getLogger("tailrace.server")


class Seats:
    """The seats of one group, as one member knows and changes them."""

    def __init__(
        self,
        local: LocalMember,
        leadership: Leadership,
        on_deposed: Callable[[], None],
        on_told: Callable[[bool], None],
    ) -> None:
        """Changes nothing yet.

        Args:
            local: This node as a member.
            leadership: Of the group.
            on_deposed: Called if a record is of a later term than that in which this node leads or follows.
            on_told: Called with any other later record: whether this node has gained or lost its vote by it.
        """
        self._local = local
        self._leadership = leadership
        self._on_deposed = on_deposed
        self._on_told = on_told
        self._stored = Voters()  # the last record of this leader that a majority was known to have stored
        self.storing: frozenset[bytes] = frozenset()  # the voters that had stored the record at the last look
        self._had_majority = -1  # `Leadership.changes` of the last leadership whose record a majority had stored
        self.why = ""  # for people: why a disk that has caught up has no seat yet

    # Learning

    def learn(self, voters: Voters) -> None:
        """Stores a record that another member has told, if it is later. Raises OSError.

        Its term had a leader, so nothing of a lower term is accepted any more.
        """
        local = self._local
        if not local.learns(voters):
            return
        now, voted = local.file.now, local.votes
        local.file.store(now.knowing(voters).promised(max(now.term, voters.term)))
        log.info("the voters of term %s are %s", voters.term, voters)
        local.take_list()
        if voted and not local.votes and local.number >= 0:
            log.error("%s", self.why_no_seat())
        if voters.term > self._leadership.term or self._leadership.role is Role.LEADER:
            self._on_deposed()
        else:
            self._on_told(voted is not local.votes)

    def why_no_vote(self) -> str:
        """Returns why this directory has no vote, and what to do; "" if it has one, or in epoch 0."""
        older = self._local.file.now.older is not None
        return why_older(self._local.name, None, self._local.line) if older else self.why_no_seat()

    def why_no_seat(self) -> str:
        """Returns why this directory has no seat in the record, and what to do; "" if it has one, or in epoch 0."""
        local, voters = self._local, self._local.file.now.voters
        if not local.is_in_set or not voters.epoch or voters.has(local.node.identity.placement_id):
            return ""
        if local.number < 0:
            return local.why_no_member()
        if local.number >= len(voters.seats):
            return f"{local.name} is to join its set: it has no vote until it has caught up with the leader; {voters}"
        holder = voters.seats[local.number]
        other = "is vacant" if holder == VACANT else f"is that of disk {holder.hex()[:8]}"
        own = local.node.identity.placement_id.hex()[:8]
        return (
            f"this disk, {own}, is no voter by {voters}: the seat of {local.name} {other}. Its promises and "
            "acknowledgements count for nothing until it has caught up with a leader, which then gives it the seat"
        )

    # Leading

    def lead(self, answers: Mapping[str, MemberState]) -> bool:
        """Makes the next record, if a step is due by these answers. Returns whether it did. Raises OSError."""
        now = self._local.file.now
        changed = self._first(answers) if not now.voters.epoch else self._next(answers)
        if changed is None:
            return False
        self._store(changed)
        return True

    def _store(self, voters: Voters) -> None:
        local = self._local
        local.file.store(local.file.now.knowing(voters))
        local.take_list()
        local.count()

    @property
    def is_stored(self) -> bool:
        """Whether a majority was known to have stored the present record, in this leader's term, at the last look."""
        return self._stored == self._local.file.now.voters

    def noted(self, answers: Mapping[str, MemberState]) -> str:
        """Returns why the leader must not make another record yet, by these answers; "" if it may."""
        now, own_id = self._local.file.now, self._local.node.identity.placement_id
        others = {seen.placement_id: Stored(seen.term, seen.voters) for seen in answers.values()}
        own = Stored(now.term, now.voters)
        missing = why_not_yet(own_id, self._leadership.term, own, others, is_forced=False)
        self.storing = storing_of(own_id, own, others)
        if not missing:
            self._had_majority, self._stored = self._leadership.changes, now.voters
        return missing

    def intend(self, voters: Voters) -> None:
        """Stores the record of the next epoch, by which a member is to join or to leave. Raises OSError.

        ``noted`` has just returned that the leader may make it.
        """
        why = why_no_step(self._local.file.now.voters, voters)
        assert not why, why
        log.warning("the members of this set change: %s", voters)
        self._store(voters)

    def _first(self, answers: Mapping[str, MemberState]) -> Voters | None:
        local, now = self._local, self._local.file.now
        claims = [
            Claim(local.node.identity.placement_id, True)
            if name == local.name
            else None
            if (seen := answers.get(name)) is None
            else Claim(seen.placement_id, seen.votes)
            for name in local.members
        ]
        found = first_record(self._leadership.term, now.founders, claims, is_forced=now.forced)
        if found is not None:
            log.warning("the voters of this set, which is of an earlier version, are recorded: %s", found)
        return found

    def _next(self, answers: Mapping[str, MemberState]) -> Voters | None:
        local, now, voters = self._local, self._local.file.now, self._local.file.now.voters
        missing = self.noted(answers)
        waiting = self._waiting(answers)
        is_forced = now.forced and self._had_majority != self._leadership.changes
        after = next_step(voters, waiting) if is_forced or not missing else None
        if after is None and voters.leaving:
            after = self._departure(missing)
        if after is None and not waiting:
            self.why = self._why_staying(missing) if voters.leaving else ""
            return None
        if after is None:
            names = ", ".join(local.members[seat] for seat in waiting)
            self.why = f"{names} waits for its seat: {missing or 'it has to catch up as of ' + str(voters)}"
            return None
        why = why_no_step(voters, after)
        assert not why, why
        self._tell(voters, after)
        return after

    def _departure(self, missing: str) -> Voters | None:
        """Returns the record without a member that is to leave; None if there is none yet."""
        local = self._local
        is_held = not missing and self._leadership.is_held()
        own_id = local.node.identity.placement_id
        return next_departure(local.file.now.voters, own_id, self.storing, is_held=is_held)

    def _why_staying(self, missing: str) -> str:
        """Returns, for people, why a member that is to leave still has its seat."""
        voters = self._local.file.now.voters
        if self._local.name in voters.leaving:
            why = "it leads, and hands over first"
        elif missing:
            why = missing
        elif not self._leadership.is_held():
            why = "a majority does not hold all rows yet"
        else:
            why = "too few of the others answer to be a majority without it"
        return f"{', '.join(voters.leaving)} is to leave: {why}"

    def _waiting(self, answers: Mapping[str, MemberState]) -> dict[int, Waiting]:
        local, voters = self._local, self._local.file.now.voters
        waiting = {}
        for seat, name in enumerate(local.members):
            if name == local.name:
                found = Waiting(local.node.identity.placement_id, voters.term, voters.epoch)
            elif (seen := answers.get(name)) is not None and seen.ready is not None:
                found = Waiting(seen.placement_id, *seen.ready)
            else:
                continue
            if not voters.has(found.placement_id):
                waiting[seat] = found
        return waiting

    def _tell(self, before: Voters, after: Voters) -> None:
        if len(after.seats) < len(before.seats):
            self.why = ""
            [name] = set(before.names) - set(after.names)
            log.warning("%s is no member any more, and its directory has no vote; %s", name, after)
            return
        seats = (*before.seats, VACANT)
        [seat] = [number for number, id in enumerate(after.seats) if id != seats[number]]
        name = after.names[seat] if after.is_named else self._local.members[seat]
        left, came = seats[seat].hex()[:8], after.seats[seat].hex()[:8]
        if after.seats[seat] == VACANT:
            self.why = ""
            log.warning("disk %s has no vote any more: %s has another disk, which has caught up; %s", left, name, after)
        else:
            log.warning("disk %s of %s has caught up, and votes from now on; %s", came, name, after)
