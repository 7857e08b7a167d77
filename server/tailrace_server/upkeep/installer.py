"""The installer: changes a partition's manifest and the chain of its segments. Nothing else changes them.

    segment: written, fsynced, renamed, its directory fsynced
    manifest that names it: durable                        <- from here on the chain has changed
    chain and tree of the running node
    journal files that only the old chain needed, replaced segments: may go

A crash between any two steps leaves the old chain or the new one; a segment that no manifest names is removed at the
next start. Source: docs/formats/manifest.md.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import trio

from tailrace.errors import NoSpace, Overloaded, TailraceError, UnknownFeed
from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.host.disk import Disk
from tailrace_server.manifest import Manifest, ManifestStore, SegmentEntry, entry_of, producers_to_json
from tailrace_server.manifest.invariants import PLACEMENTS_MAX, SEGMENTS_MAX
from tailrace_server.manifest.producers import NO_PRODUCERS
from tailrace_server.partition.chain import Chain, Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment
from tailrace_server.state.last_batches import LastBatches

log = logging.getLogger("tailrace.server")


class ReceivedEnd(NamedTuple):
    """The state of a partition at the end of rows that another node has sent; ``seq`` is the last one."""

    seq: int
    log: FailoverLog
    rollbacks: int
    purge_seq: int
    trim_seq: int


class Installer:
    """Changes manifests and chains. Changes of one partition take turns; partitions do not wait for each other."""

    def __init__(
        self, host: Host, store: ManifestStore, placement_id: bytes, pins: Pins, made_seq: Callable[[], int]
    ) -> None:
        """``made_seq`` is `Catalog.made_seq`."""
        self._host = host
        self._made_seq = made_seq
        self._store = store
        self._placement_id = placement_id
        self._pins = pins
        self.installs = 0  # manifests that were written
        self._orphans: collections.defaultdict[Partition, list[str]] = collections.defaultdict(list)
        # Segments that have left their chain, which the manifest on disk may still name.
        self._left: collections.defaultdict[Partition, list[Segment]] = collections.defaultdict(list)
        self._unsure: set[Partition] = set()  # the manifest on disk is perhaps of another chain than the partition's
        self._locks: collections.defaultdict[Partition, trio.Lock] = collections.defaultdict(trio.Lock)

    async def add(self, partition: Partition, segment: Segment, rollbacks: int | None = None) -> None:
        """Appends a flushed segment to the chain. OSError, NoSpace: nothing has changed.

        ``rollbacks``, here and below, is `Partition.rollbacks` at the begin of the work, or None if it cannot have
        changed. Raises RolledBack if it has changed.
        """
        async with self.holding(partition):
            check_history(partition, rollbacks)
            await self._install(partition, partition.chain.with_flushed(segment))

    async def install_snapshot(
        self, partition: Partition, segment: Segment, log: FailoverLog, *, purge_seq: int, trim_seq: int
    ) -> None:
        """Appends the segment of a snapshot, which was never in the tree; the failover log becomes ``log``.

        OSError, NoSpace: nothing has changed.
        """
        async with self.holding(partition):
            chain = partition.chain.with_flushed(segment)
            purge_seq, trim_seq = max(partition.purge_seq, purge_seq), max(partition.trim_seq, trim_seq)
            end = ReceivedEnd(chain.flushed_seq, log, partition.rollbacks, purge_seq, trim_seq)
            await self._install_received(partition, chain, end)

    async def install_chain_held(self, partition: Partition, chain: Chain, end: ReceivedEnd) -> None:
        """Puts ``chain``, which another node has sent, in the place of all segments and blocks, inside of ``holding``.

        The tables that the partition expects as of ``end.seq`` become its own. OSError, NoSpace: nothing has changed.
        """
        named = {segment.path for segment in chain.segments}  # a damaged file was replaced at its path
        left = [segment for segment in partition.chain.segments if segment.path not in named]
        await self._install_received(partition, chain, end)
        self._pins.retire(left)

    async def _install_received(self, partition: Partition, chain: Chain, end: ReceivedEnd) -> None:
        """Installs ``chain``, which has rows that were never in the tree."""
        try:
            await self._install(partition, chain, received=end)
        except (OSError, NoSpace):
            # The manifest on disk may be the new one. Its rows would hide blocks that are journaled from now on.
            await self._restore(partition)
            raise

    async def _restore(self, partition: Partition) -> None:
        """Writes the manifest of the partition as it is over one that is perhaps on the disk."""
        try:
            with trio.CancelScope(shield=True):
                await self._install(partition, partition.chain)
        except (OSError, TailraceError) as error:
            self._unsure.add(partition)
            log.error("partition %s of feed %s: %s", partition.id, partition.feed_id.hex(), error)

    def is_unsure(self, partition: Partition) -> bool:
        """Returns whether the manifest on disk is perhaps of another chain than the partition's."""
        return partition in self._unsure

    async def settle(self, partition: Partition) -> None:
        """Writes the manifest if the one on disk is perhaps of another chain. OSError, NoSpace.

        Call it before rows are written to a partition of a follower.
        """
        if partition in self._unsure:
            await self.write(partition)

    async def install_compacted(
        self, partition: Partition, folded: Sequence[Segment], result: Segment, rollbacks: int | None = None
    ) -> None:
        """Puts the result of a compaction in the place of its input. OSError, NoSpace: nothing has changed."""
        async with self.holding(partition):
            check_history(partition, rollbacks)
            chain = partition.chain.with_compacted(folded, result)
            await self._install(partition, chain, purge_seq=result.identity.purge_seq)
        self._pins.retire(folded)

    async def drop_oldest(self, partition: Partition, count: int, rollbacks: int | None = None) -> None:
        """Drops the oldest segments of a feed that bounds its history."""
        async with self.holding(partition):
            check_history(partition, rollbacks)
            dropped = partition.chain.segments[:count]
            chain = partition.chain.without_oldest(count)
            await self._install(partition, chain, trim_seq=dropped[-1].identity.last_seq)
        self._pins.retire(dropped)

    async def write(self, partition: Partition) -> None:
        """Writes the manifest of the partition as it is, so that the journal need not keep its control records."""
        async with self.holding(partition):
            await self._install(partition, partition.chain)

    @contextlib.asynccontextmanager
    async def holding(self, partition: Partition) -> AsyncIterator[None]:
        """Keeps all others from changing the partition's manifest or chain while the body runs."""
        try:
            async with self._locks[partition]:
                yield
        finally:
            if partition.is_dropped:  # nothing of it is written any more, also by tasks that wait
                self._locks.pop(partition, None)
                self._orphans.pop(partition, None)
                self._unsure.discard(partition)
                self._pins.retire(self._left.pop(partition, ()))

    async def write_held(self, partition: Partition) -> None:
        """Writes as ``write``, inside of ``holding``."""
        await self._install(partition, partition.chain)

    async def _install(
        self,
        partition: Partition,
        chain: Chain,
        *,
        purge_seq: int = 0,
        trim_seq: int = 0,
        received: ReceivedEnd | None = None,
    ) -> None:
        if partition.is_dropped:
            raise UnknownFeed(f"partition {partition.id} is of feed {partition.feed_id.hex()}, which was dropped")
        if len(chain.segments) > SEGMENTS_MAX:
            raise Overloaded(f"partition {partition.id} of feed {partition.feed_id.hex()} has {SEGMENTS_MAX} segments")
        purge_seq, trim_seq = max(partition.purge_seq, purge_seq), max(partition.trim_seq, trim_seq)
        controls = partition.journal_references.controls
        manifest = manifest_of(partition, chain, self._placement_id)._replace(purge_seq=purge_seq, trim_seq=trim_seq)
        table = partition.producers
        if received is not None:
            manifest = with_received(partition, manifest, chain, received)
            expected = partition.expected.producers_at(received.seq)
            table = table if expected is None else expected
        manifest = self._with_made(partition, manifest, received)
        producers, now = table.copy(), self._host.clock.monotonic()

        def write() -> None:
            made = producers_to_json(producers, manifest.flushed_seq, now)  # 0.2 s with 10,000 producers
            self._store.write(manifest._replace(producers=made))

        await self._host.workers.in_thread(write)
        self.installs += 1
        self._unsure.discard(partition)
        if received is None:
            partition.install(chain, controls, purge_seq=purge_seq, trim_seq=trim_seq)
        else:
            partition.install_received(chain, controls, *received)
        named = {segment.path for segment in chain.segments}
        self._pins.retire(segment for segment in self._left.pop(partition, ()) if segment.path not in named)
        orphans = [path for path in self._orphans.pop(partition, ()) if path not in named]
        if orphans:
            # The chain has changed: a cancellation here would tell the caller that it has not.
            with trio.CancelScope(shield=True):
                await self._host.workers.in_thread(lambda: _remove(self._host.disk, orphans))

    def _with_made(self, partition: Partition, manifest: Manifest, received: ReceivedEnd | None) -> Manifest:
        """Returns the manifest with the seq of ``_feeds`` up to which the feeds are made. Others have none."""
        if partition.feed_id != SYSTEM_FEED_ID:
            return manifest
        made_seq = self._made_seq()
        if received is not None:  # its rows are not here yet
            made_seq = min(made_seq, partition.high_seq)
        return manifest._replace(made_seq=SEQ_MAX if made_seq >= manifest.flushed_seq else made_seq)

    def orphan(self, partition: Partition, path: str) -> None:
        """Notes a segment whose installation has failed. The manifest on disk may name it all the same.

        The segment is removed when a later manifest, which does not name it, is durable.
        """
        if not partition.is_dropped:  # else its directory is removed as a whole
            self._orphans[partition].append(path)

    def left(self, partition: Partition, segments: Sequence[Segment]) -> None:
        """Notes that ``segments`` have left the running node's chain.

        They retire when a manifest without them is durable. Until then a start may need their files. Those of a dropped
        feed retire at once.
        """
        if partition.is_dropped:
            self._pins.retire(segments)
        elif segments:
            self._left[partition] += segments
            self._unsure.add(partition)

    async def forget(self, partition: Partition) -> None:
        """Waits until nothing of a dropped partition is written any more."""
        async with self.holding(partition):
            pass


