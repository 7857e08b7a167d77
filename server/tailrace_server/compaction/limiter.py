"""Limits the rate of a compaction: a token bucket on monotonic time.

    tokens   are added at ``rate`` bytes a second, up to those of a tenth of a second
    take     tokens are taken after the bytes: below 0 the caller waits until they are 0 again

So a piece may have any size, and the mean is still the rate.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The rate while writes wait for the disk: a small share of an SSD's. With reading, 1 GB takes three minutes.
RATE_WHILE_WRITES_WAIT = 20_000_000
_BURST_SECONDS = 0.1


class TokenBucket:
    """The arithmetic, pure. ``rate`` is in bytes a second, 0: no limit. Times are in seconds, and never fall."""

    def __init__(self, rate: int, now: float) -> None:
        self._rate = rate
        self._tokens = rate * _BURST_SECONDS
        self._now = now

    def set_rate(self, rate: int, now: float) -> None:
        """Changes the rate from ``now`` on. Negative tokens stay."""
        self._flow(now)
        self._rate = rate
        self._tokens = min(self._tokens, rate * _BURST_SECONDS)

    def take(self, nbytes: int, now: float) -> None:
        """Takes tokens for ``nbytes`` that were read or written."""
        self._flow(now)
        self._tokens -= nbytes

    def wait_seconds(self, now: float) -> float:
        """Returns the seconds to wait from ``now`` on before more bytes; 0 for none."""
        self._flow(now)
        return max(0.0, -self._tokens / self._rate) if self._rate else 0.0

    def _flow(self, now: float) -> None:
        if self._rate:
            self._tokens = min(self._tokens + (now - self._now) * self._rate, self._rate * _BURST_SECONDS)
        else:  # without a limit no tokens are owed
            self._tokens = 0.0
        self._now = now


class Limiter:
    """A bucket that blocks the thread that takes, while another thread may change the rate.

    A compaction takes an instance as ``on_bytes``.
    """

    def __init__(self, rate: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._bucket = TokenBucket(rate, monotonic())
        self._changed = threading.Condition()

    def set_rate(self, rate: int) -> None:
        """Changes the rate in bytes a second, 0: no limit. A waiting thread computes its time again."""
        with self._changed:
            self._bucket.set_rate(rate, self._monotonic())
            self._changed.notify_all()

    def __call__(self, nbytes: int) -> None:
        """Counts ``nbytes`` that were read or written, and blocks until more are permitted."""
        with self._changed:
            self._bucket.take(nbytes, self._monotonic())
            while wait := self._bucket.wait_seconds(self._monotonic()):
                self._changed.wait(wait)
