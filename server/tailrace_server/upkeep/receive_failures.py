"""The partitions that cannot take a segment of their leader at present, and when each of them tries again.

A failure is its partition's alone: the others go on. A partition tries again after a pause that grows with each failure
in a row, because a large segment may have to be sent again for each try. Status tells of all of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from tailrace.errors import BadBlock, BadSegment, NoSpace
from tailrace_server.segment import SegmentDamaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.host.clock import Clock
    from tailrace_server.partition.partition import Partition

log = logging.getLogger("tailrace.server")

# The pause in seconds after the second failure in a row; it doubles with each further one, up to the second number.
# After the first failure the leader's own pause is enough.
PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0


class ReceiveFailure(NamedTuple):
    """The last failure of a partition: the count in a row, the end of the pause (monotonic), and the error."""

    tries: int
    until: float
    why: str


class ReceiveFailures:
    """The failures of a node's partitions. A node has one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[Partition, ReceiveFailure] = {}

    def __iter__(self) -> Iterator[tuple[Partition, str]]:
        """Yields each partition that fails, and why and for how long; the one that began first comes first."""
        for partition, failure in self._failures.items():
            yield partition, f"{failure.why} (failure {failure.tries} in a row)"

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._failures

    def failed(self, partition: Partition, error: Exception) -> str:
        """Notes a failure. Logs it if it is another one than the last. Returns the error, and what to do."""
        before = self._failures.get(partition)
        tries = 1 if before is None else before.tries + 1
        pause = 0.0 if tries == 1 else min(PAUSE_SECONDS * 2.0 ** min(tries - 2, 16), PAUSE_SECONDS_MAX)
        why = f"{error}" or type(error).__name__
        advice = _advice(error)
        if (before is None or before.why != why) and not partition.is_dropped:
            log.error(
                "partition %s of feed %s cannot take a segment of the leader: %s; it is tried again, and the other "
                "partitions go on. %s",
                *(partition.id, partition.feed_name, why, advice),
            )
        if not partition.is_dropped:
            self._failures[partition] = ReceiveFailure(tries, self._clock.monotonic() + pause, why)
        return f"{why}. {advice}"

    def why_not_yet(self, partition: Partition) -> str:
        """Returns why no segment is taken before the pause has passed; "" if one may come."""
        failure = self._failures.get(partition)
        if failure is None or self._clock.monotonic() >= failure.until:
            return ""
        return f"the last try has failed, and the next one comes after a pause: {failure.why}"

    def succeeded(self, partition: Partition) -> None:
        """Notes that ``partition`` has taken a segment, needs none, or that its feed was dropped."""
        self._failures.pop(partition, None)


def _advice(error: Exception) -> str:
    """Returns what an operator can do if the failure stays."""
    match error:
        case NoSpace():
            return "Free space on this node's disk."
        case BadSegment() | BadBlock() | SegmentDamaged():
            return "If it stays, run `tailrace verify` on the leader's directory and on this one."
        case OSError():
            return "If it stays, check this node's disk."
        case _:
            return "If it stays, restart this node; report the error in its log."
