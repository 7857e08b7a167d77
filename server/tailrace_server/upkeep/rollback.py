"""Rolls a partition back to the point at which its history and the leader's have parted.

    segments (0, 80] (80, 150]   tree 151..170       R = 120
    stays    (0, 80] (80, 120]                       stands at 120
    or       (0, 80]                                 stands at 80, if (80, 150] is deduplicated

A node may have acknowledged its flushed rows, and must keep those up to R. If R lies inside of a segment, the rows up
to R get a segment of their own. A deduplicated segment lacks rows that are superseded further up in it, so a partition
cannot stand inside of it, and the whole segment is dropped. Its rows up to R may have counted for a majority: a member
of a set owes them from then on (`on_shortfall`, replication/debts.py). The same holds if the partition goes back to 0
because the two have nothing in common. If R lies inside of a block of the tree, that block was merged, here or by a
leader, from acknowledged ones: it is flushed first, and its segment cut.

1. Blocks of the tree above R, and segments that end above R, are put into lost/, durably.
2. ROLLED_BACK is journaled, and the running node's partition changes, in one step. The record is durable before
   anything of another history is written, and before a manifest drops a segment.
3. The manifest is written. After a crash before it is durable, the start cuts the segment again, by the record.
"""

from __future__ import annotations

import datetime
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block import Block
from tailrace.errors import BadBlock, UnknownFeed
from tailrace.model.failover import FailoverLog
from tailrace_server.directory.lost import Lost
from tailrace_server.host.disk import raise_if_no_space
from tailrace_server.journal import RecordKind
from tailrace_server.journal.controls import RollbackRecord
from tailrace_server.manifest.producers import producers_to_json
from tailrace_server.partition.chain import Chain
from tailrace_server.partition.cutting import cut_segment, straddling
from tailrace_server.partition.replica_apply import entries_through
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.upkeep.flushed_segment import divided_at

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.upkeep.storage import Storage

log = logging.getLogger("tailrace.server")

# Called before a partition goes back below (term, seq), which this node may have acknowledged.
OnShortfall = Callable[["Partition", int, int], None]


class Point(NamedTuple):
    """The seq and the segments of a partition after a rollback; ``cut`` is to be cut at ``seq``."""

    seq: int
    chain: Chain
    cut: Segment | None = None


def point_below(partition: Partition, seq: int) -> Point:
    """Returns the last point at or below ``seq`` at which ``partition`` can stand.

    Inside of a segment that has all its rows this is ``seq``; otherwise the end of a block or of a segment, or 0.
    """
    if seq >= partition.high_seq:
        return Point(partition.high_seq, partition.chain)
    if seq < partition.flushed_seq:
        chain, cut = partition.chain.through(seq), straddling(partition.chain, seq)
        return Point(chain.flushed_seq if cut is None else seq, chain, cut)
    block = partition.tree.find(seq + 1)
    assert block is not None, "an unflushed seq is in the tree"
    below = block.seqs[0] - 1
    run = partition.published.around(below)
    return Point(below if run is None else run.after_seq, partition.chain)


def acknowledged(partition: Partition, seq: int, log_left: FailoverLog) -> tuple[int, int]:
    """Returns (term, seq) up to which ``partition``, which goes back to ``seq``, may have counted for a majority.

    That is ``seq``, the last one in common with the leader. If ``log_left`` is empty, they have no branch in common,
    which proves nothing: the leader's log may have dropped the common branches, or the leader has purged or trimmed
    rows that this copy would need. Then all durable rows here may have counted.
    """
    if log_left and seq:
        return entries_through(log_left, seq).term, seq
    return partition.standing()


async def roll_back(
    storage: Storage, partition: Partition, seq: int, log_left: FailoverLog, on_shortfall: OnShortfall
) -> int:
    """Rolls ``partition`` back to ``seq`` or below, durably. Returns the seq reached; rows above it are in lost/.

    ``log_left`` becomes its failover log, without entries above that seq. The streams of the partition end. The caller
    is its only writer. Raises NoSpace, OSError: the partition is unchanged, or it is rolled back and this is to be
    called again; NotDurable, UnknownFeed.
    """
    # A manifest that was not installed has the same count of rollbacks as this one: a start could not tell them apart.
    await storage.installer.settle(partition)
    with divided_at(partition, seq):
        return await _roll_back(storage, partition, seq, log_left, on_shortfall)


async def roll_back_to_common(storage: Storage, partition: Partition, seq: int, on_shortfall: OnShortfall) -> int:
    """Rolls back to ``seq``, the last one in common with another node, or below. Returns and raises as `roll_back`.

    The log keeps the branches that hold rows at or below ``seq``, else its oldest, which stands for the others.
    """
    left = [entry for entry in partition.log if entry.base < seq]
    if seq and not left:
        left = list(partition.log[-1:])
    return await roll_back(storage, partition, seq, FailoverLog(left), on_shortfall)


