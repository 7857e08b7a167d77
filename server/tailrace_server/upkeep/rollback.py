"""Rolling a partition back to where its history and another one have parted.

    segments (0, 80] (80, 150]   tree 151..170       R = 120
    stays    (0, 80] (80, 120]                       stands at 120
    or       (0, 80]                                 stands at 80, where (80, 150] is deduplicated

A node may have acknowledged what it has flushed, and must hold it on: of a segment that R lies in, what is below goes
into a segment of its own. Of a deduplicated one rows are missing that were superseded further up in it: nobody can
stand inside of it, and it goes whole. What went below R with it may have counted for a majority, so a member of a set
owes that from then on (`on_shortfall`, replication/debts.py); likewise if it goes back to 0 with nothing in common.
A block of the tree that R lies in was merged, here or by a leader, of such that were acknowledged: it is flushed first,
and its segment cut.

1. What is above R goes to lost/, durably: blocks of the tree, and segments that end above it.
2. ROLLED_BACK is journaled, and the running node's partition changes, in one step. The record is durable before
   anything of another history is written, and before a manifest drops a segment.
3. The manifest. A crash before it is durable is made good by the start, from the record: it cuts the segment anew.
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

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.upkeep.storage import Storage

log = logging.getLogger("tailrace.server")

# Called before a partition goes back below (term, seq), which this node may have acknowledged.
OnShortfall = Callable[["Partition", int, int], None]


class Point(NamedTuple):
    """Where a partition stands after a rollback, and with which segments; ``cut`` is to be cut at ``seq``."""

    seq: int
    chain: Chain
    cut: Segment | None = None


def point_below(partition: Partition, seq: int) -> Point:
    """The last point at or below ``seq`` where ``partition`` can stand.

    In a segment that has all its rows that is ``seq``; else the end of a block or of a segment, or 0.
    """
    if seq >= partition.high_seq:
        return Point(partition.high_seq, partition.chain)
    if seq < partition.flushed_seq:
        chain, cut = partition.chain.through(seq), straddling(partition.chain, seq)
        return Point(chain.flushed_seq if cut is None else seq, chain, cut)
    block = partition.tree.find(seq + 1)
    assert block is not None, "what is not flushed is in the tree"
    below = block.seqs[0] - 1
    run = partition.published.around(below)
    return Point(below if run is None else run.after_seq, partition.chain)


def acknowledged(partition: Partition, seq: int, log_left: FailoverLog) -> tuple[int, int]:
    """Returns (term, seq) up to which ``partition``, which goes back to ``seq``, may have counted for a majority.

    That is ``seq``, the last one in common with the leader. If they have no branch in common, so that ``log_left`` is
    empty, that says nothing: the leader's log may have dropped the branches that both had, or it has purged or trimmed
    what this copy would need. Then all that is durable here may have counted.
    """
    if log_left and seq:
        return entries_through(log_left, seq).term, seq
    return partition.standing()


async def roll_back(
    storage: Storage, partition: Partition, seq: int, log_left: FailoverLog, on_shortfall: OnShortfall
) -> int:
    """Takes ``partition`` back to ``seq`` or below; returns where it stands then, durably, with what is above in lost/.

    ``log_left`` is its failover log from then on, of which entries above that point are left out. Its streams end. The
    caller is the only one who writes to it. Raises NoSpace, OSError: it is what it was, or rolled back and to be called
    again; NotDurable, UnknownFeed.
    """
    block = partition.tree.find(seq + 1)
    if block is not None and block.seqs[0] <= seq:
        await storage.flusher.flush_through(partition, block.seqs[1])
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
            _stand(storage, partition, point, log_left)
        except BaseException:
            for segment in point.chain.segments[kept:]:  # that was made just now
                segment.close()
                storage.installer.orphan(partition, segment.path)
            raise
        await storage.all_durable()
        if dropped:
            try:
                await storage.installer.write_held(partition)
            except BaseException:
                for segment in dropped:  # the manifest on disk may name them
                    storage.installer.orphan(partition, segment.path)
                raise
            storage.pins.retire(dropped)
    return point.seq


async def _cut(storage: Storage, partition: Partition, point: Point, whole: Segment, log_left: FailoverLog) -> Point:
    """``point`` with what is below it of ``whole`` as a segment, which nobody names yet.

    Where that cannot be read it goes whole, and its rows come again from the leader. NoSpace, OSError.
    """
    id = storage.host.randomness.token(16)
    branch = (entries_through(log_left, point.seq) or partition.log).branch_at(point.seq)
    # The journal's blocks will be void: without its FEED the next start would look at no segment.
    await storage.flusher.write_feeds()
    try:
        segment = await storage.host.workers.in_thread(
            lambda: cut_segment(storage.host.disk, storage.store, whole, point.seq, branch, id)
        )
    except (SegmentDamaged, BadBlock) as error:
        log.error("%s cannot be cut at seq %s, and goes whole: %s", whole.path, point.seq, error)
        return Point(point.chain.flushed_seq, point.chain)
    return Point(point.seq, Chain((*point.chain.segments, segment)))


def _stand(storage: Storage, partition: Partition, point: Point, log_left: FailoverLog) -> None:
    """The one step that counts, on the loop."""
    rollbacks = partition.rollbacks + 1
    held = entries_through(log_left, point.seq) if log_left or not point.seq else log_left
    producers = producers_to_json(partition.producers, point.seq, storage.host.clock.monotonic())
    payload = RollbackRecord(point.seq, held, rollbacks, producers).encode()
    place = storage.journal.append(RecordKind.ROLLED_BACK, partition.feed_id, partition.id, payload)
    partition.roll_back_to(point.seq, point.chain, held, rollbacks, storage.journal.file_of(place))
    partition.end_history()  # of streams that were opened meanwhile


def _time_name(wall_us: int) -> str:
    return f"{datetime.datetime.fromtimestamp(wall_us / 1e6, datetime.UTC):%Y%m%d-%H%M%S}"


def _keep(
    storage: Storage, name: str, partition: Partition, seq: int, blocks: Sequence[Block], segments: Sequence[Segment]
) -> None:
    """Puts what goes, above ``seq``, into lost/, durably. NoSpace, OSError."""
    disk, data = storage.host.disk, storage.data
    lost = Lost(disk, data, name, is_dry=False)
    why = "rolled back: the leader has another history"
    place = partition.feed_id, partition.id
    rows = sum(block.rows for block in blocks)
    try:
        for segment in segments:
            first_seq, last_seq = max(segment.identity.after_seq, seq) + 1, segment.identity.last_seq
            gone = min(segment.identity.rows, last_seq - first_seq + 1)  # of one that is cut all rows are there
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
        *(partition.id, partition.feed_id.hex(), rows, os.path.relpath(lost.directory, data)),
    )
