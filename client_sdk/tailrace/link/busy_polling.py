"""Polls before a wait sleeps: to wake a processor up takes as long as the rest of a lone request. Pure.

    sleeping ── WAITS_MIN waits in a row that have ended soon ──> polling
        ^                                                           │
        └──── nothing has come in time: twice as many waits then ───┘

Polling pays if the peer runs on another processor, and takes less than that time. It is in vain if the peer is slow, or
waits for this processor. So a process that polls in vain does so at one of WAITS_MAX waits. On a busy machine it takes
time from other processes. The system lets them have the processor in between, which a late look tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")

# Polling begins after this number of waits in a row that have ended soon: a pair of requests is no stream of them.
WAITS_MIN = 4
# The most waits between two times of polling, if none of many has found anything.
WAITS_MAX = 1024
# The least waits until it polls, once another process has had the processor meanwhile.
WAITS_OF_BUSY = 256
# A wait has ended soon if it took at most this number of times as long as polling may. Both sides have slept then.
SOON_TIMES = 4


class BusyPolling:
    """Polls for ``seconds`` at most at a time, while that finds something; never if that is 0.

    Attributes:
        is_due: Whether the next wait polls, by ``search``. Call ``slept`` after every other wait.
    """

    __slots__ = ("_soon", "_waits", "_waits_left", "is_due", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.is_due = False
        self._soon = SOON_TIMES * seconds
        self._waits = WAITS_MIN  # until it polls, once it has polled in vain
        self._waits_left = WAITS_MIN  # until it polls

    def slept(self, seconds: float) -> None:
        """Notes a wait without polling that has ended after ``seconds``."""
        if seconds <= self._soon:
            self._waits_left -= 1
            self.is_due = self._waits_left <= 0 < self.seconds
        else:
            self._waits_left = max(self._waits_left, WAITS_MIN)

    def search(self, look: Callable[[], Sequence[_T]], clock: Callable[[], float], until: float) -> Sequence[_T]:
        """Looks until it finds something, or ``clock`` has come to ``until``; at least once. Returns the found."""
        while not (found := look()):
            if clock() >= until:
                break
        if clock() > until + self.seconds:
            self._pause(max(self._waits, WAITS_OF_BUSY))
        elif not found:
            self._pause(self._waits)
        elif self._waits > WAITS_MIN:
            self._waits //= 2
        return found

    def _pause(self, waits: int) -> None:
        """Polls no more for a number of waits."""
        self.is_due = False
        self._waits_left = waits
        self._waits = min(2 * waits, WAITS_MAX)
