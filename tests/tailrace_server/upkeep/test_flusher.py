"""Write queues move to segments: what may move, in which order, and what happens where the disk refuses."""

import errno
import itertools

import pytest
import trio
import trio.testing
from tests.tailrace_server.replication.made_set import until

from tailrace_server.journal.format import file_name

ROW = (b"k", bytes(900))


async def test_what_is_not_durable_is_not_flushed(engine):
    partition = engine.create()
    engine.put(partition, (b"a", b"1"))
    engine.put(partition, (b"b", b"2"), sync=False)
    await engine.flusher.pass_once()
    assert (partition.flushed_seq, partition.high_seq) == (1, 2)
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 1
    engine.sync(partition)
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 2
    assert partition.tree.block_count == 0
    engine.check_rows(partition)


async def test_two_flushes_of_one_partition_take_turns(engine):
    partition = engine.create()
    for number in range(4):
        engine.put(partition, (b"k%d" % number, b"1"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.flusher.flush, partition)
        nursery.start_soon(engine.flusher.flush_all, partition)
    assert len(engine.segments(partition)) == 1
    assert partition.flushed_seq == 4
    engine.node.check()
    engine.check_rows(partition)


@pytest.mark.parametrize("rows", [1, 3])  # of a block
@pytest.mark.parametrize("wait", [1, 2])  # of the flush: for the segment's thread, and for the manifest's
async def test_blocks_are_merged_while_some_of_them_are_flushed(engine, rows, wait):
    """A merged block that crosses the end of the flush would stay in the queue, with rows that a segment has."""
    partition, waits = engine.create(), itertools.count(1)

    def put(numbers):
        for number in numbers:
            engine.put(partition, *[(b"%d-%d" % (number, row), b"1") for row in range(rows)])

    async def merge():
        if next(waits) == wait:
            put(range(40, 64))
            await engine.flusher.merger.merge(partition)
            assert partition.tree.block_count < 64

    put([-1])
    await engine.flusher.flush(partition)
    put(range(40))
    engine.workers.begin = merge
    await engine.flusher.flush(partition)
    assert partition.flushed_seq == partition.chain.flushed_seq == 41 * rows
    engine.node.check()
    await engine.flusher.flush(partition)
    assert partition.flushed_seq == partition.chain.flushed_seq == 65 * rows
    engine.check_rows(partition)
    engine.kill()
    engine.check_rows(engine.partition())


async def test_blocks_are_merged_while_a_flush_waits_for_its_turn(engine):
    """The flush takes all rows that were stable when it was asked for, also those that are in a merged block now."""
    partition = engine.create()
    for number in range(40):
        engine.put(partition, (b"%d" % number, b"1"))
    async with trio.open_nursery() as nursery, engine.flusher._flushing[partition]:
        nursery.start_soon(engine.flusher.flush, partition)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(40, 64):
            engine.put(partition, (b"%d" % number, b"1"))
        await engine.flusher.merger.merge(partition)
        assert partition.tree.block_count == 1
    assert partition.flushed_seq >= 40


async def test_all_that_is_written_meanwhile_is_flushed_too(engine):
    """A row that came after the fsync is in the queue, too: it needs an fsync of its own."""
    partition = engine.create()
    late = [(b"later", b"2"), (b"last", b"3")]

    async def commit():
        engine.sync(partition)
        if late:
            engine.put(partition, late.pop(0), sync=False)

    engine.put(partition, (b"first", b"1"), sync=False)
    engine.flusher.commit = commit
    with trio.fail_after(60):
        await engine.flusher.flush_all(partition)
    assert partition.tree.block_count == 0
    assert partition.flushed_seq == partition.high_seq == 3
    engine.check_rows(partition)


async def test_nothing_durable_is_no_segment(engine):
    partition = engine.create()
    engine.put(partition, (b"a", b"1"), sync=False)
    await engine.flusher.pass_once()
    assert engine.segments(partition) == []
    assert await engine.flusher.flush(partition) is None


async def test_segment_then_manifest_then_what_nobody_needs(engine):
    partition = engine.create()
    for _ in range(3):
        engine.put(partition, ROW)
    order = []

    def before(name, path):
        if name in ("rename", "remove", "sync_directory"):
            order.append((name, path.rpartition("/")[2].removesuffix(".new")))

    engine.disk.before = before
    await engine.flusher.pass_once()
    (segment,) = engine.segments(partition)
    places = [order.index(step) for step in [("rename", segment), ("rename", "FEED"), ("remove", engine_first(order))]]
    manifests = [index for index, step in enumerate(order) if step == ("rename", "MANIFEST")]
    assert manifests[0] < places[0] < manifests[1] < places[1] < places[2]
    for number in (*manifests, *places[:2]):
        assert order[number + 1][0] == "sync_directory", "each name is durable before the next step"


def engine_first(order):
    """The first file of the journal that was removed."""
    return next(name for call, name in order if call == "remove")


async def test_the_journal_is_trimmed_behind_a_flush(engine):
    partition = engine.create()
    for _ in range(5):
        engine.put(partition, ROW)
    assert len(engine.journal_files) > 5
    await engine.flusher.pass_once()
    assert len(engine.journal_files) == 1
    engine.kill()
    engine.check_rows(engine.partition())


async def test_one_partition_that_is_not_flushed_keeps_the_journal(engine):
    first, second = engine.create("first"), engine.create("second")
    engine.put(second, (b"a", bytes(900)), sync=False)
    needed = file_name(engine.node.storage.journal.end[0])
    for _ in range(3):
        engine.put(first, ROW)
    await engine.flusher.flush(first)
    await engine.flusher.pass_once()
    assert engine.journal_files[0] == needed
    engine.kill()
    engine.check_rows(engine.partition("second"))


async def test_a_large_queue_becomes_several_segments(engine, monkeypatch):
    monkeypatch.setattr("tailrace_server.upkeep.flushed_segment.SEGMENT_BYTES_MAX", 2_500)
    partition = engine.create()
    for _ in range(5):
        engine.put(partition, ROW)
    while partition.tree.block_count:
        await engine.flusher.pass_once()
    assert [s.identity.last_seq for s in partition.chain.segments] == [2, 4, 5]
    engine.check_rows(partition)


async def test_on_a_full_disk_everything_stays_and_is_tried_again(engine):
    partition = engine.create()
    engine.put(partition, *[(b"%d" % n, bytes(100)) for n in range(100)])
    engine.disk.size_bytes -= engine.disk.free - 100
    before = partition.tree
    for _ in range(3):
        engine.clock.advance(10)
        await engine.flusher.pass_once()
        assert "no space" in engine.flusher.failure.lower()
        assert partition.account.stuck == engine.flusher.failure
        assert partition.tree is before
        assert engine.segments(partition) == []
        engine.check_rows(partition)
    assert not engine.node.status()["healthy"]
    assert engine.disk.free == 100, "nothing is left behind"
    engine.disk.size_bytes += 1 << 20
    engine.clock.advance(10)
    await engine.flusher.pass_once()
    assert (engine.flusher.failure, partition.account.stuck) == ("", "")
    assert partition.flushed_seq == 100
    assert engine.node.status()["healthy"]


async def test_the_reserve_lets_a_flush_through(make_engine):
    engine = make_engine(reserve_bytes=64 * 1024)
    partition = engine.create()
    await engine.flusher.pass_once()
    assert engine.node.storage.space.reserved_bytes == 64 * 1024
    engine.put(partition, *[(b"%d" % n, bytes(100)) for n in range(100)])
    engine.disk.size_bytes -= engine.disk.free - 100
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 100


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_whatever_fails_once_is_made_good(make_engine, code):
    """One call of a flush and all that follows it fails, each in turn."""
    for number in itertools.count():
        engine = make_engine()
        partition = engine.create()
        for n in range(4):
            engine.put(partition, (b"%d" % n, bytes(900)))
        engine.disk.fail_at(number, code)
        await engine.flusher.pass_once()
        failed = engine.disk.before is None
        engine.disk.before = None
        engine.check_rows(partition)
        engine.clock.advance(10)
        await engine.flusher.pass_once()
        assert engine.flusher.failure == ""
        assert partition.flushed_seq == 4
        assert len(engine.journal_files) == 1
        engine.check_rows(partition)
        engine.kill()
        engine.check_rows(engine.partition())
        assert len(engine.segments(engine.partition())) == len(engine.partition().chain.segments)
        if not failed:
            return


@pytest.fixture
async def half_installed(engine):
    """A partition whose manifest failed late: it may be on the disk, and name the segment that was flushed."""
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.node.storage.installer.write(partition)
    engine.fail("rename", "MANIFEST")
    await engine.flusher.pass_once()
    assert engine.flusher.failure
    return partition


async def test_a_manifest_that_fails_late_leaves_a_segment_until_the_next_one(engine, half_installed):
    partition = half_installed
    assert len(engine.segments(partition)) == 1
    engine.disk.before = None
    engine.clock.advance(10)
    await engine.flusher.pass_once()
    assert len(engine.segments(partition)) == 1
    assert engine.segments(partition) == [partition.chain.segments[0].path.rpartition("/")[2]]


async def test_a_leftover_that_cannot_be_removed_does_no_harm(engine, half_installed):
    """What was installed stays installed, whatever becomes of what an earlier try has left."""
    partition = half_installed
    engine.fail("remove", ".seg")
    await engine.flusher.pass_once()
    engine.check_rows(partition)
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.check_rows(partition)
    engine.kill()
    engine.check_rows(engine.partition())


async def test_one_partition_that_fails_holds_up_no_other(engine):
    first, second = engine.create("first"), engine.create("second")
    engine.put(first, (b"a", bytes(200)))
    engine.put(second, ROW)
    engine.fail("create", second.feed_id.hex(), times=100)
    await engine.flusher.pass_once()
    assert engine.flusher.failure
    assert (first.flushed_seq, second.flushed_seq) == (1, 0)


async def test_a_feed_that_is_dropped_while_it_is_flushed(engine):
    engine.put(engine.create(), ROW)
    for number in itertools.count():
        name = f"feed{number}"
        partition = engine.create(name)
        engine.put(partition, ROW)
        calls = itertools.count()

        def drop_then(number=number, name=name, calls=calls):
            if next(calls) == number:
                engine.drop(name)

        engine.workers.before = drop_then
        await engine.flusher.pass_once()
        engine.workers.before = lambda: None
        assert engine.flusher.failure == ""
        dropped = partition.is_dropped
        if not dropped:
            break
        engine.node.storage.journal.sync()
        await engine.flusher.pass_once()
        directory = engine.node.storage.store.feed_directory(partition.feed_id)
        assert not engine.disk.exists(directory)
        assert not engine.node.feeds.drops
    assert number > 3
    engine.check_rows(engine.partition())
    engine.kill()
    assert [feed.info.name for feed in engine.node.feeds] == [name, "orders"]


async def test_a_feed_that_is_dropped_before_its_first_segment(engine):
    """Its manifest has just been written, which comes before the segment; the rest of what is due goes on."""
    partition, other = engine.create("dropped"), engine.create()
    engine.put(partition, ROW)
    engine.put(other, ROW)
    write = engine.flusher._installer.write

    async def write_and_drop(written):
        await write(written)
        if written is partition:
            engine.drop("dropped")

    engine.flusher._installer.write = write_and_drop
    await engine.flusher.pass_once()
    assert partition.is_dropped
    assert engine.flusher.failure == ""
    assert other.flushed_seq == 1


async def test_queues_are_gone_through_when_one_is_of_age_and_not_before(make_engine, monkeypatch):
    engine = make_engine(flush_age_s=100)
    partition = engine.create()
    await engine.flusher.flush(*engine.node.feeds.system.partitions)
    engine.put(partition, ROW)
    looks, queues = [], engine.flusher._queues
    monkeypatch.setattr(engine.flusher, "_queues", lambda now, **more: looks.append(now) or queues(now, **more))
    for _ in range(9):
        engine.clock.advance(10)
        await engine.flusher.pass_once()
    assert (looks, partition.flushed_seq) == ([], 0)
    engine.clock.advance(10)
    await engine.flusher.pass_once()
    assert (len(looks), partition.flushed_seq) == (1, 1)


async def test_a_feed_whose_followers_get_segments_from_now_on_is_flushed_at_that_age(make_engine):
    engine = make_engine(flush_age_s=1e9, pushed_age_s=5)
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    partition.pushes.replicate(by_segments=True)
    engine.node._mode_changed(engine.node.feeds.of_id(partition.feed_id))
    engine.clock.advance(6)
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 1


async def test_a_queue_that_is_full_of_small_blocks_is_flushed_at_once(make_engine, monkeypatch):
    """It has to be merged, too: the one may not hide the other."""
    monkeypatch.setattr("tailrace_server.upkeep.flusher.UNMERGED_BLOCKS", 1)
    engine = make_engine(segment_bytes=5_000, flush_age_s=1e9)
    partition = engine.create()
    await engine.flusher.flush(*engine.node.feeds.system.partitions)
    for _ in range(10):
        engine.put(partition, ROW)
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 10


async def test_memory_wakes_it_and_the_largest_goes_first(make_engine):
    engine = make_engine(memory_bytes_max=20_000, flush_age_s=1e9)
    first, second = engine.create("first"), engine.create("second")
    await engine.flusher.flush(*engine.node.feeds.system.partitions)
    engine.put(first, (b"a", bytes(2_000)))
    for _ in range(4):
        engine.put(second, (b"k", bytes(1_000)))
    assert not engine.node.storage.memory.is_tight
    await engine.flusher.pass_once()
    assert second.flushed_seq == 0
    for _ in range(6):
        engine.put(second, (b"k", bytes(1_000)))
    assert engine.node.storage.memory.is_tight
    await engine.flusher.pass_once()
    assert (first.flushed_seq, second.flushed_seq) == (0, 10)
    assert not engine.node.storage.memory.is_tight


async def test_a_journal_of_many_small_records_is_flushed_and_trimmed(make_engine):
    engine = make_engine(flush_age_s=1e9, journal_bytes_max=1 << 30, journal_replay_s=20 * 8e-6)
    partition = engine.create()
    for _ in range(30):
        engine.put(partition, (b"k", b"v"))
        await engine.flusher.pass_once()
        files = len(engine.journal_files)
        assert engine.node.storage.journal.statistics().records <= 20 + 4  # and what the newest file has
    assert files < 8
    assert partition.flushed_seq > 0
    engine.kill()
    engine.check_rows(engine.partition())


async def test_before_a_stop_a_long_journal_is_flushed(make_engine, monkeypatch):
    engine = make_engine(flush_age_s=1e9)
    partitions = [engine.create(name) for name in ("first", "second")]
    for partition in partitions * 3:
        engine.put(partition, ROW)
    await engine.flusher.flush_for_stop()
    assert [partition.flushed_seq for partition in partitions] == [0, 0]  # it is short
    monkeypatch.setattr("tailrace_server.upkeep.flusher.FOR_STOP_REPLAY_SECONDS", 5 * 8e-6)
    await engine.flusher.flush_for_stop()
    assert [partition.flushed_seq for partition in partitions] == [3, 3]
    assert len(engine.journal_files) == 1
    engine.node.stop()
    engine.start()
    assert engine.node.services.unclean_start is None
    for name in ("first", "second"):
        engine.check_rows(engine.partition(name))


async def test_what_the_disk_refuses_before_a_stop_stays_in_the_journal(make_engine, monkeypatch):
    monkeypatch.setattr("tailrace_server.upkeep.flusher.FOR_STOP_REPLAY_SECONDS", 8e-6)
    engine = make_engine(flush_age_s=1e9)
    partition = engine.create()
    engine.put(partition, ROW)
    engine.fail("create", ".seg", times=10)
    await engine.flusher.flush_for_stop()
    assert partition.flushed_seq == 0
    engine.node.stop()
    engine.start()
    engine.check_rows(engine.partition())
    assert engine.partition().high_seq == 1


async def test_a_flush_before_a_stop_ends_when_its_time_is_over(make_engine, monkeypatch, autojump_clock):
    monkeypatch.setattr("tailrace_server.upkeep.flusher.FOR_STOP_REPLAY_SECONDS", 8e-6)
    engine = make_engine(flush_age_s=1e9)
    partitions = [engine.create(f"feed-{number}") for number in range(5)]
    for partition in partitions:
        engine.put(partition, ROW)
    flush = engine.flusher.flush

    async def slow(partition):
        await trio.sleep(1.2)  # that of `_feeds` is the first one
        return await flush(partition)

    engine.flusher.flush = slow
    began = trio.current_time()
    await engine.flusher.flush_for_stop()
    assert trio.current_time() - began == 3.0
    assert [partition.flushed_seq for partition in partitions] == [1, 0, 0, 0, 0]


async def trimmed(engine):
    """A history of two rows, which were flushed and trimmed."""
    partition = engine.create(retention="history")
    engine.put(partition, (b"a", b"1"), (b"b", b"2"))
    await engine.flusher.flush_all(partition)
    await engine.node.storage.installer.drop_oldest(partition, 1)
    await engine.flusher.trim()
    assert not engine.segments(partition)
    return partition


async def test_the_end_of_a_trimmed_history_is_a_segment_without_rows(engine):
    partition = await trimmed(engine)
    await engine.flusher.flush_end(partition)
    await engine.flusher.flush_end(partition)  # it is there
    engine.kill()
    partition = engine.partition()
    [segment] = partition.chain.segments
    assert segment.verify() == []
    assert (segment.identity.last_seq, segment.identity.rows, partition.trim_seq) == (2, 0, 2)
    engine.put(partition, (b"c", b"3"))
    await engine.flusher.flush_all(partition)
    engine.kill()
    assert [s.identity.last_seq for s in engine.partition().chain.segments] == [2, 3]
    assert engine.get(engine.partition(), b"a", b"c") == [None, b"3"]


async def test_only_a_trimmed_history_gets_such_an_end(engine):
    partition = engine.create(retention="history")
    await engine.flusher.flush_end(partition)
    assert not engine.segments(partition)
    engine.put(partition, (b"a", b"1"))
    await engine.flusher.flush_end(partition)
    assert not engine.segments(partition)
    await engine.flusher.flush_all(partition)
    before = engine.segments(partition)
    await engine.flusher.flush_end(partition)
    assert engine.segments(partition) == before


@pytest.mark.parametrize("call", ["rename", "sync"])
async def test_a_disk_that_refuses_the_end_leaves_all_as_it_was(engine, call):
    partition = await trimmed(engine)
    engine.fail(call, ".seg")
    with pytest.raises(OSError, match="Input/output error"):
        await engine.flusher.flush_end(partition)
    assert not partition.chain.segments
    await engine.flusher.flush_end(partition)
    assert [segment.identity.last_seq for segment in partition.chain.segments] == [2]
    engine.node.check()


async def test_two_requests_for_such_an_end_make_one(engine):
    """Two followers that were away ask for it at the same time."""
    partition = await trimmed(engine)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(engine.flusher.flush_end, partition)
    assert len(engine.segments(partition)) == len(partition.chain.segments) == 1
    engine.kill()
    assert engine.partition().flushed_seq == 2


async def test_a_pass_that_only_merges_asks_for_no_trim(make_engine, monkeypatch):
    engine = make_engine(segment_bytes=1 << 30, flush_age_s=1e6, journal_bytes_max=1 << 30)
    partition, trims, flusher = engine.create(), [], engine.flusher

    async def trim():
        trims.append(partition.flushed_seq)

    monkeypatch.setattr(flusher, "trim", trim)
    monkeypatch.setattr("tailrace_server.upkeep.flusher.TICK_SECONDS", 1e6)
    monkeypatch.setattr("tailrace_server.upkeep.flusher.UNMERGED_BLOCKS", 64)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run)
        flusher.wake()
        await until(lambda: len(trims) == 1)
        for number in range(64):
            engine.put(partition, (b"k%d" % number, b"1"))
        await until(lambda: partition.tree.block_count < 64)
        await trio.testing.wait_all_tasks_blocked()
        assert len(trims) == 1
        flusher.wake()
        await until(lambda: len(trims) == 2)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("queues", [1, 2])
async def test_of_many_queues_none_waits_for_a_lull_to_be_merged(make_engine, monkeypatch, queues):
    """Each would have a few steps, and lulls may be rare."""
    engine, works = make_engine(segment_bytes=1 << 30, flush_age_s=1e6, journal_bytes_max=1 << 30), []
    merger = engine.flusher.merger
    run = merger.lulls.run

    async def noted(steps):
        works.append(steps)
        await run(steps)

    monkeypatch.setattr(merger.lulls, "run", noted)
    monkeypatch.setattr("tailrace_server.upkeep.merger.QUEUES_IN_LULLS", 1)
    partitions = [engine.create(f"feed{number}") for number in range(queues)]
    for partition in partitions:
        for number in range(64):
            engine.put(partition, (b"k%d" % number, b"1"))
    assert not await merger.merge_all(dict.fromkeys(partitions))
    assert all(partition.tree.block_count < 64 for partition in partitions)
    assert bool(works) == (queues == 1)
    for partition in partitions:
        engine.check_rows(partition)
