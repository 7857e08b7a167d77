"""Hands the leadership over if the leader is to leave its set: the next leader drops its seat."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.link.address import parse_address
from tailrace_server.replication.handover import hand_over
from tailrace_server.replication.leaving import most_complete

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# The seconds after a handover that has failed: the other member may have to catch up first.
AGAIN_SECONDS = 2.0


class DepartingLeader:
    """The handovers of one member that is to leave. Only its own methods change its fields."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._is_busy = False
        self._not_before = 0.0

    def consider(self) -> None:
        """Begins a handover if the record says that this leader is to leave, and a majority has stored it."""
        member, leaving = self._member, self._member.local.file.now.voters.leaving
        now = member.node.clock.monotonic()
        if member.local.name not in leaving or self._is_busy or now < self._not_before or not member.seats.is_stored:
            return
        to = most_complete(member, besides=leaving)
        if to is None:
            return
        self._is_busy, self._not_before = True, now + AGAIN_SECONDS
        member.start(partial(self._hand_over, to))

    async def _hand_over(self, to: str) -> None:
        log.warning("this leader is to leave its set: it hands over to %s", to)
        try:
            await hand_over(self._member, parse_address(to))
        except (TailraceError, OSError) as error:
            log.warning("%s has not taken over, and is asked again in %g s: %s", to, AGAIN_SECONDS, error)
        finally:
            self._is_busy = False
