"""Random copies of a leader's segments beside rows ahead of them: forks, compactions, full disks, kills, power cuts."""

import contextlib
import errno
import os
import random
from unittest import mock

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.upkeep.pair_life import PairLife, is_noticed, refused
from tests.tiers import examples

from tailrace.consuming.events import Agreed, Mutations, SnapshotEnd, SnapshotStart
from tailrace.errors import TailraceError, Unreachable
from tailrace.model import Level
from tailrace.model.failover import FailoverLog, common_seq
from tailrace.model.position import Position
from tailrace_server.blocks import cut_above
from tailrace_server.partition.replica_apply import apply_block, entries_through, follow_log, settle_producers
from tailrace_server.replication import catching_up
from tailrace_server.replication.ahead_stream import apply_ahead
from tailrace_server.replication.catching_up import CatchUp
from tailrace_server.upkeep import rollback
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.rollback import roll_back_to_common
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

STEPS = [
    *("write",) * 10,
    *("flush",) * 8,
    *("pull",) * 8,
    *("compact",) * 3,
    *("compact_replica", "flush_replica", "refuse", "fork", "restart", "cut_power") * 2,
    *("doubt",) * 3,
    *("expire", "read", "end_reads", "trim") * 2,
]
# The pulls after which a follower has everything, if nothing breaks any more.
PULLS_MAX = 30
# A manifest in doubt below rows that come: of 120 lives of 80 of these steps 12 have one, of 400 of 40 usual steps two.
STEPS_OF_DOUBT = [*STEPS, *("doubt", "pull", "fork") * 5]
# The lives of which one notices a planted bug.
LIVES_MAX = 80
NOWHERE = Position.at(FailoverLog(), 0)


class Source:
    """The connection to the leader for its segments; it may break, and the leader may forget a checkpoint."""

    def __init__(self, life):
        self.life = life
        self.asked = []

    async def checkpoint(self, request):
        checkpoints = self.life.leader.node.storage.checkpoints
        return await checkpoints.take(self.life.source, Level.DISK, with_state=True, asker=request.asker)

    def ask(self, id, parts):
        self.asked += [(id, part) for part in parts]

    async def receive(self, parts):
        return [await self._receive(part) for part in parts]

    async def _receive(self, part):
        life = self.life
        (id, asked), *self.asked = self.asked
        assert asked == part
        if life.breaks and life.chance.random() < 0.07:
            raise Unreachable("the link is cut")
        if life.breaks and life.chance.random() < 0.04:
            life.leader.node.storage.checkpoints.release(id)
        if life.chance.random() < 0.1:
            await life.compact(life.leader, life.source)
        if life.chance.random() < 0.1:
            await life.compact(life.replica, life.partition)
        segment = life.leader.node.storage.checkpoints.find(id, part.segment.id)
        return part, memoryview(segment.read_part(part.offset, part.nbytes))

    def release(self, release):
        self.life.leader.node.storage.checkpoints.release(release.checkpoint_id)


class Ahead:
    """The stream of the rows behind the segments, as `AheadStream`, from the leader's tree."""

    def __init__(self, life):
        self.life = life

    async def run_beside(self, seq, log, receive):
        life = self.life
        with refused():
            file = await life.replica.node.storage.ahead.begin(life.partition, seq, log)
            file.forget_half()
            if life.chance.random() < 0.9:
                self._append(file)
        await receive()
        if life.chance.random() < 0.3:
            life.write()

    def _append(self, file):
        life, source, last_seq = self.life, self.life.source, file.last_seq
        held = entries_through(file.log, last_seq)
        common = common_seq(held, last_seq, source.log, source.high_seq) or 0
        if common < last_seq or last_seq < source.flushed_seq:
            return
        events = [] if file.log == source.log else [Agreed(0, source.log, source.high_seq)]
        for block in source.tree.blocks_after(last_seq):
            block = cut_above(block, last_seq) if block.header.first_seq <= last_seq else block
            end_seq = block.header.last_seq
            start = SnapshotStart(0, last_seq + 1, end_seq, NOWHERE, True, source.purge_seq, False)
            events += [start, Mutations(block)]
            if life.chance.random() < 0.1:
                break  # in the middle of a snapshot
            events.append(SnapshotEnd(0, last_seq + 1, end_seq, NOWHERE))
            last_seq = end_seq
        while events:  # with an fsync for each group
            count = life.chance.randint(1, len(events))
            file.append(events[:count])
            events = events[count:]


