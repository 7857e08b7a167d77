"""Last batches that the journal has without their blocks, as of a replica: a start takes no older one for the last."""

from __future__ import annotations

import dataclasses

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.publishing import crashes
from tests.tailrace_server.publishing.crashes import DATA

from tailrace.wire.stage_messages import Publish
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.offline.repair import repair
from tailrace_server.offline.verify import verify
from tailrace_server.partition import published as appending
from tailrace_server.state.last_batches import LastBatch
from tailrace_server.upkeep.rollback import roll_back


class World(crashes.World):
    """A node whose journal is one file, so that a start reads all of it."""

    storage = dataclasses.replace(crashes.STORAGE, journal_file_bytes_max=1 << 20, journal_bytes_max=1 << 21)

    def note(self):
        """Journals the last batch of each partition, as a replica does when its leader tells it."""
        for partition in self.feed.partitions:
            last = partition.sinks.find("job")
            appending.note_sinks(partition, {"job": last}, self.node.storage.journal)

    @property
    def lasts(self):
        found = [partition.sinks.find("job") for partition in self.feed.partitions]
        return [None if last is None else last.batch for last in found]


async def test_a_later_batch_in_the_manifest_stays():
    world = World(MemoryDisk())
    await world.create()
    await world.run_batch(0, parts=1)
    world.note()
    await world.run_batch(1, parts=1)
    await world.node.storage.flusher.pass_once()
    started = World(world.disk.fork(), seed=2)
    assert started.lasts == [1, 1]
    await started.run_batch(1, parts=2)
    for partition in started.feed.partitions:
        keys = started.written(partition)
        assert sorted(keys) == sorted(set(keys)), "rows are there twice"


@pytest.fixture
async def rolled_back(nursery):
    """A batch was published, noted and rolled back; other rows have its seqs, in segments."""
    world = World(MemoryDisk())
    await world.create()
    nursery.start_soon(world.node.storage.committer.run)
    await world.run_batch(0, parts=1)
    world.note()
    for partition in world.feed.partitions:
        await roll_back(world.node.storage, partition, 0, partition.log, lambda *_: None)
    assert world.lasts == [None, None]
    for number in range(2):  # other rows take the seqs
        request = Publish(world.feed.info.feed_id, f"other {number}", "", 0, (world.stage(1 + number, 0, 1),), (0, 1))
        await world.node.publisher.publish(request)
    await world.node.storage.flusher.pass_once()
    assert all(partition.flushed_seq == 8 for partition in world.feed.partitions)
    return world


async def test_a_batch_that_was_rolled_back_is_not_there_again(rolled_back):
    started = World(rolled_back.disk.fork(), seed=2)
    assert started.lasts == [None, None]


async def test_a_batch_that_was_rolled_back_is_not_there_again_after_a_repair(rolled_back):
    """The repair gives the history another name, as its manifest is lost, and writes the journal anew."""
    world = rolled_back
    world.disk.kill()
    for partition in world.feed.partitions:
        store = world.node.storage.store
        world.disk.remove(f"{store.partition_directory(partition.feed_id, partition.id)}/MANIFEST")
    repair(world.disk, DATA, SystemRandomness(), world.clock, "20260131-154500")
    assert verify(world.disk, DATA).problems == []
    started = World(world.disk, seed=2)
    assert [partition.high_seq for partition in started.feed.partitions] == [8, 8]
    assert started.lasts == [None, None]


async def test_a_manifest_that_was_begun_before_is_no_home(monkeypatch):
    """The journal keeps the record until a manifest says what is in it."""
    world = World(MemoryDisk())
    await world.create()
    await world.run_batch(0, parts=1)
    write = world.node.storage.store.write

    def note_and_write(manifest):
        partition = world.feed.partitions[manifest.partition]
        told = {"told": LastBatch(7, "", partition.high_seq)}
        appending.note_sinks(partition, told, world.node.storage.journal)
        write(manifest)

    with monkeypatch.context() as context:
        context.setattr(world.node.storage.store, "write", note_and_write)
        await world.node.storage.flusher.pass_once()
    assert [partition.flushed_seq for partition in world.feed.partitions] == [4, 4]
    await check_homes(world)


async def test_it_keeps_the_journal_of_an_idle_partition_for_a_manifest_only():
    """Nothing comes that would be flushed, and the journal is not kept for ever."""
    world = World(MemoryDisk())
    await world.create()
    await world.run_batch(0, parts=1)
    await world.node.storage.flusher.pass_once()
    world.note()
    await check_homes(world)
    started = World(world.disk.fork(), seed=2)
    assert started.lasts == [0, 0]
    await check_homes(started)


async def check_homes(world):
    for partition in world.feed.partitions:
        assert partition.flushed_seq == partition.high_seq == 4
        assert partition.journal_references.oldest is not None
        assert partition.journal_references.waits_for_manifest_only
        await world.node.storage.installer.write(partition)
        assert partition.journal_references.oldest is None
