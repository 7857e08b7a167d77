"""A history that branches, as leaders one after the other would write it, and a follower of it on a disk in memory.

History.write, fork     rows with their seqs; a fork leaves what is above its base to nobody
Follower.agree, ...     what a follower does with it, a step at a time; every step may end in a crash
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.fake_host import FakeClock, InlineWorkers, SeededRandomness, fsync_on_loop

from tailrace.block import encode_block
from tailrace.block.encode import Stamps
from tailrace.block.header import EXPIRED
from tailrace.model import FeedInfo, VersionRange
from tailrace.model.failover import SEQ_MAX, FailoverEntry, FailoverLog, common_seq
from tailrace_server.blocks import cut_above
from tailrace_server.config import Config, StorageConfig
from tailrace_server.feeds.feed import creation_to_bytes
from tailrace_server.host.disk import TEMPORARY
from tailrace_server.manifest import producers_to_json
from tailrace_server.node.start import recover
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.partition.replica_apply import apply_block, apply_producers, follow_log
from tailrace_server.runtime.host import Host
from tailrace_server.segment import NO_BASE, SegmentIdentity, SegmentWriter
from tailrace_server.state.producers import ProducerTable
from tailrace_server.upkeep.received_chain import ReceivedChain, install_received_chain, prepare_to_receive
from tailrace_server.upkeep.rollback import roll_back
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

DATA = "/data"
FEED_ID = b"f" * 16
FIRST_BRANCH = b"u" * 16
STORAGE = StorageConfig(
    segment_bytes=1_000_000,
    flush_age_s=0.0,
    journal_file_bytes_max=1_500,
    reserve_bytes=0,
    free_bytes_min=0,
    compaction_rate=0,
    check_rate=0,
)
KEYS = [b"k%d" % number for number in range(8)]


class Row(NamedTuple):
    branch: bytes
    key: bytes
    value: bytes | None
    timestamp: int


def ttl_of(seq, row):
    """Some rows have a ttl, and some deletions are expiries."""
    return seq % 2 * EXPIRED if row.value is None else seq % 3 * 1_000


class History:
    """``rows[i]`` is what seq i + 1 is now; ``ever`` has what (branch, seq) was, for ever. ``ends`` are of blocks."""

    def __init__(self, rnd):
        self.rnd = rnd
        self.rows = []
        self.ever = {}
        self.ends = [0]
        self.producers = {}  # end of a block -> (producer, number)
        self.log = FailoverLog([FailoverEntry(FIRST_BRANCH, 1, 0)])
        self.clock = 1_000
        self.numbers = {}

    @property
    def seq(self):
        return len(self.rows)

    def write(self, count):
        """A block."""
        self.clock += self.rnd.randrange(3)
        for _ in range(count):
            key = self.rnd.choice(KEYS)
            value = None if self.rnd.random() < 0.2 else b"%d-%d" % (self.seq + 1, self.rnd.randrange(1 << 30))
            row = Row(self.log.branch, key, value, self.clock)
            self.rows.append(row)
            self.ever[row.branch, self.seq] = row
        self.ends.append(self.seq)
        producer = self.rnd.randrange(1, 4)
        number = self.numbers[producer] = self.numbers.get(producer, 0) + 1
        self.producers[self.seq] = producer, number

    def fork(self, base):
        """Another leader goes on from ``base``, the end of a block; what is above is nobody's any more."""
        del self.rows[base:]
        self.ends = [end for end in self.ends if end <= base]
        self.producers = {end: told for end, told in self.producers.items() if end <= base}
        self.numbers = dict(self.producers.values())
        self.log = self.log.with_entry(FailoverEntry(self.rnd.randbytes(16), self.log.term + 1, base))
        # The next leader's clock may be behind; no row that is there is younger than what it writes.
        self.clock = self.rows[-1].timestamp if self.rows else 1_000

    def block(self, first_seq, last_seq, seqs=None):
        """The rows of these seqs as a block; with its producer where it is one that was written."""
        seqs = list(range(first_seq, last_seq + 1)) if seqs is None else seqs
        rows = [self.rows[seq - 1] for seq in seqs]
        told = self.producers.get(last_seq) if self.is_written(first_seq, last_seq) else None
        return encode_block(
            [row.key for row in rows],
            [row.value for row in rows],
            partition=0,
            producer_id=told[0] if told else 0,
            producer_seq=told[1] if told else 0,
            stamps=Stamps(seqs, [row.timestamp for row in rows]),
            ttls=[ttl_of(seq, row) for seq, row in zip(seqs, rows, strict=True)],
            compress=False,
        )

    def is_written(self, first_seq, last_seq):
        place = self.ends.index(last_seq) if last_seq in self.ends else 0
        return place > 0 and self.ends[place - 1] == first_seq - 1

    def table(self, seq):
        """What the leader knows of its producers as of ``seq``, as the wire has it."""
        table, first_seq = ProducerTable(), 1
        for end in self.ends[1:]:
            if end <= seq:
                producer, number = self.producers[end]
                table.record(producer, number, VersionRange(0, self.log.branch_at(end), first_seq, end), 0.0)
            first_seq = end + 1
        return producers_to_json(table, seq, 0.0)

    def numbers_at(self, log, seq):
        """The last number of each producer in what ``log`` says of the rows up to ``seq``: only of now's history."""
        return {self.producers[end][0]: self.producers[end][1] for end in self.ends[1:] if end <= seq}


