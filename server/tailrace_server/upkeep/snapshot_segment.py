"""Writes a snapshot that a follower gets to a segment of its own, past journal and tree.

    SNAPSHOT_START, not complete ── begin     blocks ── add, flow     SNAPSHOT_END ── finish ──> manifest

The snapshot is a run of seqs without the rows that are superseded further up in it. So it is there whole or not at all:
no row of it is shown, acknowledged or kept before the manifest names its segment. After a crash the next start removes
an unnamed file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.errors import BadBlock, TailraceError, UnknownFeed
from tailrace.model.failover import FailoverLog
from tailrace_server.blocks import cut_above
from tailrace_server.partition.replica_apply import check_replica, entries_through
from tailrace_server.segment import NO_BASE, Segment, SegmentIdentity, SegmentWriter

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.upkeep.storage import Storage

# The bytes gathered before ``add`` writes them itself, which stops the loop for a few milliseconds.
GATHERED_BYTES_MAX = 8 * 1024 * 1024
_NO_BRANCH = bytes(16)


class SnapshotSegment:
    """The segment of one run of one partition: (``after_seq``, ``last_seq``].

    It is begun after ``flusher.flush_all``: all of the partition is flushed.
    """

    def __init__(
        self,
        storage: Storage,
        partition: Partition,
        after_seq: int,
        last_seq: int,
        purge_seq: int,
        included_ids: tuple[bytes, ...] = (),
    ) -> None:
        """``purge_seq`` is the leader's. The tree of ``partition`` is empty, ``after_seq`` its high seq.

        ``included_ids`` are segments of the leader whose rows are here after this one.
        """
        assert after_seq == partition.high_seq == partition.flushed_seq, "a snapshot begins at the end of the segments"
        self.after_seq, self.last_seq = after_seq, last_seq
        self._storage = storage
        self._partition = partition
        self._rollbacks = partition.rollbacks
        self._purge_seq = purge_seq
        self._included_ids = included_ids
        self._seq = after_seq
        self._first_row_seq = 0
        self._timestamp = partition.held_timestamp
        self._gathered: list[Block] = []
        self._gathered_bytes = 0
        self._segment_id = storage.host.randomness.token(16)
        self._path = storage.store.segment_path(partition.feed_id, partition.id, self._segment_id)
        self._writer: SegmentWriter | None = None
        self._is_over = False

    def add(self, block: Block) -> None:
        """Adds the next block of the run; cuts off rows that are there already.

        Raises BadBlock if the block does not fit, NoSpace and OSError if the disk refuses: call ``abandon`` then.
        """
        header = block.header
        if header.last_seq <= self._seq or header.last_seq > self.last_seq:
            raise BadBlock(
                f"seqs {header.first_seq} to {header.last_seq} are not in the rest of the run, ({self._seq}, "
                f"{self.last_seq}]"
            )
        block = cut_above(block, self._seq)
        check_replica(self._partition, block, self._seq)
        if block.header.timestamp < self._timestamp:
            raise BadBlock(f"timestamp {block.header.timestamp} comes before {self._timestamp}, of seq {self._seq}")
        self._first_row_seq = self._first_row_seq or block.header.first_seq
        self._seq, self._timestamp = block.header.last_seq, block.header.timestamp
        self._gathered.append(block)
        self._gathered_bytes += block.nbytes
        if self._gathered_bytes >= GATHERED_BYTES_MAX:
            self._write(self._take_gathered())

    def extend(self, last_seq: int, purge_seq: int) -> None:
        """Takes over a higher end of the run, and the leader's newer purge seq, when the run is announced again."""
        self.last_seq = max(self.last_seq, last_seq)
        self._purge_seq = max(self._purge_seq, purge_seq)

    async def flow(self) -> None:
        """Writes the gathered blocks in a thread. Raises NoSpace, OSError."""
        blocks = self._take_gathered()
        if blocks:
            await self._storage.host.workers.in_thread(lambda: self._write(blocks))

    async def finish(self, log: FailoverLog) -> None:
        """Makes the whole run a part of the partition, durably, with the leader's ``log``.

        Raises UnknownFeed, NoSpace, NotDurable, OSError: the partition is unchanged.
        """
        storage, partition = self._storage, self._partition
        blocks = self._take_gathered()
        held = entries_through(log, self.last_seq)
        try:
            await storage.all_durable()
            # Otherwise only the journal would hold the creation of the feed, and so of the segment.
            await storage.flusher.write_feeds()
            if not partition.has_manifest:
                await storage.installer.write(partition)
            segment = await storage.host.workers.in_thread(lambda: self._finish(blocks, held))
            try:
                await self._install(segment, held)
            except BaseException:
                segment.close()
                raise
        except BaseException:
            self.abandon()
            storage.installer.orphan(partition, self._path)
            raise
        self._is_over = True
        storage.flusher.on_flushed(partition)

    async def _install(self, segment: Segment, held: FailoverLog) -> None:
        partition = self._partition
        if partition.is_dropped:
            raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
        if partition.rollbacks != self._rollbacks or partition.high_seq != self.after_seq:
            raise TailraceError(f"partition {partition.id} has moved to seq {partition.high_seq} while it was filled")
        await self._storage.installer.install_snapshot(
            partition,
            segment,
            held,
            purge_seq=min(self._purge_seq, self.last_seq),
            trim_seq=self._trim_seq(),
        )

    def _trim_seq(self) -> int:
        """Returns the seq up to which a history was trimmed: none of its rows is superseded."""
        if self._storage.feeds.of_id(self._partition.feed_id).info.retention != "history":
            return 0
        first_seq = self._first_row_seq or self.last_seq + 1
        return first_seq - 1 if first_seq > self.after_seq + 1 else 0

    def abandon(self) -> None:
        """Removes the file; does nothing after ``finish``. May be called again."""
        if self._writer is not None and not self._is_over:
            self._writer.abandon()
        self._is_over = True
        self._gathered.clear()

    def _take_gathered(self) -> list[Block]:
        blocks, self._gathered, self._gathered_bytes = self._gathered, [], 0
        return blocks

    def _write(self, blocks: list[Block]) -> None:
        if self._writer is None:
            self._storage.store.make_partition(self._partition.feed_id, self._partition.id)
            self._writer = SegmentWriter(self._storage.host.disk, self._path, self._identity())
        self._writer.settle(last_seq=self.last_seq, purge_seq=min(self._purge_seq, self.last_seq))
        for block in blocks:
            self._writer.add(block)

    def _finish(self, blocks: list[Block], held: FailoverLog) -> Segment:
        self._write(blocks)
        assert self._writer is not None
        self._writer.settle(branch=held.branch_at(self.last_seq))
        self._writer.finish()
        return Segment.open(self._storage.store.segment_files, self._path)

    def _identity(self) -> SegmentIdentity:
        partition = self._partition
        segments = partition.chain.segments
        return SegmentIdentity(
            feed_id=partition.feed_id,
            partition=partition.id,
            branch=_NO_BRANCH,  # until `finish`
            segment_id=self._segment_id,
            base_id=segments[-1].identity.segment_id if segments else NO_BASE,
            included_ids=self._included_ids,
            is_major=not segments,
            deduplicated=True,
            after_seq=self.after_seq,
            last_seq=self.last_seq,
            purge_seq=min(self._purge_seq, self.last_seq),
        )
