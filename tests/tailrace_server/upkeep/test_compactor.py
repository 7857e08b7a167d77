"""What of a chain is folded where a part of it cannot be read; and what a failed fold leaves."""

import errno
import itertools

import pytest
import trio

from tailrace.errors import Overloaded, UnknownFeed
from tailrace_server.directory.uptime_file import tick_uptime
from tailrace_server.upkeep import compactor as compactor_module
from tailrace_server.upkeep import installer as installer_module
from tailrace_server.upkeep.rollback import roll_back


async def flushed(engine, partition, count):
    for number in range(count):
        engine.put(partition, (b"%d" % (number % 3), bytes(100)))
        await engine.flusher.pass_once()
    assert len(partition.chain.segments) == count


@pytest.mark.parametrize(("bad", "stretch"), [(0, (1, 5)), (5, (0, 5)), (2, (3, 3)), (4, (0, 4)), (None, (0, 6))])
async def test_a_segment_that_cannot_be_read_is_left_out(engine, bad, stretch):
    partition = engine.create()
    await flushed(engine, partition, 6)
    compactor = engine.node.storage.compactor
    if bad is not None:
        compactor._damaged.add(partition.chain.segments[bad].path)
    begin, whole = compactor._whole_stretch(partition)
    assert (begin, len(whole)) == stretch
    assert whole == partition.chain.segments[begin : begin + len(whole)]


async def test_a_fold_behind_a_damaged_segment_purges_nothing_and_is_no_major(engine):
    partition = engine.create()
    await flushed(engine, partition, 8)
    engine.node.storage.compactor._damaged.add(partition.chain.segments[0].path)
    info = engine.node.feeds.of_id(partition.feed_id).info
    while await engine.node.storage.compactor.compact(partition, info):
        pass
    first, second, *_ = partition.chain.segments
    assert (first.identity.last_seq, second.identity.after_seq) == (1, 1)
    assert not second.identity.is_major
    engine.check_rows(partition)


async def test_tombstones_behind_a_damaged_segment_are_not_folded_for_ever(engine):
    """They may not go, so a fold for their sake would leave the chain as it was."""
    partition = engine.create(tombstone_age_s=1.0)
    for value in (bytes(100), None, None):
        engine.put(partition, (b"a", value))
        await engine.flusher.pass_once()
    engine.clock.advance(2)
    compactor = engine.node.storage.compactor
    tick_uptime(compactor.uptime, engine.clock)
    info = engine.node.feeds.of_id(partition.feed_id).info
    compactor._damaged.add(partition.chain.segments[0].path)
    assert not await compactor.compact(partition, info)
    compactor._damaged.clear()
    while await compactor.compact(partition, info):
        pass
    assert [segment.identity.rows for segment in partition.chain.segments] == [0]
    engine.check_rows(partition)


async def test_damage_that_a_fold_meets_is_told(engine):
    partition = engine.create()
    await flushed(engine, partition, 8)
    path = partition.chain.segments[3].path
    engine.disk.flip(path, 8 * 100)
    await engine.node.storage.compactor._tend(partition)
    assert path in engine.node.storage.damages
    assert not engine.node.status()["healthy"]
    assert partition.chain.segments[3].verify()


async def test_a_fold_that_the_disk_refuses_changes_nothing(engine):
    partition = engine.create()
    await flushed(engine, partition, 8)
    before = partition.chain
    engine.fail("rename", "MANIFEST", errno.EIO)
    await engine.node.storage.compactor._tend(partition)
    engine.disk.before = None
    assert partition.chain is before
    assert engine.node.storage.compactor.failure
    engine.check_rows(partition)
    engine.kill()
    engine.check_rows(engine.partition())


@pytest.mark.parametrize("seq", [0, 5])
async def test_inputs_that_a_rollback_removes_meanwhile_are_no_failure_and_no_damage(engine, seq):
    """A leader steps down in the middle of a compaction, and takes its successor's history."""
    partition, storage, workers = engine.create(), engine.node.storage, engine.workers
    await engine.flusher.write_feeds()
    await flushed(engine, partition, 8)

    async def roll_back_once():
        workers.begin_compaction = workers.begin
        await roll_back(storage, partition, seq, partition.log, engine.node.leaderships.system.on_shortfall)
        await engine.flusher.trim()

    workers.begin_compaction = roll_back_once
    await storage.compactor._tend(partition)
    assert (storage.compactor.failure, storage.damages) == ("", {})
    assert partition in storage.compactor._candidates, "its turn comes again at once"
    await storage.compactor._tend(partition)
    assert len(partition.chain.segments) == min(seq, 1)
    partition.check()


async def test_a_failure_is_told_until_it_is_made_good(engine):
    """Whatever becomes of other partitions meanwhile."""
    bad, good = engine.create("bad"), engine.create("good")
    for partition in (bad, good):
        await flushed(engine, partition, 4)
    compactor = engine.node.storage.compactor
    engine.fail("rename", f"{bad.feed_id.hex()}/0/MANIFEST", errno.EIO)
    for partition in (bad, good):
        await compactor._tend(partition)
    assert (len(bad.chain.segments), len(good.chain.segments)) == (4, 1)
    assert "Input/output error" in compactor.failure
    engine.clock.advance(61)
    await compactor._tend(bad)
    assert compactor.failure == ""
    assert len(bad.chain.segments) == 1


async def test_a_failure_ends_with_its_partition(engine):
    partition = engine.create()
    await flushed(engine, partition, 4)
    engine.fail("rename", "MANIFEST", errno.EIO)
    await engine.node.storage.compactor._tend(partition)
    assert engine.node.storage.compactor.failure
    engine.drop()
    engine.sync()
    await engine.flusher.pass_once()
    assert engine.node.storage.compactor.failure == ""


