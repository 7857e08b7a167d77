"""How fast a compaction reads and writes: a token bucket on monotonic time.

    tokens   flow in at ``rate`` bytes a second, up to what a tenth of a second brings
    take     bytes are done first and paid then: below 0 the caller waits until it is 0 again

Paying later keeps pieces of any size possible, and the mean is the rate just the same.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# While writes wait for the disk: a small share of what an SSD takes; reading included, 1 GB is folded in three minutes.
RATE_WHILE_WRITES_WAIT = 20_000_000
_BURST_SECONDS = 0.1


class TokenBucket:
    """The arithmetic, pure. ``rate`` is in bytes a second, 0: free; times are in seconds, and never fall."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = rate * _BURST_SECONDS
        self._now = now

    def set_rate(self, rate: int, now: float) -> None:
        """From ``now`` on at this rate; what is owed is still owed."""
        self._flow(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * _BURST_SECONDS)

    def take(self, nbytes: int, now: float) -> None:
        """``nbytes`` have been read or written."""
        self._flow(now)
        self._tokens -= nbytes

    def wait_seconds(self, now: float) -> float:
        """How long from ``now`` on nothing more may be done; 0 where it may."""
        self._flow(now)
        return max(0.0, -self._tokens / self._rate) if self._rate else 0.0

    def _flow(self, now: float) -> None:
        if self._rate:
            self._tokens = min(self._tokens + (now - self._now) * self._rate, self._rate * _BURST_SECONDS)
        else:  # whoever is free owes nothing
            self._tokens = 0.0
        self._now = now


class Limiter:
    """A bucket that makes the thread that takes wait, while another one may change the rate.

    An instance is what a compaction takes as ``on_bytes``.
    """

    def __init__(self, rate: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._bucket = TokenBucket(rate, monotonic())
        self._changed = threading.Condition()

    def set_rate(self, rate: int) -> None:
        """Another rate in bytes a second, 0: free. Who waits now counts anew."""
        with self._changed:
            self._bucket.set_rate(rate, self._monotonic())
            self._changed.notify_all()

    def __call__(self, nbytes: int) -> None:
        """``nbytes`` have been read or written; returns when the next may be."""
        with self._changed:
            self._bucket.take(nbytes, self._monotonic())
            while wait := self._bucket.wait_seconds(self._monotonic()):
                self._changed.wait(wait)
