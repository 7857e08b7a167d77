"""Finds damage that no program has met yet: a node has to know that it cannot read its copy before it comes to lead.

    look    of every segment: is its file there, and as long as it was?    a system call each; no byte is read
    sums    of one segment after the other: do its bytes have its checksum?    ``rate`` bytes a second, again and again

Segments are pinned meanwhile, so that a compaction does not remove their files. What clients report is checked at once,
and by damage_checks.py.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import trio

from tailrace.errors import Overloaded
from tailrace_server.host.randomness import fraction
from tailrace_server.partition.chain import LostSegment
from tailrace_server.segment import FileSum, Segment, SegmentDamaged

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.host.disk import Disk
    from tailrace_server.partition.chain import Pins
    from tailrace_server.partition.partition import Partition
    from tailrace_server.runtime.host import Host

log = logging.getLogger("tailrace.server")

# The seconds between two looks at the files, if no failover asks for one.
LOOK_SECONDS = 30.0
# The bytes of one read.
READ_BYTES = 1024 * 1024
# The segments of one look in a thread: some milliseconds of system calls.
_LOOK_TOGETHER = 512


class CheckStatistics(NamedTuple):
    """The bytes that were compared with checksums since the start, and the passes over all segments that have ended."""

    checked_bytes: int
    check_passes: int


class SegmentChecks:
    """The checks of a node's segments. Only its own methods change its fields."""

    def __init__(
        self,
        host: Host,
        catalog: Catalog,
        pins: Pins,
        rate: int,
        pause_s: float,
        damages: Container[str],
        on_damage: Callable[[SegmentDamaged], None],
    ) -> None:
        """Checks nothing yet.

        Args:
            host: the environment of the node.
            catalog: the feeds whose segments are checked.
            pins: the segments that are being read.
            rate: bytes a second that are compared with checksums; 0: none.
            pause_s: the seconds between two passes.
            damages: the paths of segments that are known to be damaged.
            on_damage: is told of others.
        """
        self._host = host
        self._catalog = catalog
        self._pins = pins
        self._rate = rate
        self._pause_s = pause_s
        self._rate_changed = trio.Event()
        self._damages = damages
        self._on_damage = on_damage
        self._wanted = trio.Event()
        self._ended = trio.Event()  # set when the next look that begins has ended
        self._checked_bytes = self._passes = 0

    def statistics(self) -> CheckStatistics:
        """Returns counts for status."""
        return CheckStatistics(self._checked_bytes, self._passes)

    def set_rate(self, rate: int, pause_s: float) -> None:
        """Changes the rate from the next segment on, and the pause after the pass that is under way."""
        self._rate, self._pause_s = rate, pause_s
        self._rate_changed.set()

    async def run(self) -> None:
        """Checks until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._check_sums)
            while True:
                with trio.move_on_after(LOOK_SECONDS):
                    await self._wanted.wait()
                self._wanted, ended, self._ended = trio.Event(), self._ended, trio.Event()
                await self._look()
                ended.set()

    async def looked(self, seconds: float) -> None:
        """Returns once all files were looked at after this call, or after ``seconds``: a disk may hang."""
        self._wanted.set()
        ended = self._ended
        with trio.move_on_after(seconds):
            await ended.wait()

    async def _look(self) -> None:
        some: list[Segment] = []
        for partition in list(self._catalog.partitions()):
            some += self._unharmed(partition)
            if len(some) >= _LOOK_TOGETHER:
                await self._look_at(some)
                some = []
        await self._look_at(some)

    async def _look_at(self, segments: Sequence[Segment]) -> None:
        """Looks at the files of segments that are in their chains now."""
        for segment in segments:
            self._pins.pin(segment)
        try:
            found = await self._host.workers.in_own_thread(lambda: _changed(self._host.disk, segments))
        finally:
            for segment in segments:
                self._pins.unpin(segment)
        for segment, why in found:
            self._on_damage(SegmentDamaged(segment.path, 0, why))

    def _unharmed(self, partition: Partition) -> list[Segment]:
        """Returns the segments of a partition of which no damage was told."""
        if partition.is_dropped:
            return []
        return [
            segment
            for segment in partition.chain.segments
            if segment.path not in self._damages and not isinstance(segment, LostSegment)
        ]

    # Checksums

    async def _check_sums(self) -> None:
        # A node that is restarted often has to come to all of them, too.
        share = fraction(self._host.randomness)
        while True:
            await self._rate_is_set()
            partitions = list(self._catalog.partitions())
            begin = int(share * len(partitions))
            share = 0.0
            for partition in itertools.chain(partitions[begin:], partitions[:begin]):
                for segment in self._unharmed(partition):
                    if segment in partition.chain.segments:  # it may have left meanwhile, and its file is gone then
                        await self._check_sum(partition, segment)
            self._passes += 1
            await trio.sleep(self._pause_s)

    async def _rate_is_set(self) -> None:
        """Waits while no bytes are to be compared."""
        while not self._rate:
            self._rate_changed = trio.Event()
            await self._rate_changed.wait()

    async def _check_sum(self, partition: Partition, segment: Segment) -> None:
        """Reads a segment whole, unless its file is to be removed meanwhile."""
        file_sum = FileSum(segment)
        self._pins.pin(segment)
        try:
            while not (file_sum.is_done or partition.is_dropped or self._pins.is_retired(segment)):
                nbytes = await self._host.workers.in_thread(partial(file_sum.read, READ_BYTES))
                self._checked_bytes += nbytes
                await trio.sleep(nbytes / self._rate if self._rate else 0)
                await self._rate_is_set()
        except SegmentDamaged as error:
            self._on_damage(error)
        except Overloaded as error:  # of descriptors; the next pass comes to it again
            log.info("%s was not checked: %s", segment.path, error)
        finally:
            self._pins.unpin(segment)


def _changed(disk: Disk, segments: Sequence[Segment]) -> list[tuple[Segment, str]]:
    """Returns the segments whose file is gone or has another length, and why."""
    return [(segment, why) for segment in segments if (why := _why_changed(disk, segment))]


def _why_changed(disk: Disk, segment: Segment) -> str:
    try:
        nbytes = disk.size_of(segment.path)
    except OSError as error:
        return f"it cannot be opened: {error.strerror}"
    return "" if nbytes == segment.nbytes else f"it has {nbytes} bytes, and was written with {segment.nbytes}"
