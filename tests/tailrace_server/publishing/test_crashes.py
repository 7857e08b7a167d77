"""Stages and publishes, with a crash before every call of the disk: a partition has a batch whole and once, or not."""

from __future__ import annotations

import logging

import pytest
from tests.memory_disk import LOSE, READING, MemoryDisk
from tests.tailrace_server.publishing.crashes import (
    World,
    batch_of,
    check_all,
    crash_everywhere,
    digest_of_batch,
    is_noticed,
    run_the_rest,
)

from tailrace.errors import BatchChanged, UnknownStage
from tailrace_server.journal import space
from tailrace_server.partition import published as appending
from tailrace_server.publishing import joining
from tailrace_server.publishing.stage_directory import StageDirectory
from tailrace_server.upkeep import flushed_segment

BATCHES = 4


@pytest.fixture(autouse=True)
def _blocks_stay_apart(monkeypatch):
    """Else these small ones would be joined, and nothing could be cut."""
    monkeypatch.setattr(joining, "JOINED_BYTES_MAX", 1)


@pytest.fixture(autouse=True)
def _little_is_allocated(monkeypatch):
    """Each crash takes a copy of the disk, and each start reads the zeros of the journal."""
    monkeypatch.setattr(space, "ALLOCATE_BYTES", 300)


@pytest.fixture(autouse=True)
def _quiet_log(caplog):
    """Each crash is worth a warning."""
    caplog.set_level(logging.CRITICAL, "tailrace.server")


async def check_crash(disk, answered):
    """The node starts; what it has are whole batches, and once the job has gone on each row is there once."""
    world = World(disk, seed=2)
    if "orders" not in [feed.info.name for feed in world.node.feeds]:
        assert not answered, "a batch was answered, and its feed is not there"
        await world.create()
    world.node.check()
    for partition in world.feed.partitions:
        keys = world.written(partition)
        rows = {batch: sum(batch_of(key) == batch for key in keys) for batch in range(BATCHES)}
        assert set(rows.values()) <= {0, 4}, f"a part of a batch: {rows}"
        assert all(rows[batch] == 4 for batch in answered), f"answered {answered}, there {rows}"
        last = partition.sinks.find("job")
        assert (-1 if last is None else last.batch) == max([b for b, count in rows.items() if count], default=-1)
        assert last is None or last.digest == digest_of_batch(last.batch)
    lasts = [partition.sinks.find("job") for partition in world.feed.partitions]
    if any(lasts):  # with other rows not even the rest of a batch that has begun is taken
        with pytest.raises(BatchChanged):
            await world.publish(max(last.batch for last in lasts if last), (), digest=7)
    await run_the_rest(world, answered, BATCHES)


@pytest.mark.long
async def test_a_crash_before_every_call():
    said = await check_all(await crash_everywhere(World(MemoryDisk()), BATCHES), check_crash)
    assert len(said) > 300


def forget_the_batch(monkeypatch):
    """The record has the blocks, and not the batch."""
    append_batch = appending.append_batch
    monkeypatch.setattr(
        appending,
        "append_batch",
        lambda partition, blocks, sinks, journal: append_batch(partition, blocks, {}, journal),
    )


def write_block_by_block(monkeypatch):
    """Each block is a record of its own, and only the last one says of which batch it is."""
    append_batch = appending.append_batch

    def apart(partition, blocks, sinks, journal):
        for one in blocks[:-1]:
            append_batch(partition, [one], {}, journal)
        return append_batch(partition, blocks[-1:], sinks, journal)

    monkeypatch.setattr(appending, "append_batch", apart)


def say_the_batch_too_early(monkeypatch):
    """The batch is told, durably, before its blocks are there."""
    publish = appending.publish

    def early(partition, blocks, sink, batch, origin, journal, **more):
        from tailrace_server.state.last_batches import LastBatch

        appending.note_sinks(partition, {sink: LastBatch(batch, origin, partition.high_seq)}, journal)
        journal.sync()
        return publish(partition, blocks, sink, batch, origin, journal, **more)

    monkeypatch.setattr(appending, "publish", early)


def seal_without_a_sync(monkeypatch):
    """A stage gets its name before its content is durable."""

    def finish(self, stage):
        stage.file.sync = lambda: None
        return seal(self, stage)

    seal = StageDirectory.seal
    monkeypatch.setattr(StageDirectory, "seal", finish)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize("plant", [forget_the_batch, write_block_by_block, say_the_batch_too_early])
async def test_planted_bugs_are_found(monkeypatch, plant):
    plant(monkeypatch)
    assert await is_noticed(await crash_everywhere(World(MemoryDisk()), BATCHES), check_crash)


async def test_a_sealed_stage_survives_every_crash(monkeypatch):
    """What was sealed can be published after any crash; what was not is unknown."""

    async def lost():
        disk = MemoryDisk()
        world = World(disk)
        await world.create()
        sealed, found = [], []

        def before(name, path):
            if name not in READING:
                found.append((disk.fork(), list(sealed)))

        disk.before = before
        sealed.append(world.stage(0, 0, 1))
        sealed.append(world.stage(1, 0, 1))
        disk.before = None
        found.append((disk.fork(), list(sealed)))
        for left, ids in found:
            left.cut_power(LOSE)
            again = World(left, seed=3)
            try:
                for batch, id in enumerate(ids):
                    await again.publish(batch, [id])
            except UnknownStage:
                return True
            again.node.check()
        return False

    assert not await lost()
    seal_without_a_sync(monkeypatch)
    assert await lost(), "a stage whose content was never synced cannot have survived"


async def test_a_flush_takes_a_publish_as_a_whole(monkeypatch):
    """However little goes into a segment."""
    monkeypatch.setattr(flushed_segment, "SEGMENT_BYTES_MAX", 1)
    world = World(MemoryDisk())
    await world.create()
    await world.run_batch(0, parts=2)
    await world.run_batch(1, parts=1)
    for partition in world.feed.partitions:
        await world.node.storage.flusher.flush(partition)
        assert partition.flushed_seq == 4
        assert [last.batch for last in partition.sinks.as_of(4).values()] == [0]
        await world.node.storage.flusher.flush(partition)
        assert partition.flushed_seq == 8
    world.node.check()