async def _roll_back(
    storage: Storage, partition: Partition, seq: int, log_left: FailoverLog, on_shortfall: OnShortfall
) -> int:
    block = partition.tree.find(seq + 1)
    if block is not None and block.seqs[0] <= seq:
        run = partition.published.around(block.seqs[1])  # a flush does not divide it
        await storage.flusher.flush_through(partition, block.seqs[1] if run is None else run.last_seq)
    async with storage.installer.holding(partition):
        await storage.all_durable()
        if partition.is_dropped:
            raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
        partition.end_history()
        point = point_below(partition, seq)
        blocks = list(partition.tree.blocks_after(max(point.seq, partition.flushed_seq)))
        kept = len(point.chain.segments)
        dropped = partition.chain.segments[kept:]
        if point.cut is not None:
            point = await _cut(storage, partition, point, point.cut, log_left)
        try:
            term, owed_seq = acknowledged(partition, seq, log_left)
            if point.seq < min(owed_seq, partition.high_seq):
                on_shortfall(partition, term, owed_seq)
            if blocks or dropped:
                name = f"{_time_name(storage.host.clock.wall_us())}-{storage.host.randomness.token(4).hex()}"
                await storage.host.workers.in_thread(
                    lambda: _keep(storage, name, partition, point.seq, blocks, dropped)
                )
            if not point.seq:
                storage.begun_anew.left(partition, partition.high_seq)
            _stand(storage, partition, point, log_left)
        except BaseException:
            for segment in point.chain.segments[kept:]:  # the one made by _cut
                segment.close()
                storage.installer.orphan(partition, segment.path)
            raise
        storage.installer.left(partition, dropped)
        await storage.all_durable()
        if dropped:
            await storage.installer.write_held(partition)
    return point.seq


async def _cut(storage: Storage, partition: Partition, point: Point, whole: Segment, log_left: FailoverLog) -> Point:
    """Returns ``point`` with the part of ``whole`` below it as a segment, which no manifest names yet.

    If ``whole`` cannot be read, all of it is dropped, and its rows come again from the leader. NoSpace, OSError.
    """
    id = storage.host.randomness.token(16)
    branch = (entries_through(log_left, point.seq) or partition.log).branch_at(point.seq)
    # The journal's blocks will be void: without its FEED the next start would ignore the segments.
    await storage.flusher.write_feeds()
    try:
        segment = await storage.host.workers.in_thread(
            lambda: cut_segment(storage.host.disk, storage.store, whole, point.seq, branch, id)
        )
    except (SegmentDamaged, BadBlock) as error:
        log.error("%s cannot be cut at seq %s, so all of it is dropped: %s", whole.path, point.seq, error)
        return Point(point.chain.flushed_seq, point.chain)
    return Point(point.seq, Chain((*point.chain.segments, segment)))


def _stand(storage: Storage, partition: Partition, point: Point, log_left: FailoverLog) -> None:
    """Journals the rollback and changes the partition: one step, on the loop."""
    rollbacks = partition.rollbacks + 1
    held = entries_through(log_left, point.seq) if log_left or not point.seq else log_left
    producers = producers_to_json(partition.producers, point.seq, storage.host.clock.monotonic())
    payload = RollbackRecord(point.seq, held, rollbacks, producers).encode()
    place = storage.journal.append(RecordKind.ROLLED_BACK, partition.feed_id, partition.id, payload)
    partition.roll_back_to(point.seq, point.chain, held, rollbacks, storage.journal.file_of(place))
    partition.end_history()  # for streams that were opened meanwhile


def _time_name(wall_us: int) -> str:
    return f"{datetime.datetime.fromtimestamp(wall_us / 1e6, datetime.UTC):%Y%m%d-%H%M%S}"


def _keep(
    storage: Storage, name: str, partition: Partition, seq: int, blocks: Sequence[Block], segments: Sequence[Segment]
) -> None:
    """Puts the dropped rows above ``seq`` into lost/, durably. NoSpace, OSError."""
    disk, data = storage.host.disk, storage.data
    lost = Lost(disk, data, name, is_dry=False)
    why = "rolled back: the leader has another history"
    place = partition.feed_id, partition.id
    rows = sum(block.rows for block in blocks)
    try:
        for segment in segments:
            first_seq, last_seq = max(segment.identity.after_seq, seq) + 1, segment.identity.last_seq
            gone = min(segment.identity.rows, last_seq - first_seq + 1)  # a segment that is cut has all its rows
            rows += gone
            lost.rows(*place, first_seq, last_seq, source=segment.path, rows=gone, why=why)
            if disk.exists(segment.path):
                lost.link(segment.path)
        for block in blocks:
            lost.export(*place, block, why)
        lost.sync()
    except OSError as error:
        raise_if_no_space(error, f"in {lost.directory}")
        raise
    finally:
        lost.close()
    log.warning(
        "partition %s of feed %s is rolled back: %s rows went to %s",
        *(partition.id, partition.feed_name, rows, os.path.relpath(lost.directory, data)),
    )
