"""Time, as an object that the node is given: a simulator hands over its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must never be mixed: one for timestamps, one for durations."""

    def wall_us(self) -> int:
        """Returns microseconds since 1970 UTC. May jump; of data it decides only when a key expires."""
        ...

    def monotonic(self) -> float:
        """Returns seconds since some moment; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    # The function itself: each write reads this clock five times, and a method around it would take longer.
    monotonic = staticmethod(time.monotonic)

    def wall_us(self) -> int:
        return time.time_ns() // 1000
