"""Hands the leadership over if the leader's own disk keeps it from its work, and another voter's does not.

| this leader | hands over to | without one |
|---|---|---|
| cannot read its own copy | a voter that can, with room unless this one has none | leads on, without the partition |
| refuses writes for a while | a voter that can read its copy, with room on its disk | leads on, and refuses writes |

A damaged block may be found long after its node came to lead: by a reader, a compaction, or a check of the segments.
Readers then get an error for the partition, although the other members have its rows. A leader refuses writes if its
disk is full, if memory is full and flushes fail, or if the journal finds no space or no descriptor for a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace_server.replication.leaving import most_complete
from tailrace_server.replication.own_handover import OwnHandover
from tailrace_server.replication.unreadable import told, unreadable_of

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

# The seconds after a handover that has failed.
AGAIN_SECONDS = 10.0
# The seconds for which writes have to be refused: a flush that removes files of the journal may make room soon.
REFUSING_SECONDS = 3.0


class GivingWay:
    """The handovers of one member for its own disk. Only its own methods change its fields."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._handover = OwnHandover(member, AGAIN_SECONDS)
        self._refuses_since: float | None = None

    def consider(self, now: float) -> None:
        """Begins a handover if this leader has to give way. ``now``: monotonic seconds.

        Without damage, and while writes are taken, this costs nothing.
        """
        member, storage = self._member, self._member.node.storage
        refusal = storage.refusal
        if not refusal:
            self._refuses_since = None
        elif self._refuses_since is None:
            self._refuses_since = now
        refuses = self._refuses_since is not None and now - self._refuses_since >= REFUSING_SECONDS
        if not self._handover.may_begin(now) or not (storage.damages or refuses):
            return
        why, what = told(unreadable_of(member.node, member.leadership.group)), "which can read its own copy"
        needs_room = not refusal
        if not why and refuses:
            why, what, needs_room = refusal, "whose disk has room", True
        to = most_complete(member, needs_room=needs_room) if why else None
        if to is not None:
            self._handover.begin(to, f"{why}: this leader hands over to {to}, {what}", now, force=not needs_room)
