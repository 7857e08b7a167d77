"""How far writers may go on while a long journal is flushed, so that a start never has to read much more. Pure.

    replay   2.1 s  long: what the oldest file waits for is flushed, a partition after the other
       |            each flush lets writers add their share of what is left to
       v     3.5 s  full: nothing is added until more is flushed

A flush of thousands of partitions takes tens of seconds. If writers are faster it slows them down evenly, instead of
stopping them at its end.
"""

from __future__ import annotations

# A journal may grow by this share of its bound while it is flushed.
GROWTH_SHARE = 2 / 3


class Pace:
    """For one look at what is due: ``count`` flushes, with a journal that costs a start ``replay_s`` now.

    ``bound_s`` is from where on it is long. Costs here are seconds of a start.
    """

    def __init__(self, replay_s: float, bound_s: float, count: int) -> None:
        self._share_s = max(bound_s * (1 + GROWTH_SHARE) - replay_s, 0.0) / count
        # Writers begin with one share: they may go on while the first flush is under way.
        self.allowed_s = replay_s + self._share_s

    def flushed(self, count: int = 1) -> None:
        """So many flushes are over, whether they succeeded or not."""
        self.allowed_s += count * self._share_s
