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
    next_step,
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
        if voted and not local.votes:
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
        local, now = self._local, self._local.file.now
        changed = self._first(answers) if not now.voters.epoch else self._next(answers)
        if changed is None:
            return False
        local.file.store(now.knowing(changed))
        local.count()
        return True

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
        local, now, term = self._local, self._local.file.now, self._leadership.term
        own_id, voters = local.node.identity.placement_id, now.voters
        own = Stored(now.term, voters)
        others = {seen.placement_id: Stored(seen.term, seen.voters) for seen in answers.values()}
        missing = why_not_yet(own_id, term, own, others, is_forced=False)
        if not missing:
            self._had_majority = self._leadership.changes
        waiting = self._waiting(answers)
        if not waiting:
            self.why = ""
            return None
        is_forced = now.forced and self._had_majority != self._leadership.changes
        after = next_step(voters, waiting) if is_forced or not missing else None
        if after is None:
            names = ", ".join(local.members[seat] for seat in waiting)
            self.why = f"{names} waits for its seat: {missing or 'it has to catch up as of ' + str(voters)}"
            return None
        why = why_no_step(voters, after)
        assert not why, why
        self._tell(voters, after)
        return after

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
        [seat] = [number for number, id in enumerate(after.seats) if id != before.seats[number]]
        name, left, came = self._local.members[seat], before.seats[seat].hex()[:8], after.seats[seat].hex()[:8]
        if after.seats[seat] == VACANT:
            self.why = ""
            log.warning("disk %s has no vote any more: %s has another disk, which has caught up; %s", left, name, after)
        else:
            log.warning("disk %s of %s has caught up, and votes from now on; %s", came, name, after)
