"""Partitions whose write queue moves to segments on a disk in memory, without tasks and without manifests."""

from __future__ import annotations

import itertools

from tests.memory_disk import MemoryDisk

from tailrace.block import encode_block
from tailrace.model.failover import FailoverEntry
from tailrace_server.compaction.task import CompactionTask
from tailrace_server.compaction.worker import compact
from tailrace_server.manifest import segment_name
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.writing import write_block
from tailrace_server.segment import Segment
from tailrace_server.upkeep.flushed_segment import identity_of, write_segment

FEED_ID = b"f" * 16
# A few rows, so that small segments have several blocks.
BLOCK_BYTES = 64


class FakeJournal:
    """Keeps blocks, each with its number for a place; all of them are in file 1."""

    def __init__(self):
        self.blocks = []
        self.begun = []  # the numbers of blocks at which the disk began to write
        self.error = None

    def append_block(self, feed_id, partition, branch, block, snapshot=(0, 0)):
        if self.error is not None:
            raise self.error
        self.blocks.append((branch, block))
        return len(self.blocks)

    def begin_sync(self):
        self.begun.append(len(self.blocks))

    @staticmethod
    def file_of(place):
        return 1


class TakingPartition:
    """A partition that takes a producer's blocks of one row, with its index kept level."""

    def __init__(self):
        self.partition = Partition(FEED_ID, 0, 0, 2**64 - 1)
        self.partition.log = self.partition.log.with_entry(FailoverEntry(b"u" * 16, 1, 0))
        self.journal = FakeJournal()
        self.numbers = 0

    def take(self, key, value, flags=0, *, number=None, now_us=1000, if_version=None):
        if number is None:
            self.numbers += 1
            number = self.numbers
        block = encode_block([key], [value], partition=0, producer_id=7, producer_seq=number)
        self.partition.keys.catch_up(self.partition.tree, lambda: False)
        return write_block(
            self.partition, block, self.journal, now_us=now_us, now=0.0, flags=flags, if_version=if_version
        )

    def refused(self):
        """The number of what was refused is the next one's."""
        self.numbers -= 1


class StoredPartition(Partition):
    """A partition that is written to without a journal, flushed and folded when a test says so.

    ``rows`` are all rows that it was given: (key, value), that of seq 1 first.
    """

    def __init__(self, id=0, disk=None, account=None):
        super().__init__(FEED_ID, id, 0, 2**64 - 1, account)
        self.log = self.log.with_entry(FailoverEntry(bytes([id + 1]) * 16, 1, 0))
        self.disk = MemoryDisk() if disk is None else disk
        self.directory = f"/data/feeds/{FEED_ID.hex()}/{id}"
        self.disk.make_directory(self.directory)
        self.pins = Pins()
        self.rows = []
        self._ids = itertools.count(1)

    def write(self, rows=1, value_bytes=1):
        """Appends a block of rows of one key; it is in memory only."""
        self.put(*[(b"k", bytes(value_bytes))] * rows)

    def put(self, *rows, timestamp=1):
        """Appends a block of (key, value or None); it is in memory only."""
        keys, values = zip(*rows, strict=True)
        block = encode_block(list(keys), list(values), partition=self.id, compress=False)
        self.rows += rows
        self.hang_recovered(block.stamped(self.high_seq + 1, timestamp))

    def hang_recovered(self, block):
        """Hangs a block that has its seqs, as if file 1 of a journal had held it."""
        self.append(block, self.log.branch_at(block.header.last_seq), 1, 0.0)

    def sync(self):
        """Everything is durable."""
        self.durable_through(self.high_seq)

    def state_at(self, seq, after=0):
        """{key: value} that the rows from ``after`` + 1 to ``seq`` come to."""
        state = {}
        for key, value in self.rows[after:seq]:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state

    def _new_path(self):
        id = next(self._ids).to_bytes(16, "big")
        return id, f"{self.directory}/{segment_name(id)}"

    def flush(self, through=None):
        """Moves what is durable, or the part of it up to ``through``, to a segment; None where there is nothing."""
        last_seq = self.durable_seq if through is None else through
        blocks = [b for b in self.tree.blocks_after(self.flushed_seq) if b.header.last_seq <= last_seq]
        if not blocks:
            return None
        id, path = self._new_path()
        identity = identity_of(self, self.flushed_seq, blocks[-1].header.last_seq, id)
        segment = write_segment(self.disk, self.disk, path, identity, blocks)
        self.install(self.chain.with_flushed(segment), 0)
        return segment

    def fold(self, first=0, last=None, *, purge_before_us=None, history=False):
        """Folds the segments ``first`` to ``last``, both included, as a compaction does; the new one."""
        folded = self.chain.segments[first : None if last is None else last + 1]
        id, path = self._new_path()
        compact(
            CompactionTask(
                inputs=tuple(segment.path for segment in folded),
                output=path,
                segment_id=id,
                hash_first=self.hash_first,
                hash_last=self.hash_last,
                is_major=first == 0,
                history=history,
                purge_before_us=purge_before_us,
                stable_seq=self.durable_seq,
                block_bytes=BLOCK_BYTES,
                compress=False,
            ),
            self.disk,
        )
        made = Segment.open(self.disk, path)
        self.purge_seq = max(self.purge_seq, made.identity.purge_seq)
        self.install(self.chain.with_compacted(folded, made), 0)
        self.pins.retire(folded)
        return made

    def trim(self, count):
        """Drops the oldest segments."""
        dropped = self.chain.segments[:count]
        self.trim_seq = dropped[-1].identity.last_seq
        self.install(self.chain.without_oldest(count), 0)
        self.pins.retire(dropped)

    def remove_free(self):
        """Removes the files of segments that nobody needs any more; how many."""
        free = self.pins.take_free()
        for segment in free:
            segment.close()
            self.disk.remove(segment.path)
        return len(free)
