"""Computes the pause before the next try, and the earliest of several. Pure."""

from __future__ import annotations

from collections.abc import Callable
from random import random

FIRST_SECONDS = 0.02  # a node that restarts in place is back within a second: the first tries are cheap and soon
SECONDS_MAX = 2.0  # an outage of hours costs a try every two seconds
RECONNECT_GROWTH = 1.5  # so a node that is back is found within half of the time for which it was gone


def backoff_seconds(tries: int, jitter: Callable[[], float] = random, growth: float = 2.0) -> float:
    """Returns the seconds to wait after ``tries`` failures in a row (1 or more): growing, capped, jittered by half.

    Each pause is ``growth`` times the one before. The jitter spreads clients that failed together. ``jitter`` returns a
    number from 0 to 1.
    """
    seconds: float = min(FIRST_SECONDS * growth ** min(tries - 1, 16), SECONDS_MAX)
    return seconds * (0.5 + 0.5 * jitter())


def earliest(*times: float | None) -> float | None:
    """Returns the first of these times; None if there is none."""
    return min((time for time in times if time is not None), default=None)
