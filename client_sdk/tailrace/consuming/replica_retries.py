"""The pauses after which a replica asks again for a partition that has failed. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.link.backoff import backoff_seconds

# Partitions that go on failing are asked for about so often a second, all of a connection together. A request that
# fails takes both nodes about 0.2 ms.
RETRIES_PER_SECOND = 100
# The failures of a partition after which that bound holds: most failures have ended by then.
PROMPT_TRIES = 4


class ReplicaRetries:
    """Counts the failures of each partition of a feed; ``jitter`` returns a number from 0 to 1, to spread retries."""

    def __init__(self, jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        # Failures by partition since its last complete run. STREAM_OK does not reset the count, because a damaged
        # segment is read up to the damage each time.
        self._failures: dict[int, int] = {}

    def failed(self, partition: int, waiting: int) -> float:
        """Counts a failure. Returns the seconds until the partition is asked for again.

        They grow with each failure. If thousands of partitions of the connection go on failing, they grow with the
        number of requests that are ``waiting`` for their time.
        """
        tries = self._failures[partition] = self._failures.get(partition, 0) + 1
        pause_s = backoff_seconds(tries, self._jitter)
        if tries > PROMPT_TRIES:
            pause_s = max(pause_s, waiting / RETRIES_PER_SECOND * (0.5 + 0.5 * self._jitter()))
        return pause_s

    def completed(self, partition: int) -> None:
        """Forgets the failures of a partition, of which a run is complete."""
        self._failures.pop(partition, None)
