"""Time, as an object that the node is given: a simulator hands over its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks that must never be mixed: one to stamp with, one to measure with."""

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC. May jump; decides nothing about data."""
        ...

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def wall_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
