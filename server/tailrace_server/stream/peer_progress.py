"""Whether a consumer takes what is there for it, by looks now and then. Pure."""

from __future__ import annotations


class PeerProgress:
    """Since when a connection has had something to send, and its peer has neither granted room nor taken any bytes.

    Looks are what it is told by: a peer that takes something between two of them is not stuck.
    """

    __slots__ = ("_backlog_bytes", "_credited_bytes", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._credited_bytes = self._backlog_bytes = 0

    def look(self, now: float, waits: bool, credited_bytes: int, backlog_bytes: int) -> None:
        """``waits``: there is something for the peer. ``credited_bytes``: all that it has granted so far.

        ``backlog_bytes``: what was sent and has not left. ``now`` is in monotonic seconds.
        """
        if not waits or credited_bytes != self._credited_bytes or backlog_bytes < self._backlog_bytes:
            self._since = now
        self._credited_bytes, self._backlog_bytes = credited_bytes, backlog_bytes

    def stuck_seconds(self, now: float) -> float:
        """For how long there has been something to take, and nothing of it was taken."""
        return now - self._since
