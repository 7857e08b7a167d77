"""The handovers that a leader begins by itself: one at a time, and none soon after one that has failed."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.link.address import parse_address
from tailrace_server.replication.handover import hand_over

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")


class OwnHandover:
    """The handovers of one member for one kind of reason. Only its own methods change its fields."""

    def __init__(self, member: Member, again_s: float) -> None:
        """``again_s``: the seconds after a handover that has failed, since the other member may have to catch up."""
        self._member = member
        self._again_s = again_s
        self._not_before = 0.0
        self.is_busy = False

    def may_begin(self, now: float) -> bool:
        """Returns whether `begin` may be called. ``now``: monotonic seconds."""
        return not self.is_busy and now >= self._not_before

    def begin(self, to: str, why: str, now: float, *, force: bool = False) -> None:
        """Begins a handover to the member ``to``. ``why``: the sentence for the log."""
        log.warning("%s", why)
        self.is_busy, self._not_before = True, now + self._again_s
        self._member.start(partial(self._hand_over, to, force=force))

    async def _hand_over(self, to: str, *, force: bool) -> None:
        try:
            await hand_over(self._member, parse_address(to), force=force)
        except (TailraceError, OSError) as error:
            log.warning("%s has not taken over, and is asked again in %g s: %s", to, self._again_s, error)
        finally:
            self.is_busy = False
