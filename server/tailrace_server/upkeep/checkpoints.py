"""The checkpoints of partitions, whose segments clients copy as files.

    take ── flush of stable rows ── chain, log, seqs of one moment ── its segments pinned ──> PartitionCheckpoint
    find ── renews the checkpoint, and returns one of its segments

A compaction that replaces a kept segment leaves its file on the disk until the checkpoint is released or expires. A
restart keeps no checkpoint: its client asks for another one.
"""

from __future__ import annotations

import collections
import itertools
import logging
from collections.abc import Iterable
from typing import NamedTuple

import trio

from tailrace.errors import BadSegment, NotDurable, Overloaded, TailraceError, UnknownCheckpoint, UnknownFeed
from tailrace.model import Level
from tailrace.wire.segment_messages import CHECKPOINT_ID_BYTES, CheckpointFile, PartitionCheckpoint
from tailrace_server.config import Limits
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment
from tailrace_server.state import last_batches
from tailrace_server.upkeep.flushed_segment import flushable_seq
from tailrace_server.upkeep.flusher import Flusher

log = logging.getLogger("tailrace.server")


class Asked(NamedTuple):
    """The copy that asks for checkpoints of a partition: it needs the last one only."""

    asker: bytes
    feed_id: bytes
    partition: int


class KeptCheckpoint(NamedTuple):
    """A checkpoint whose segments are pinned until ``until`` (monotonic seconds).

    ``connected_at`` (the same) is when the connection was opened by which it was asked for.
    """

    id: bytes
    feed_id: bytes
    segments: dict[bytes, Segment]
    until: float
    asked: Asked | None
    connected_at: float


