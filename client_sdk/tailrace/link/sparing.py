"""Chooses the log lines of events that come again and again, such as the tries of a long outage. Pure."""

from __future__ import annotations

from collections.abc import Callable

# A day without a node takes 1,440 lines of a kind.
SECONDS = 60.0


class Sparing:
    """The lines of one kind of event: the first, then one in SECONDS. Each says how many were left out before it."""

    def __init__(self, clock: Callable[[], float], seconds: float = SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._told_at = float("-inf")
        self._left_out = 0

    def note(self) -> str | None:
        """Returns what the event's line ends with; None if it has no line."""
        now = self._clock()
        if now - self._told_at < self._seconds:
            self._left_out += 1
            return None
        text = f" ({self._left_out} more since the last such line)" if self._left_out else ""
        self._told_at, self._left_out = now, 0
        return text
