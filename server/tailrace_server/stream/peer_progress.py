"""Tells whether a peer takes the bytes that wait for it, from samples. Pure."""

from __future__ import annotations


class PeerProgress:
    """The time since which a peer has neither granted room nor taken any bytes, though bytes wait for it.

    `look` takes the samples: a peer that takes something between two of them is not stuck.
    """

    __slots__ = ("_backlog_bytes", "_credited_bytes", "_since")

    def __init__(self, now: float) -> None:
        self._since = now
        self._credited_bytes = self._backlog_bytes = 0

    def look(self, now: float, waits: bool, credited_bytes: int, backlog_bytes: int) -> None:
        """Takes a sample at ``now``, in monotonic seconds.

        ``waits``: bytes wait for the peer. ``credited_bytes``: the sum of the bytes that it has ever granted.
        ``backlog_bytes``: the bytes that were sent and have not left.
        """
        if not waits or credited_bytes != self._credited_bytes or backlog_bytes < self._backlog_bytes:
            self._since = now
        self._credited_bytes, self._backlog_bytes = credited_bytes, backlog_bytes

    def stuck_seconds(self, now: float) -> float:
        """Returns for how many seconds bytes have waited and the peer has taken none."""
        return now - self._since
