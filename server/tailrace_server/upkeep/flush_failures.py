"""The failures of flushes: which partitions have a pause after one, until when, and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from tailrace.errors import TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace_server.host.randomness import fraction
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host

# The longest time until a failed flush of a partition is tried again: space may have been freed.
PAUSE_SECONDS_MAX = 5.0


async def error_of(step: Callable[[], Awaitable[object]], partition: Partition | None = None) -> str:
    """Does ``step``. Returns its error; "" if it succeeded, or if ``partition`` was dropped meanwhile."""
    try:
        await step()
    except (OSError, TailraceError) as error:
        if partition is None or not partition.is_dropped:
            return str(error)
    return ""


class FlushFailures:
    """The partitions whose last flush has failed. Only its own methods change its fields."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._failed: dict[Partition, tuple[int, float, str]] = {}  # count, end of the pause (monotonic), and error

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._failed

    @property
    def first(self) -> str:
        """The error of one partition; "" if no flush has failed."""
        return next((why for _, _, why in self._failed.values()), "")

    def note(self, partition: Partition, why: str) -> None:
        """Notes the end of a flush, which has failed with ``why``, or succeeded ("")."""
        if not why:
            self._failed.pop(partition, None)
            return
        tries = self._failed[partition][0] + 1 if partition in self._failed else 1
        pause = min(backoff_seconds(tries, lambda: fraction(self._host.randomness)), PAUSE_SECONDS_MAX)
        self._failed[partition] = tries, self._host.clock.monotonic() + pause, why

    def due(self, now: float) -> Iterator[Partition]:
        """Yields the partitions whose pause has ended at ``now``."""
        return (partition for partition, (_, until, _) in self._failed.items() if now >= until)

    def forget(self, partition: Partition) -> None:
        """Forgets a partition that was dropped."""
        self._failed.pop(partition, None)
