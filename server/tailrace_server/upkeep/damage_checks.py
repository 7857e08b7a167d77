"""Checks the segments that have come damaged to a client, so that status knows of damage that no read of the node met.

    reported ──> waiting ──> read whole, at CHECK_BYTES_PER_SECOND ── as its checksum says: nothing
                                                                   └─ otherwise: damaged, in status

A report may be wrong, or about damage on the way. So only the file itself decides, and a client cannot make the node
read without end: one file is read at a time, and none again within CHECKED_SECONDS.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Container, Iterable
from functools import partial

import trio

from tailrace.errors import TailraceError
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import FileSum, Segment, SegmentDamaged

log = logging.getLogger("tailrace.server")

# A check leaves most of a disk to others: a segment of a GiB takes 32 s.
CHECK_BYTES_PER_SECOND = 32 * 1024 * 1024
READ_BYTES = 1024 * 1024
# A segment is checked once in so many seconds, and so many are checked in that time. Further reports have no effect.
CHECKED_SECONDS = 600.0
CHECKS_MAX = 256


class DamageChecks:
    """The checks of a node. ``run`` does them, one after the other."""

    def __init__(
        self, host: Host, pins: Pins, damages: Container[str], on_damage: Callable[[SegmentDamaged], None]
    ) -> None:
        """``damages`` has the paths of segments that are known to be damaged; ``on_damage`` is told of others."""
        self._host = host
        self._pins = pins
        self._damages = damages
        self._on_damage = on_damage
        self._waiting: collections.deque[Segment] = collections.deque()  # pinned
        self._reading: Segment | None = None  # pinned
        self._is_over = False  # the segment that is being read need not be read further
        self._reported: dict[str, float] = {}  # when (monotonic) a path was reported, the oldest first
        self._wanted = trio.Event()

    def reported(self, segments: Iterable[Segment]) -> None:
        """Has ``segments``, of which a client has got wrong bytes, checked."""
        now = self._host.clock.monotonic()
        while self._reported and next(iter(self._reported.values())) <= now - CHECKED_SECONDS:
            del self._reported[next(iter(self._reported))]
        for segment in segments:
            path = segment.path
            is_needless = path in self._damages or path in self._reported or self._pins.is_retired(segment)
            if is_needless or len(self._reported) >= CHECKS_MAX:
                continue
            log.warning("a client has got wrong bytes of %s: it is checked", path)
            self._reported[path] = now
            self._pins.pin(segment)
            self._waiting.append(segment)
        if self._waiting:
            self._wanted.set()

    def forget(self, partition: Partition) -> None:
        """Checks no segment of a partition of a feed that was dropped: its files are to be removed."""
        if self._reading is not None and _is_of(self._reading, partition):
            self._is_over = True
        for segment in [segment for segment in self._waiting if _is_of(segment, partition)]:
            self._waiting.remove(segment)
            self._pins.unpin(segment)

    async def run(self) -> None:
        """Checks the reported segments until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._waiting:
                await self._check(self._waiting.popleft())

    async def _check(self, segment: Segment) -> None:
        """Reads a segment whole, unless it leaves its chain meanwhile, and unpins it."""
        self._reading, self._is_over = segment, False
        file_sum = FileSum(segment)
        try:
            while not (file_sum.is_done or self._is_over or self._pins.is_retired(segment)):
                nbytes = await self._host.workers.in_thread(partial(file_sum.read, READ_BYTES))
                await trio.sleep(nbytes / CHECK_BYTES_PER_SECOND)
        except SegmentDamaged as error:
            self._on_damage(error)
        except TailraceError as error:  # no descriptor is free
            log.warning("%s cannot be checked: %s", segment.path, error)
        finally:
            self._reading = None
            self._pins.unpin(segment)


def _is_of(segment: Segment, partition: Partition) -> bool:
    return (segment.identity.feed_id, segment.identity.partition) == (partition.feed_id, partition.id)
