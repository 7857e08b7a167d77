"""Hands the leadership over if the leader finds that it cannot read its own copy, and another voter can.

A damaged block may be found long after its node came to lead: by a reader, a compaction, or a check of the segments.
Readers then get an error for the partition, although the other members have its rows.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.link.address import parse_address
from tailrace_server.replication.handover import hand_over
from tailrace_server.replication.leaving import most_complete
from tailrace_server.replication.unreadable import told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# The seconds after a handover that has failed: the other member may have to catch up first.
AGAIN_SECONDS = 10.0


class DamagedLeader:
    """The handovers of one member for its own damage. Only its own methods change its fields."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._is_busy = False
        self._not_before = 0.0

    def consider(self, now: float) -> None:
        """Begins a handover if this leader has to give way. ``now``: monotonic seconds.

        Without any damage this costs nothing.
        """
        member = self._member
        if not member.node.storage.damages or self._is_busy or now < self._not_before:
            return
        unreadable = unreadable_of(member.node, member.leadership.group)
        to = most_complete(member) if unreadable else None
        if to is None:
            return
        self._is_busy, self._not_before = True, now + AGAIN_SECONDS
        member.start(partial(self._hand_over, to, told(unreadable)))

    async def _hand_over(self, to: str, why: str) -> None:
        log.warning("%s: this leader hands over to %s, which can read its own copy", why, to)
        try:
            await hand_over(self._member, parse_address(to))
        except (TailraceError, OSError) as error:
            log.warning("%s has not taken over, and is asked again in %g s: %s", to, AGAIN_SECONDS, error)
        finally:
            self._is_busy = False