class Follower:
    """A follower on ``disk``. ``acknowledged_seq`` was told to the leader, and not taken back by a rollback."""

    def __init__(self, disk, rnd, history):
        self.disk, self.rnd, self.history = disk, rnd, history
        self.clock = FakeClock()
        self.acknowledged_seq = 0
        self.opened = 0

    def open(self):
        self.disk.make_directory(DATA)
        self.opened += 1
        self.is_told = False
        host = Host(
            clock=self.clock,
            randomness=SeededRandomness(random.Random(self.opened)),
            disk=self.disk,
            workers=InlineWorkers(self.disk),
        )
        self.node = recover(Config(DATA, replica_of=("leader", 1), storage=STORAGE), host)
        fsync_on_loop(self.node.storage.committer)  # no committer runs here
        [system] = self.node.feeds.system.partitions
        if FEED_ID not in self.node.feeds:
            self._learn_of_feed(system)
        return self

    def _learn_of_feed(self, system):
        info = FeedInfo("orders", FEED_ID, 1, "hash", "compact", None, None, 259_200, "stream")
        log = FailoverLog([FailoverEntry(FIRST_BRANCH, 1, 0)])
        follow_log(system, log, self.node.storage.journal)
        if system.high_seq == 0:
            block = encode_block([FEED_ID], [creation_to_bytes(info, FIRST_BRANCH)], partition=0)
            apply_block(system, block.stamped(1, 1_000), self.node.storage.journal, 0.0)
            self.node.storage.committer.note(system)
        _, created = self.node.feeds.reconcile(self.node.storage.journal, 10)
        for feed in created:
            feed.partitions[0].state = "follower"

    @property
    def partition(self):
        return self.node.feeds.of_id(FEED_ID).partitions[0]

    async def agree(self):
        """What happens when a stream is asked for: back to what both have, and the leader's log."""
        partition, leader = self.partition, self.history
        common = common_seq(partition.log, partition.high_seq, leader.log, leader.seq) or 0
        while common < partition.high_seq:
            stands = self._stands_below(common)
            self.acknowledged_seq = min(self.acknowledged_seq, stands)  # whether the rollback is durable or not
            left = FailoverLog(entry for entry in partition.log if entry.base < common)
            point = await roll_back(
                self.node.storage, partition, common, left, self.node.leaderships.system.on_shortfall
            )
            assert point == partition.high_seq == stands
            common = common_seq(partition.log, partition.high_seq, leader.log, leader.seq) or 0
        follow_log(partition, leader.log, self.node.storage.journal)
        if not self.is_told:  # what was merged came without its producers, and a crash may have come between
            self.tell()

    def _stands_below(self, seq):
        """Where a rollback to ``seq`` may end at the lowest: nothing that is held and right goes with what is wrong."""
        partition = self.partition
        for segment in partition.chain.segments:
            after_seq, last_seq = segment.identity.after_seq, segment.identity.last_seq
            if after_seq < seq < last_seq:
                return after_seq if segment.identity.deduplicated else seq
        return seq

    def take(self):
        """The next block as it was written, or several of them merged; at least half of what is there already."""
        partition, leader = self.partition, self.history
        if partition.high_seq >= leader.seq:
            return
        ends = [end for end in leader.ends if end > partition.high_seq]
        cuts = [entry.base for entry in leader.log if entry.base > partition.high_seq]
        merged = [end for end in ends[:3] if end <= min(cuts, default=SEQ_MAX)] or ends[:1]
        last_seq = self.rnd.choice(merged)
        first_seq = max(end for end in leader.ends if end <= partition.high_seq) + 1
        block = leader.block(first_seq, last_seq)
        if first_seq <= partition.high_seq:
            block = cut_above(block, partition.high_seq)
        apply_block(partition, block, self.node.storage.journal, self.clock.monotonic())
        self.node.storage.committer.note(partition)
        self.node.storage.flusher.note(partition)
        if not block.header.producer_id:
            self.tell()

    def tell(self):
        partition = self.partition
        value = self.history.table(partition.high_seq)
        apply_producers(partition, value, partition.high_seq, self.node.storage.journal, self.clock.monotonic())
        self.is_told = True

    async def fill(self):
        """A run to the end of a later block."""
        partition, leader = self.partition, self.history
        ends = [end for end in leader.ends if end > partition.high_seq]
        if not ends:
            return
        last_seq = self.rnd.choice(ends[:6])
        await self.node.storage.flusher.flush_all(partition)
        newest = {leader.rows[seq - 1].key: seq for seq in range(partition.high_seq + 1, last_seq + 1)}
        seqs = sorted(newest.values())
        filling = SnapshotSegment(self.node.storage, partition, partition.high_seq, last_seq, 0)
        for begin in range(0, len(seqs), 3):
            part = seqs[begin : begin + 3]
            filling.add(leader.block(part[0], part[-1], part))
            if self.rnd.random() < 0.5:
                await filling.flow()
        if self.rnd.random() < 0.1:
            filling.abandon()
            return
        apply_producers(partition, leader.table(last_seq), last_seq, self.node.storage.journal, self.clock.monotonic())
        await filling.finish(leader.log)

    async def copy(self):
        """A chain to the end of a later block: some segments that are here, and others that have come as files."""
        partition, leader, storage = self.partition, self.history, self.node.storage
        last_seq = self.rnd.choice([end for end in leader.ends if end >= partition.high_seq][:6])
        kept = [segment.identity for segment in partition.chain.segments]
        kept = kept[: self.rnd.randint(0, len(kept))]
        after_seq = kept[-1].last_seq if kept else 0
        cuts = [end for end in leader.ends if after_seq < end < last_seq]
        ends = sorted({*self.rnd.sample(cuts, min(len(cuts), self.rnd.randrange(3))), last_seq} - {after_seq})
        await prepare_to_receive(storage, partition)
        ids, base_id = [identity.segment_id for identity in kept], kept[-1].segment_id if kept else NO_BASE
        for end in ends:
            base_id = self._receive(base_id, after_seq, end)
            ids.append(base_id)
            after_seq = end
        told = ReceivedChain(last_seq, tuple(ids), leader.log, 0, 0, leader.table(last_seq), {})
        if self.rnd.random() < 0.1:  # the leader changes before it is installed
            for id in ids[len(kept) :]:
                storage.installer.orphan(partition, storage.store.segment_path(FEED_ID, 0, id))
            return
        await install_received_chain(storage, partition, told)
        self.acknowledged_seq = partition.durable_seq
        assert partition.durable_seq == partition.high_seq == partition.flushed_seq == last_seq

    def _receive(self, base_id, after_seq, last_seq):
        """Writes a segment of the leader's; its id."""
        leader, storage = self.history, self.node.storage
        seqs, deduplicated = list(range(after_seq + 1, last_seq + 1)), self.rnd.random() < 0.5
        if deduplicated:
            seqs = sorted({leader.rows[seq - 1].key: seq for seq in seqs}.values())
        id = self.rnd.randbytes(16)
        identity = SegmentIdentity(
            FEED_ID,
            0,
            leader.log.branch_at(last_seq),
            id,
            base_id,
            (),
            is_major=base_id == NO_BASE,
            deduplicated=deduplicated,
            after_seq=after_seq,
            last_seq=last_seq,
            purge_seq=0,
        )
        path = storage.store.segment_path(FEED_ID, 0, id)
        writer = SegmentWriter(self.disk, path + TEMPORARY, identity)
        for begin in range(0, len(seqs), 3):
            part = seqs[begin : begin + 3]
            writer.add(leader.block(part[0], part[-1], part))
        writer.finish()
        self.disk.rename(path + TEMPORARY, path)
        return id

    async def commit(self):
        """An fsync; what is durable is acknowledged."""
        await self.node.storage.all_durable()
        self.acknowledged_seq = self.partition.durable_seq

    def told(self):
        """The leader says what is durable there, and what is at a majority."""
        seq = self.history.seq
        self.partition.set_leader_seqs(seq, self.rnd.randint(0, seq))

    async def flush(self):
        await self.node.storage.flusher.flush(self.partition)

    async def fold(self):
        info = self.node.feeds.of_id(FEED_ID).info
        await self.node.storage.compactor.compact(self.partition, info)

    async def trim(self):
        await self.node.storage.flusher._trimmer.trim()

    def check(self):
        """What is held is the beginning of the history that the log names, and nothing else."""
        partition = self.partition
        self.node.check()
        assert partition.damage is None, partition.damage
        state = {}
        for seq in range(1, partition.high_seq + 1):
            row = self.history.ever[partition.log.branch_at(seq), seq]
            state[row.key] = (seq, row.timestamp, row.value)
        partition.keys.catch_up(partition.tree, lambda: False)
        for key in KEYS:
            found = newest_row(partition, key)
            assert (None if found is None else tuple(found)) == state.get(key), f"{key!r} of seq {partition.high_seq}"

        self._check_rows()

    def _check_rows(self):
        """Each row that is stored is the one that was written, whatever it was copied through."""
        partition = self.partition
        for segment in partition.chain.segments:
            self._check_blocks(segment.read_blocks(0, 1 << 30)[0])
        self._check_blocks(partition.tree.blocks_after(0))

    def _check_blocks(self, blocks):
        for block in blocks:
            columns = block.open_columns()
            found = zip(columns.keys(), columns.values(), columns.timestamps(), columns.ttls(), strict=True)
            for seq, row in zip(columns.seqs(), found, strict=True):
                written = self.history.ever[self.partition.log.branch_at(seq), seq]
                assert row == (*written[1:], ttl_of(seq, written)), f"the row of seq {seq}"

    def check_producers(self):
        """Agreed with the leader: every producer's next block would be decided as there."""
        partition = self.partition
        entries, _ = partition.producers.snapshot(self.clock.monotonic())
        numbers = {entry.producer_id: entry.last_number for entry in entries}
        assert numbers == self.history.numbers_at(partition.log, partition.high_seq)

    def check_acknowledged(self):
        """After a crash: what was acknowledged is there, as far as no other history has taken its place."""
        assert self.partition.high_seq >= self.acknowledged_seq, "what was acknowledged is gone"