class RolledBack(TailraceError):
    """The partition was rolled back while a segment or a manifest of it was made."""


def check_history(partition: Partition, rollbacks: int | None) -> None:
    """Raises RolledBack if ``partition`` has been rolled back, or got another chain, since it had this count."""
    if rollbacks is not None and rollbacks != partition.rollbacks:
        raise RolledBack(f"partition {partition.id} of feed {partition.feed_id.hex()} was rolled back meanwhile")


def manifest_of(partition: Partition, chain: Chain, placement_id: bytes) -> Manifest:
    """Returns the manifest of ``partition`` with ``chain`` as its segments, without its producers."""
    flushed_seq = max(chain.flushed_seq, partition.flushed_seq)
    return Manifest(
        feed_id=partition.feed_id,
        partition=partition.id,
        hash_first=partition.hash_first,
        hash_last=partition.hash_last,
        state="leader",
        segments=entries_of(chain.segments, partition.pushes.placements),
        flushed_seq=flushed_seq,
        purge_seq=partition.purge_seq,
        trim_seq=partition.trim_seq,
        log=partition.log,
        placement_id=placement_id,
        last_timestamp=partition.last_timestamp,
        producers=NO_PRODUCERS,
        sinks=partition.sinks.as_of(flushed_seq),
        rollbacks=partition.rollbacks,
    )


def with_received(partition: Partition, manifest: Manifest, chain: Chain, end: ReceivedEnd) -> Manifest:
    """Returns ``manifest`` with the end of a received chain, and the last batches that are expected there."""
    sinks = LastBatches()
    sinks.tell(manifest.sinks)
    sinks.tell(partition.expected.sinks_at(end.seq))
    return manifest._replace(
        flushed_seq=end.seq,
        purge_seq=end.purge_seq,
        trim_seq=end.trim_seq,
        log=end.log,
        rollbacks=end.rollbacks,
        last_timestamp=max(manifest.last_timestamp, chain.newest_timestamp),
        sinks=sinks.as_of(end.seq),
    )


def entries_of(
    segments: Iterable[Segment], placements: Mapping[bytes, Collection[bytes]] = MappingProxyType({})
) -> tuple[SegmentEntry, ...]:
    """Returns the manifest's entries of segments. ``placements`` are those that have acknowledged them, by id."""
    return tuple(
        entry_of(
            segment.identity, segment.nbytes, sorted(placements.get(segment.identity.segment_id, ()))[:PLACEMENTS_MAX]
        )
        for segment in segments
    )


def _remove(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # the next start removes the rest
            if disk.exists(path):
                disk.remove_large(path)