async def test_every_chain_is_looked_at_now_and_then_however_busy_one_is(engine, monkeypatch):
    monkeypatch.setattr(compactor_module, "SWEEP_SECONDS", 0.05)
    busy, idle = engine.create("busy"), engine.create("idle")
    compactor = engine.node.storage.compactor
    seen = set()

    async def tend(partition):
        seen.add(partition)

    monkeypatch.setattr(compactor, "_tend", tend)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compactor.run)
        while seen != {busy, idle, *engine.node.feeds.system.partitions}:
            compactor.consider(busy)
            await trio.sleep(0.005)
        nursery.cancel_scope.cancel()


async def test_more_segments_than_a_manifest_can_name_are_refused(engine, monkeypatch):
    partition = engine.create()
    await flushed(engine, partition, 2)
    monkeypatch.setattr(installer_module, "SEGMENTS_MAX", 1)
    with pytest.raises(Overloaded, match="has 1 segments"):
        await engine.node.storage.installer.write(partition)


async def test_a_look_up_that_outlives_its_feed_is_told(engine):
    partition = engine.create("orders")
    await flushed(engine, partition, 2)
    engine.drop("orders")
    with pytest.raises(UnknownFeed):
        engine.get(partition, b"0")


@pytest.fixture
def compacted(engine, monkeypatch):
    """How each fold was done: "thread" or "process"."""
    ways = []

    def noting(way, compact):
        async def note(task, *rate):
            ways.append(way)
            return await compact(task, *rate)

        return note

    workers, compact = engine.workers, engine.workers.compact
    monkeypatch.setattr(workers, "compact", noting("process", compact))
    monkeypatch.setattr(workers, "compact_small", noting("thread", lambda task: compact(task, None)))
    return ways


@pytest.mark.parametrize(
    ("rows", "value_bytes", "way"),
    [
        (1, 100, "thread"),
        (compactor_module.SMALL_ROWS_MAX // 4, 1, "thread"),
        (compactor_module.SMALL_ROWS_MAX // 4 + 1, 1, "process"),
        (1, compactor_module.SMALL_BYTES_MAX // 4, "process"),
    ],
)
async def test_a_process_is_begun_for_what_is_worth_it(engine, compacted, rows, value_bytes, way):
    partition = engine.create()
    for number in range(4):
        engine.put(partition, *[(b"%d-%d" % (number, row), bytes(value_bytes)) for row in range(rows)])
        await engine.flusher.flush(partition)
    info = engine.node.feeds.of_id(partition.feed_id).info
    assert await engine.node.storage.compactor.compact(partition, info)
    assert compacted[0] == way
    engine.check_rows(partition)


async def test_the_rate_is_kept_only_while_a_process_compacts(engine, monkeypatch, autojump_clock):
    """A look at it now and then delays writes."""
    compactor, looks = engine.node.storage.compactor, []
    set_rate = compactor._set_rate

    def noted():
        looks.append(trio.current_time())
        set_rate()

    async def compact(task, rate):
        await trio.sleep(3.5 * compactor_module.RATE_SECONDS)

    monkeypatch.setattr(compactor, "_set_rate", noted)
    monkeypatch.setattr(engine.workers, "compact", compact)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compactor._keep_rate)
        await trio.sleep(60)
        assert not looks
        await compactor._compact_elsewhere(None)
        assert len(looks) == 4
        await trio.sleep(60)
        assert len(looks) <= 5
        nursery.cancel_scope.cancel()


async def tend(engine, partition, seconds=0.0):
    engine.clock.advance(seconds)
    await engine.node.storage.compactor._tend(partition)


async def test_a_compaction_without_room_is_not_begun(make_engine, monkeypatch):
    engine = make_engine(free_bytes_min=100_000)
    partition = engine.create()
    for number in range(4):
        engine.put(partition, (b"%d" % number, bytes(10_000)))
        await engine.flusher.flush(partition)
    begun = []
    compact = engine.workers.compact_small
    monkeypatch.setattr(engine.workers, "compact_small", lambda task: (begun.append(task), compact(task))[1])
    room, engine.disk.size_bytes = engine.disk.size_bytes, engine.disk.size_bytes - engine.disk.free + 130_000
    for _ in range(20):
        await tend(engine, partition, compactor_module.PAUSE_SECONDS)
        assert "are kept for writers" in engine.node.storage.compactor.failure
    assert begun == []
    engine.disk.size_bytes = room
    await tend(engine, partition, compactor_module.PAUSE_SECONDS)
    assert (len(begun), engine.node.storage.compactor.failure) == (1, "")
    assert len(partition.chain.segments) == 1


async def test_a_compaction_that_fails_is_tried_less_and_less_often(engine, monkeypatch):
    partition = engine.create()
    await flushed(engine, partition, 4)
    tries = []

    async def fail(task):
        tries.append(engine.clock.monotonic())
        raise OSError(errno.EIO, "Input/output error")

    compact = engine.workers.compact_small
    monkeypatch.setattr(engine.workers, "compact_small", fail)
    for _ in range(3 * 60):
        await tend(engine, partition, 60.0)
    pauses = [second - first for first, second in itertools.pairwise(tries)]
    assert pauses[:4] == [60.0, 120.0, 240.0, 480.0]
    assert max(pauses) == compactor_module.PAUSE_SECONDS_MAX
    monkeypatch.setattr(engine.workers, "compact_small", compact)
    await tend(engine, partition, compactor_module.PAUSE_SECONDS_MAX)
    assert engine.node.storage.compactor.failure == ""
    assert not engine.node.storage.compactor._tries