class PulledLife(PairLife):
    """``acknowledged`` is the seq that the follower has acknowledged last, and not rolled back since."""

    def __init__(self, chance):
        super().__init__(chance)
        self.acknowledged = 0
        self.breaks = True
        self.read = []  # segments of the follower that somebody reads
        self.is_sound = True  # the last start has seen all files, and the disk has refused nothing since

    async def step(self, name):
        match name:
            case "write":
                self.write()
            case "flush":
                await self.flush()
            case "pull":
                with refused():
                    await self.pull()
            case "compact":
                await self.compact(self.leader, self.source)
            case "compact_replica":
                await self.compact(self.replica, self.partition)
            case "flush_replica":
                with refused():
                    await self.replica.flusher.flush(self.partition)
            case "refuse":
                self.is_sound = False
                self.refuse()
            case "doubt":
                self.is_sound = False
                self.doubt()
            case "fork":
                await self.fork()
            case "restart":
                self.restart()
            case "cut_power":
                self.restart(power=True)
            case "expire":
                await self.expire()
            case "read":
                self.begin_to_read()
            case "end_reads":
                self.end_reads()
            case "trim":
                with refused():
                    await self.replica.flusher.trim()

    async def expire(self):
        """Files that were received and are in no chain have been there for long."""
        self.replica.clock.advance(700.0)
        with refused():
            await self.replica.node.storage.received.expire()

    def begin_to_read(self):
        """Begins to read a segment of the follower. It stays, also if it leaves the chain."""
        if self.partition.chain.segments:
            segment = self.chance.choice(self.partition.chain.segments)
            self.replica.node.storage.pins.pin(segment)
            self.read.append(segment)

    def end_reads(self):
        for segment in self.read:
            self.replica.node.storage.pins.unpin(segment)
        self.read = []

    def check(self):
        super().check()
        assert self._needed() <= set(self.replica.segments(self.partition)), "a file of a segment is gone"

    def _needed(self):
        """The names of the files of the chain, and of the segments that are read."""
        segments = (*self.partition.chain.segments, *self.read)
        return {os.path.basename(segment.path) for segment in segments}

    async def require_no_other_file(self):
        """Requires that only the chain's files are there once nothing is read or received any more.

        A start removes other files. They may be there if the disk has refused something.
        """
        self.end_reads()
        await self.expire()
        await self.replica.flusher.trim()
        left = set(self.replica.segments(self.partition)) - self._needed()
        assert not left or not self.is_sound, f"{left} are files of no segment"

    def doubt(self):
        """The next two manifests fail: it is not known which one is on the disk. After that the disk works."""
        left = 2

        def before(name, path):
            nonlocal left
            if left and name == "rename" and "MANIFEST" in path:
                left -= 1
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        self.replica.disk.before = before

    def restart(self, *, power=False):
        # Without FEED a start takes all rows from the journal, and the segments' files stay until the next start.
        feed = os.path.dirname(self.replica.node.storage.store.partition_directory(self.partition.feed_id, 0))
        self.read, self.is_sound = [], self.replica.disk.exists(f"{feed}/FEED")
        super().restart(power=power)
        assert self.partition.damage is None
        assert self.partition.high_seq >= self.acknowledged, "acknowledged rows are gone"

    # Pulls

    async def pull(self):
        """Pulls once, as `FarPartitions` and the puller do. May be stopped at any step."""
        storage, partition, source = self.replica.node.storage, self.partition, self.source
        await storage.installer.settle(partition)
        await storage.ahead.settle(partition, source.log, source.high_seq)
        if self.chance.random() < 0.8:
            await self.copy()
        await storage.installer.settle(partition)
        left = self.chance.randrange(5) if self.breaks and self.chance.random() < 0.25 else 1 << 30

        def is_stopped():
            nonlocal left
            left -= 1
            return left < 0

        await apply_ahead(self.replica.node.services, partition, source.log, None, self.take, is_stopped)
        if left < 0 or storage.ahead.find(partition) is not None:
            return
        await self.agree()
        if not self.breaks or self.chance.random() < 0.5:
            await self.stream()
        await storage.all_durable()
        self.acknowledged = partition.durable_seq

    async def copy(self):
        """Copies the leader's segments, if that brings the follower further."""

        async def roll_back(partition, seq):
            assert partition is self.partition
            await self.roll_back(seq)

        @contextlib.asynccontextmanager
        async def source(*_):
            yield Source(self)

        rows = Ahead(self) if self.chance.random() < 0.8 else None
        to = self.replica.node.services, self.partition, "leader", "leader", self.term
        with mock.patch.object(catching_up, "segment_source", source), contextlib.suppress(OSError, TailraceError):
            await CatchUp(*to, roll_back, lambda: False, rows).run()

    async def roll_back(self, seq):
        """Rolls back. What goes below ``seq``, and was acknowledged, has to be told as owed before it is gone.

        If the disk refuses, the running partition tells whether it was rolled back. A start must come to the same.
        """
        partition, before, owed = self.partition, self.acknowledged, []
        try:
            return await roll_back_to_common(
                self.replica.node.storage, partition, seq, lambda _, term, owed_seq: owed.append(owed_seq)
            )
        finally:
            due = min(seq, before) if seq else before
            assert partition.high_seq >= due or max(owed, default=0) >= due, "acknowledged rows are gone, and not owed"
            self.acknowledged = min(before, partition.high_seq)

    async def take(self, event):
        journal = self.replica.node.storage.journal
        if isinstance(event, Agreed):
            settle_producers(self.partition, journal, 0.0)
            follow_log(self.partition, event.log, journal)
        elif isinstance(event, Mutations):
            block = event.block
            self.apply(cut_above(block, event.first_seq - 1) if block.header.first_seq < event.first_seq else block)

    def apply(self, block):
        storage = self.replica.node.storage
        # The manifest of a chain that was not installed would hide these rows from the next start.
        assert not storage.installer.is_unsure(self.partition), "rows come over a manifest that was not written over"
        apply_block(self.partition, block, storage.journal, 0.0)
        storage.wrote(self.partition)

    # The stream

    def common_seq(self):
        """The leader begins at 0 with a follower below its purge seq."""
        common = super().common_seq()
        return 0 if self.source.purge_seq > common > 0 else common

    async def agree(self):
        """The follower asks for its stream."""
        partition, storage = self.partition, self.replica.node.storage
        await storage.installer.settle(partition)
        if partition.high_seq:
            await self.roll_back_to_common()
        settle_producers(partition, storage.journal, 0.0)
        follow_log(partition, self.source.log, storage.journal)
        partition.set_leader_seqs(self.source.high_seq, 0)

    async def stream(self):
        """Takes a run of the leader's next segment, or the blocks behind its segments."""
        partition, source = self.partition, self.source
        if partition.high_seq < source.flushed_seq:
            await self._take_run()
            return
        for block in list(source.tree.blocks_after(partition.high_seq)):
            first_seq, high_seq = block.header.first_seq, partition.high_seq
            self.apply(cut_above(block, high_seq) if first_seq <= high_seq else block)
            if self.breaks and self.chance.random() < 0.2:
                return

    async def _take_run(self):
        partition, source, storage = self.partition, self.source, self.replica.node.storage
        segment = next(s for s in source.chain.segments if s.identity.last_seq > partition.high_seq)
        await storage.flusher.flush_all(partition)
        last_seq = segment.identity.last_seq
        filling = SnapshotSegment(storage, partition, partition.high_seq, last_seq, source.purge_seq)
        try:
            for block in segment.read_blocks(segment.block_after(partition.high_seq), 1 << 30)[0]:
                filling.add(block)
            await filling.finish(source.log)
        finally:
            filling.abandon()


