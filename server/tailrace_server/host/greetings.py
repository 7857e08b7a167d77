"""Bounds the connections that have not greeted: those in their handshake of TLS, and those without a HELLO."""

from __future__ import annotations

from collections.abc import Callable

from tailrace_server.config import Limits


class Greetings:
    """The connections of a node that have not greeted, the oldest first.

    A living client greets within milliseconds. So the oldest of too many ends, and silent peers keep no one out.
    """

    def __init__(self, limits: Limits) -> None:
        """``limits`` is read at each use, since it may change."""
        self._limits = limits
        self._ends: dict[object, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def begin(self, who: object, end: Callable[[], None]) -> None:
        """Counts ``who``, and ends the oldest of too many by its ``end``, which must not raise."""
        self._ends[who] = end
        if len(self._ends) > self._limits.greetings_max:
            oldest = next(iter(self._ends))
            self._ends.pop(oldest)()

    def over(self, who: object) -> None:
        """Notes that ``who`` has greeted, or has ended. It may be called again."""
        self._ends.pop(who, None)
