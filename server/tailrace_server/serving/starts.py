"""Finds where a stream since a time begins, by what this node knows of the times besides the stamps of rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tailrace_server.partition.partition import Partition
from tailrace_server.segment import SegmentDamaged
from tailrace_server.state.ahead import JUMP_US_MAX, PartitionPlace, is_ahead
from tailrace_server.stream.since import (
    DroppedBefore,
    StreamStart,
    checked_start,
    find_start,
    find_start_in,
    start_behind,
)

if TYPE_CHECKING:
    from tailrace_server.serving.services import Services


async def start_since(node: Services, partition: Partition, since_us: int) -> StreamStart:
    """Returns the start of a stream since ``since_us``, by a thread if a segment has it. DataGone, SegmentDamaged."""
    found = find_start(partition, since_us)
    if isinstance(found, StreamStart):
        return checked(node, partition, found, since_us)
    node.storage.pins.pin(found)
    try:
        start = await node.host.workers.in_thread(partial(find_start_in, found, since_us))
    except SegmentDamaged as error:
        node.storage.found_damage(error)
        raise
    finally:
        node.storage.pins.unpin(found)
    return checked(node, partition, start, since_us)


def checked(node: Services, partition: Partition, start: StreamStart, since_us: int) -> StreamStart:
    """Returns ``start``, or a later place at which the stream has all rows since the time. Raises DataGone."""
    start = start_behind(partition, start, _seen_seq(node, partition, since_us))
    return checked_start(partition, start, since_us, _dropped_before(node, partition))


def _seen_seq(node: Services, partition: Partition, since_us: int) -> int:
    """Up to which seq this node has seen a partition before ``since_us``, if the partition's stamps do not tell.

    Stamps do not tell if they lie ahead of the clock. 0 if they tell, if nothing was seen, and for a time to come.
    """
    wall_us = node.clock.wall_us()
    if since_us > wall_us or not is_ahead(partition.last_timestamp, wall_us):
        return 0
    place = PartitionPlace(partition.feed_id, partition.id)
    return min(node.storage.compactor.uptime.ahead.seq_before(place, partition.log, since_us), partition.flushed_seq)


def _dropped_before(node: Services, partition: Partition) -> DroppedBefore:
    """Returns upper bounds of the timestamps of rows that were dropped for their age.

    An age counts only the time for which the node was up, so no row that is younger by the wall clock was dropped. The
    clock may have been wrong by an hour. If a stamp is later than that, it was wrong by more, and there is no bound.
    """
    wall_us = node.clock.wall_us()
    if is_ahead(partition.last_timestamp, wall_us):
        return DroppedBefore()
    feed = node.feeds.of_id(partition.feed_id)
    info, floors = feed.info, feed.floors
    purged_us = max(wall_us - int(info.tombstone_age_s * 1e6), floors.purged_us)
    bounds = DroppedBefore(purged_us + JUMP_US_MAX)
    if info.history_bytes is None and (info.history_age_s is not None or floors.trimmed_us):
        age_us = None if info.history_age_s is None else int(info.history_age_s * 1e6)
        trimmed_us = max(floors.trimmed_us, 0 if age_us is None else wall_us - age_us)
        bounds = bounds._replace(trimmed_before_us=trimmed_us + JUMP_US_MAX)
    return bounds