async def live(steps, chance):
    life = PulledLife(chance)
    for name in steps:
        await life.step(name)
        life.check()
    life.heal()
    life.breaks = False
    for _ in range(PULLS_MAX):
        await life.pull()
        life.check()
        if life.partition.high_seq == life.source.high_seq:
            break
    assert life.partition.high_seq == life.source.high_seq == life.acknowledged
    await life.require_no_other_file()
    life.restart(power=True)
    assert life.partition.log == life.source.log


@settings(max_examples=examples(30))
@given(st.lists(st.sampled_from(STEPS), min_size=20, max_size=50), st.integers(0, 2**32 - 1))
def test_a_follower_loses_nothing_that_it_has_acknowledged_and_comes_to_the_end(steps, seed):
    trio.run(live, steps, random.Random(seed))


@pytest.mark.slow
@pytest.mark.planted
def test_a_manifest_in_doubt_that_is_not_written_over_is_noticed(monkeypatch):
    async def settle_nothing(installer, partition):
        """Leaves a manifest on the disk that may be of another chain."""

    monkeypatch.setattr(Installer, "settle", settle_nothing)
    assert is_noticed(live, STEPS_OF_DOUBT, LIVES_MAX, steps=80)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize(
    ("owner", "name", "planted"),
    [
        (rollback, "acknowledged", lambda partition, seq, log_left: (0, 0)),
        (Installer, "left", lambda installer, partition, segments: None),
    ],
    ids=["owes_nothing", "leaves_files"],
)
def test_a_rollback_that_does_half_of_its_work_is_noticed(monkeypatch, owner, name, planted):
    monkeypatch.setattr(owner, name, planted)
    assert is_noticed(live, STEPS, LIVES_MAX)