class Checkpoints:
    """Takes checkpoints of the partitions of a node, and keeps their files. Its owner calls ``expire`` now and then."""

    def __init__(self, host: Host, pins: Pins, flusher: Flusher, limits: Limits) -> None:
        self._host = host
        self._pins = pins
        self._flusher = flusher
        self._limits = limits
        self._kept: dict[bytes, KeptCheckpoint] = {}  # by id, the least recently used one first
        self._asked: dict[Asked, bytes] = {}  # the id of the kept checkpoint of each copy
        # Flushes for checkpoints: one of a partition at a time, and when (monotonic) the last one began.
        self._flushing: collections.defaultdict[Partition, trio.Lock] = collections.defaultdict(trio.Lock)
        self._flushed_at: dict[Partition, float] = {}

    def __len__(self) -> int:
        """Returns how many checkpoints are kept."""
        return len(self._kept)

    @property
    def replaced_bytes(self) -> int:
        """The bytes of the segments that have left their chains, and that are on the disk for checkpoints."""
        return sum(
            segment.nbytes for segment in {segment for kept in self._kept.values() for segment in self._replaced(kept)}
        )

    async def take(
        self,
        partition: Partition,
        level: Level,
        *,
        flush: bool = False,
        with_state: bool = False,
        asker: bytes = b"",
        connected_at: float = 0.0,
    ) -> PartitionCheckpoint:
        """Returns the checkpoint of ``partition``, whose files are kept from now on.

        With ``flush`` the rows that are stable now are flushed first. If the disk refuses, the checkpoint ends
        earlier. An earlier checkpoint of the same partition and ``asker`` is released: its answer was lost.
        ``connected_at`` is when (monotonic) the connection of the request was opened.

        Raises:
            UnknownCheckpoint: the asker has a checkpoint by a later connection; this request was given up.
            Overloaded: the node keeps as many checkpoints as it may.
            NotDurable: the segments do not have ``level`` yet.
            SegmentDamaged: a segment cannot be read.
            UnknownFeed: the feed was dropped meanwhile.
        """
        if flush:
            try:
                await self._flush(partition)
            finally:
                if partition.is_dropped:  # during the flush, after `forget`
                    self.forget(partition)
        _require(partition)
        if partition.visible_seq(level) < partition.flushed_seq:
            raise NotDurable(
                f"partition {partition.id} is flushed up to seq {partition.flushed_seq}, and level "
                f"{level.name.lower()} has come to {partition.visible_seq(level)}: ask again"
            )
        asked = Asked(asker, partition.feed_id, partition.id) if asker else None
        kept = self._keep(partition.feed_id, partition.chain.segments, asked, connected_at)
        try:
            described = await self._describe(partition, kept, with_state=with_state)
            _require(partition)
        except BaseException:
            self.release(kept.id)
            raise
        return described

    def keep(self, feed_id: bytes, segments: Iterable[Segment]) -> bytes:
        """Keeps ``segments`` of a feed as those of a checkpoint are kept. Returns the checkpoint's id. Overloaded."""
        return self._keep(feed_id, segments).id

    def keeps(self, checkpoint_id: bytes) -> bool:
        """Returns whether the files of a checkpoint are still kept."""
        return checkpoint_id in self._kept

    def _keep(
        self, feed_id: bytes, chosen: Iterable[Segment], asked: Asked | None = None, connected_at: float = 0.0
    ) -> KeptCheckpoint:
        """Pins the segments. Raises UnknownCheckpoint, Overloaded."""
        self._release_old()
        if asked is not None and asked in self._asked:
            earlier = self._kept[self._asked[asked]]
            if earlier.connected_at > connected_at:  # a frame that came late, by a link that is cut for the asker
                raise UnknownCheckpoint("the same copy has asked again by a later connection: its checkpoint is kept")
            self.release(earlier.id)
        if len(self._kept) >= self._limits.checkpoints_max:
            raise Overloaded(f"this node keeps the files of {len(self._kept)} checkpoints already: ask again later")
        segments = {segment.identity.segment_id: segment for segment in chosen}
        until = self._host.clock.monotonic() + self._limits.checkpoint_kept_s
        id = self._host.randomness.token(CHECKPOINT_ID_BYTES)
        kept = KeptCheckpoint(id, feed_id, segments, until, asked, connected_at)
        for segment in segments.values():
            self._pins.pin(segment)
        self._kept[id] = kept
        if asked is not None:
            self._asked[asked] = id
        return kept

    async def _describe(self, partition: Partition, kept: KeptCheckpoint, *, with_state: bool) -> PartitionCheckpoint:
        """Describes the partition as it is now. Nothing of it may change before the first wait."""
        seq, now = partition.flushed_seq, self._host.clock.monotonic()
        described = PartitionCheckpoint(
            kept.id,
            self._limits.checkpoint_kept_s,
            partition.feed_id,
            partition.id,
            seq,
            partition.purge_seq,
            partition.trim_seq,
            partition.log,
            (),
        )
        producers = partition.producers.copy() if with_state else None
        sinks = last_batches.to_json(partition.sinks.as_of(seq)) if with_state else None

        def complete() -> PartitionCheckpoint:  # reads 16 bytes of each file; 10,000 producers take 50 ms
            told = None if producers is None else producers_to_json(producers, seq, now)
            segments = tuple(map(_file_of, kept.segments.values()))
            return described._replace(segments=segments, producers=told, sinks=sinks)

        # The checkpoint may be released meanwhile: its feed is dropped, or the same copy asks again.
        for segment in kept.segments.values():
            self._pins.pin(segment)
        try:
            return await self._host.workers.in_thread(complete)
        finally:
            for segment in kept.segments.values():
                self._pins.unpin(segment)

    async def _flush(self, partition: Partition) -> None:
        """Flushes the rows that are stable now, at most once in ``checkpoint_flush_s`` seconds; waits until it may."""
        came_at = self._host.clock.monotonic()
        async with self._flushing[partition]:
            last_at = self._flushed_at.get(partition)
            if last_at is not None:
                if last_at > came_at:  # another request's flush took all that was there when this one came
                    return
                wait_s = last_at + self._limits.checkpoint_flush_s - self._host.clock.monotonic()
                await trio.sleep(max(wait_s, 0.0))
            if not partition.tree.block_count:
                return
            began_at, seq = self._host.clock.monotonic(), flushable_seq(partition)
            try:
                # A segment has a bound, so one flush may not take them all.
                while await self._flusher.flush(partition) is not None and partition.flushed_seq < seq:
                    pass
            except (OSError, TailraceError) as error:  # on a full disk a client may still copy the segments
                log.warning("partition %s is not flushed for a checkpoint: %s", partition.id, error)
            # Not before: a flush that was cancelled, because its client has gone, serves no other request.
            self._flushed_at[partition] = began_at

    def find(self, checkpoint_id: bytes, segment_id: bytes) -> Segment:
        """Returns a segment of a checkpoint, which is kept for longer from now on.

        Raises UnknownCheckpoint if the checkpoint is not kept, BadSegment if it does not have the segment.
        """
        kept = self._kept.pop(checkpoint_id, None)
        if kept is None:
            raise UnknownCheckpoint(
                f"checkpoint {checkpoint_id.hex()} is not kept here: it was not used for "
                f"{self._limits.checkpoint_kept_s:g} s, or the node restarted; ask for another one"
            )
        until = self._host.clock.monotonic() + self._limits.checkpoint_kept_s
        self._kept[checkpoint_id] = kept._replace(until=until)
        segment = kept.segments.get(segment_id)
        if segment is None:
            raise BadSegment(f"checkpoint {checkpoint_id.hex()} has no segment {segment_id.hex()}")
        return segment

    def named(self, checkpoint_id: bytes, segment_ids: Iterable[bytes]) -> list[Segment]:
        """Returns those of ``segment_ids`` that a checkpoint has; none if it is not kept."""
        kept = self._kept.get(checkpoint_id)
        return [] if kept is None else [kept.segments[id] for id in segment_ids if id in kept.segments]

    def release(self, checkpoint_id: bytes) -> None:
        """Keeps the files of a checkpoint no longer. Does nothing if it is not kept."""
        kept = self._kept.pop(checkpoint_id, None)
        if kept is not None:
            if kept.asked is not None:
                del self._asked[kept.asked]
            for segment in kept.segments.values():
                self._pins.unpin(segment)

    def release_feed(self, feed_id: bytes) -> None:
        """Releases the checkpoints of a feed that was dropped: its directory is to be removed."""
        self._release_all(kept for kept in self._kept.values() if kept.feed_id == feed_id)

    def release_replaced(self) -> None:
        """Releases the checkpoints that keep replaced segments on the disk, because it is nearly full."""
        self._release_all(kept for kept in self._kept.values() if self._replaced(kept))

    def forget(self, partition: Partition) -> None:
        """Forgets the flushes of a partition of a feed that was dropped."""
        self._flushing.pop(partition, None)
        self._flushed_at.pop(partition, None)

    def expire(self) -> None:
        """Releases checkpoints that were not used for their time, and the oldest if they keep too many bytes."""
        self._release_old()
        keepers = collections.Counter(segment for kept in self._kept.values() for segment in self._replaced(kept))
        surplus = sum(segment.nbytes for segment in keepers) - self._limits.checkpoint_kept_bytes_max
        if surplus <= 0:
            return
        log.warning("checkpoints keep %s replaced segments: those that were not used for longest end", len(keepers))
        for kept in list(self._kept.values()):
            replaced = self._replaced(kept)
            if surplus > 0 and replaced:
                self.release(kept.id)
                keepers.subtract(replaced)
                surplus -= sum(segment.nbytes for segment in replaced if not keepers[segment])

    def _release_old(self) -> None:
        """Releases the checkpoints whose time is over: the first ones."""
        now = self._host.clock.monotonic()
        self._release_all(list(itertools.takewhile(lambda kept: kept.until <= now, self._kept.values())))

    def _replaced(self, kept: KeptCheckpoint) -> list[Segment]:
        return [segment for segment in kept.segments.values() if self._pins.is_retired(segment)]

    def _release_all(self, chosen: Iterable[KeptCheckpoint]) -> None:
        for kept in list(chosen):
            self.release(kept.id)


def _require(partition: Partition) -> None:
    """Raises UnknownFeed if the feed was dropped."""
    if partition.is_dropped:
        raise UnknownFeed(f"partition {partition.id} is of feed {partition.feed_id.hex()}, which was dropped")


def _file_of(segment: Segment) -> CheckpointFile:
    """Returns a segment's file as a checkpoint names it. SegmentDamaged."""
    identity = segment.identity
    return CheckpointFile(
        identity.segment_id, segment.nbytes, segment.read_checksum(), identity.after_seq + 1, identity.last_seq
    )
