"""Bounds the writes while a long journal is flushed, so that a start never has to read much more. Pure.

    replay   2.1 s  long: the queues that need the oldest file are flushed, one partition after the other
       |            each flush permits writers an equal share of the rest up to
       v     3.5 s  full: writers wait until more is flushed

A flush of thousands of partitions takes tens of seconds. If writers are faster it slows them down evenly, instead of
stopping them at its end.
"""

from __future__ import annotations

# A journal may grow by this share of its bound while it is flushed.
GROWTH_SHARE = 2 / 3


class Pace:
    """The pace during ``count`` due flushes, with a journal that costs a start ``replay_s`` now.

    Above ``bound_s`` the journal is long. Costs are seconds of a start.
    """

    def __init__(self, replay_s: float, bound_s: float, count: int) -> None:
        self._share_s = max(bound_s * (1 + GROWTH_SHARE) - replay_s, 0.0) / count
        # Writers begin with one share, for the time of the first flush.
        self.allowed_s = replay_s + self._share_s

    def flushed(self, count: int = 1) -> None:
        """Notes that ``count`` flushes have ended, with or without success."""
        self.allowed_s += count * self._share_s
