"""Hands the leadership over if the leader is to leave its set: the next leader drops its seat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.replication.leaving import most_complete
from tailrace_server.replication.own_handover import OwnHandover

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

# The seconds after a handover that has failed.
AGAIN_SECONDS = 2.0


class DepartingLeader:
    """The handovers of one member that is to leave. Only its own methods change its fields."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._handover = OwnHandover(member, AGAIN_SECONDS)

    def consider(self) -> None:
        """Begins a handover if the record says that this leader is to leave, and a majority has stored it."""
        member, leaving = self._member, self._member.local.file.now.voters.leaving
        if member.local.name not in leaving or not member.seats.is_stored:
            return
        now = member.node.clock.monotonic()
        to = most_complete(member, besides=leaving) if self._handover.may_begin(now) else None
        if to is not None:
            self._handover.begin(to, f"this leader is to leave its set: it hands over to {to}", now)
