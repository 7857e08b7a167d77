"""The life of a leader's partition and of its follower's: real storages over disks in memory, and random steps."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import random

import trio
from tests.tailrace_server.upkeep.conftest import Engine

from tailrace.block import encode_block
from tailrace.block.arrays import arrays_of
from tailrace.block.header import EXPIRED
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.model.failover import common_seq
from tailrace_server.blocks.expiring import tombstones_of
from tailrace_server.compaction.task import CompactionTask
from tailrace_server.compaction.worker import compact
from tailrace_server.partition.branching import begin_branch
from tailrace_server.partition.writing import append_block
from tailrace_server.segment import Segment
from tailrace_server.upkeep.rollback import roll_back, roll_back_to_common

KEYS = [b"k%d" % number for number in range(6)]
# Calls of the disk that an armed disk refuses do more than read.
_READS = ("read_at", "read_cached", "exists", "names", "open")


class PairLife:
    """``ever`` has key and value of each (branch, seq) that any leader has written, ``written`` also ttl and timestamp.

    ``chance`` is a `random.Random`.
    """

    def __init__(self, chance, *, retention="compact"):
        self.chance = chance
        self.leader, self.replica = Engine(), Engine()
        self.replica.host.randomness.token(1_000)  # it makes other ids than the leader
        self.replica.config = dataclasses.replace(self.replica.config, replica_of=Address("leader", 1))
        self.source = self.leader.create(retention=retention)
        self.partition = self.replica.create(retention=retention)
        self.partition.state = "follower"
        self.is_history = retention == "history"
        self.purges = not self.is_history and chance.random() < 0.6
        self.term = 1
        self.ever = {}
        self.written = {}

    # The leader

    def write(self):
        """A block of puts and deletions, some with ttls, or one of expiries; the wall clock may be set, also back."""
        self.leader.clock.jump(self.chance.choice([0, 0, 1, -1]))
        keys = self.chance.choices(KEYS, k=self.chance.choice([1, 2, 3, 4, 40]))
        first_seq = self.source.high_seq + 1
        if self.chance.random() < 0.25:
            rows, ttls = [(key, None) for key in keys], [EXPIRED] * len(keys)
            self._expire(keys)
        else:
            rows, usual = [(key, self._value()) for key in keys], self.chance.choice([[0], [0, 1, 3_600]])
            ttls = [0 if value is None else self.chance.choice(usual) for _, value in rows]
            packs = self.chance.random() < 0.5
            self.leader.put(self.source, *rows, producer=7 + self.term, ttls=ttls, compress=packs)
        stamp = self.source.last_timestamp
        for seq, (row, ttl) in enumerate(zip(rows, ttls, strict=True), first_seq):
            self.ever[self.source.log.branch, seq] = row
            self.written[self.source.log.branch, seq] = (*row, ttl, stamp)

    def _expire(self, keys):
        due = arrays_of(encode_block(keys, [b""] * len(keys), partition=0).stamped(1, 1))
        clock, journal = self.leader.clock, self.leader.node.storage.journal
        append_block(self.source, tombstones_of(due, 0), journal, now_us=clock.wall_us(), now=clock.monotonic())
        self.leader.flusher.note(self.source)
        self.leader.sync(self.source)

    def _value(self):
        value = b"%d" % self.chance.randrange(1 << 30)
        return self.chance.choice([None, None, None, b"", value, value, value, value, value * 100])

    async def flush(self):
        await self.leader.flusher.flush_all(self.source)

    async def fork(self):
        """Another leader: the history goes on from one of the last ends of a segment, or from here."""
        ends = [segment.identity.last_seq for segment in self.source.chain.segments]
        base = self.chance.choice([*ends[-2:], self.source.high_seq])
        if base < self.source.high_seq:
            await roll_back(self.leader.node.storage, self.source, base, self.source.log, lambda *_: None)
        self.term = max(self.term, self.source.log.term) + 1
        begin_branch(self.source, self.chance.randbytes(16), self.leader.node.storage.journal, self.term)
        self.leader.sync(self.source)

    # Either

    async def compact(self, engine, partition):
        """Compacts some neighbours of a chain, also without need. Purges all tombstones that may go, in some lives."""
        segments, storage = partition.chain.segments, engine.node.storage
        if len(segments) < 2:
            return
        first = 0 if self.chance.random() < 0.5 else self.chance.randrange(len(segments) - 1)
        last = self.chance.randrange(first + 1, len(segments))
        folded, behind = segments[first : last + 1], segments[last + 1 : last + 2]
        end_seq = folded[-1].identity.last_seq
        if end_seq > (partition.high_seq if partition is self.source else partition.stable_seq):
            return
        segment_id = engine.host.randomness.token(16)
        output = storage.store.segment_path(partition.feed_id, 0, segment_id)
        task = CompactionTask(
            inputs=tuple(segment.path for segment in folded),
            output=output,
            segment_id=segment_id,
            hash_first=partition.hash_first,
            hash_last=partition.hash_last,
            is_major=first == 0,
            history=self.is_history,
            purge_before_us=1 << 62 if self.purges and first == 0 else None,
            stable_seq=end_seq,
            cuts=tuple(sorted({entry.base for entry in partition.log})),
            next_base_id=behind[0].identity.base_id if behind else b"",
        )
        try:
            compact(task, engine.disk)
            made = Segment.open(storage.store.segment_files, output)
            await storage.installer.install_compacted(partition, folded, made, partition.rollbacks)
        except (OSError, TailraceError):
            assert engine is self.replica, "the leader's disk refuses nothing"
            storage.installer.orphan(partition, output)
        if self.chance.random() < 0.5:
            await engine.flusher.trim()

    # The follower

    async def roll_back_to_common(self):
        """Rolls the follower back to the last seq that it has in common with the leader. Gives the lowest seq asked."""
        partition, source, lowest = self.partition, self.source, self.partition.high_seq
        while (common := self.common_seq()) < partition.high_seq:
            lowest = min(lowest, common)
            lowest = min(lowest, await self.roll_back(common))
        assert partition.high_seq <= source.high_seq
        return lowest

    async def roll_back(self, seq):
        """Rolls the follower back to ``seq``, the last one in common, or below. Gives the seq reached."""
        return await roll_back_to_common(self.replica.node.storage, self.partition, seq, lambda *_: None)

    def common_seq(self):
        partition, source = self.partition, self.source
        return common_seq(partition.log, partition.high_seq, source.log, source.high_seq) or 0

    def refuse(self):
        """From some call on, the follower's disk refuses some changes."""
        left, times = self.chance.randrange(30), self.chance.choice((1, 1, 2, 30))
        code = self.chance.choice((errno.EIO, errno.ENOSPC))
        only = self.chance.choice(("", "", "rename", "sync_directory"))
        if only:  # the last steps of a manifest: it may be on the disk, and is not installed
            left, times = self.chance.randrange(4), self.chance.choice((1, 2))

        def before(name, path):
            nonlocal left, times
            if "feeds" not in path or name in _READS or only not in ("", name):
                return
            if left:
                left -= 1
            elif times:
                times -= 1
                raise OSError(code, os.strerror(code), path)

        self.replica.disk.before = before

    def heal(self):
        self.replica.disk.before = None

    def restart(self, *, power=False):
        """The follower's process dies, or its machine."""
        self.heal()
        if power:
            self.replica.disk.cut_power(self.chance)
            self.replica.start()
            self.replica.node.check()
        else:
            self.replica.kill()
        self.partition = self.replica.partition()
        self.partition.state = "follower"
        self.check()

    def check(self):
        """The follower has what its own history says, key by key; rows of a history may have been trimmed."""
        partition, state = self.partition, {}
        partition.check()
        self.check_rows(partition)
        for seq in range(1, partition.high_seq + 1):
            key, value = self.ever[partition.log.branch_at(seq), seq]
            state[key] = seq, value
        for key in KEYS:
            [found] = self.replica.get(partition, key)
            seq, value = state.get(key, (0, None))
            if not 0 < seq <= partition.trim_seq or found is not None:
                assert found == value, f"{key} of seq {seq} is {found}, not {value}, at {partition.high_seq}"

    def check_rows(self, partition):
        """Each row that is stored is the one that was written, whatever it was copied through."""
        for segment in partition.chain.segments:
            self._check_blocks(partition, segment.read_blocks(0, 1 << 30)[0])
        self._check_blocks(partition, partition.tree.blocks_after(0))

    def _check_blocks(self, partition, blocks):
        for block in blocks:
            columns = block.open_columns()
            found = zip(columns.keys(), columns.values(), columns.ttls(), columns.timestamps(), strict=True)
            for seq, row in zip(columns.seqs(), found, strict=True):
                assert row == self.written[partition.log.branch_at(seq), seq], f"the row of seq {seq}"


def is_noticed(live, step_names, count, *, steps=40):
    """Whether a planted bug is noticed in one of the first ``count`` lives of so many steps."""
    for seed in range(count):
        chance = random.Random(seed)
        try:
            trio.run(live, chance.choices(step_names, k=steps), chance)
        except (AssertionError, TailraceError, OSError):
            return True
    return False


@contextlib.contextmanager
def refused():
    """The follower's disk may refuse in the body."""
    with contextlib.suppress(OSError, TailraceError):
        yield
