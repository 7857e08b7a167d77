"""The hazards of the design that storage has to do with, each as a story of a whole node.

 6  the journal's tail            here, and part by part in journal/test_recovery.py and test_writer.py
 7  clean marks, copies           here, and in journal/test_clean.py and test_lock.py
 8  records of another history    here for feeds; rollbacks are in journal/test_replay.py
10  ends inside of segments       here, and in stream/test_segments.py
12  purged deletions              here, and in stream/test_segments.py and compaction/test_worker.py
18  reads and conditions          here over segments; the steps of look-up and append in test_requests.py
23  bad disks and full ones       here, and in segment/test_damage.py; a full disk at every call in
                                  test_crash_at_every_call.py
24  wall clocks                   here, and in upkeep/test_uptime.py
"""

from __future__ import annotations

import errno

import pytest
from tests.memory_disk import LOSE, MemoryDisk, failure

from tailrace.block import encode_block
from tailrace.errors import NoSpace, NotDurable, VersionConflict, VersionLost
from tailrace.model import Level, Version
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.partition.writing import write_block
from tailrace_server.segment import SegmentDamaged

from .checks import check, check_running
from .consumers import Consumer
from .engine import DAY, Engine, FeedSpec

SPEC = FeedSpec("c", tombstone_age_s=100.0)


@pytest.fixture
async def engine():
    """A node with one feed."""
    engine = Engine(MemoryDisk()).open()
    await create(engine, SPEC)
    await engine.trim()  # writes its FEED: from now on manifests count
    return engine


async def create(engine, spec):
    engine.create(spec)
    await engine.sync()


async def write(engine, *keys, name="c", number=0):
    versions = engine.write(name, list(keys), number=number)
    await engine.sync()
    return versions


async def write_and_flush(engine, *keys):
    await write(engine, *keys)
    return await engine.flush("c")


def consumer_of(engine, level=Level.DISK):
    return engine.ledger.consumer(engine.partition("c"), level)


def read(engine, consumer, blocks_max=None):
    return consumer.read(engine.node, engine.ledger.of(engine.partition("c")), blocks_max)


# 6. The journal's tail


async def test_hazard_6b_what_a_start_has_shown_survives_the_next_power_cut(engine):
    engine.write("c", [b"k"])
    engine.disk.kill()
    check(engine.open())
    assert engine.partition("c").high_seq == 1
    engine.disk.cut_power(LOSE)
    check(engine.open())
    assert engine.partition("c").high_seq == 1


async def test_hazard_6c_a_failed_fsync_does_not_come_back_as_data(engine):
    """The pages count as clean then: a second fsync succeeds and writes nothing."""
    await write(engine, b"before")
    engine.write("c", [b"k"])
    engine.disk.fail_at(0, errno.EIO)
    await engine.sync()
    await engine.sync()
    with pytest.raises(NotDurable):
        engine.write("c", [b"later"])
    assert engine.partition("c").durable_seq == 1
    engine.disk.kill()
    check(engine.open())
    engine.disk.cut_power(LOSE)
    check(engine.open())
    assert engine.partition("c").high_seq == 2, "the start has shown it, so it has to be there"


async def test_hazard_6d_writes_go_on_after_a_full_disk_without_a_restart(engine):
    await write(engine, b"before")
    size = engine.disk.size_bytes
    engine.disk.size_bytes -= engine.disk.free - 10
    with pytest.raises(NoSpace):
        engine.write("c", [b"k"], value_bytes=1_000)
    engine.disk.size_bytes = size
    await write(engine, b"after")
    engine.disk.cut_power(LOSE)
    check(engine.open())
    assert engine.partition("c").high_seq == 2


# 7. Clean marks


async def test_hazard_7_a_copy_begins_another_branch_and_consumers_hear_of_it(engine):
    """Both go on from the same seq; a consumer of the one is rolled back by the other, to what both have."""
    await write_and_flush(engine, b"a", b"b")
    engine.stop()
    disk = engine.disk.fork()
    disk.device += 1
    ledger = engine.ledger.copy(engine.clock)
    ledger.is_clean = False
    copied = Engine(disk, seed=2, ledger=ledger, clock=engine.clock.copy()).open()
    engine.open()
    assert engine.node.services.unclean_start is None
    assert "device" in copied.node.services.unclean_start
    await write(engine, b"a", b"of the original")
    await write(copied, b"a", b"of the copy", b"more")
    consumer = consumer_of(engine)
    read(engine, consumer)
    read(copied, consumer)
    assert consumer.why == ["forked"]
    assert {b"of the copy", b"more"} < set(consumer.rows)
    assert b"of the original" not in consumer.rows


async def test_hazard_7_the_mark_of_the_stop_before_last_does_not_count(engine):
    await write(engine, b"k")
    engine.stop()
    mark = engine.disk.fork().content("/data/CLEAN")
    engine.open()
    await write(engine, b"k")
    engine.disk.kill()
    file = engine.disk.create("/data/CLEAN")
    file.write_at(0, (bytes(mark),), len(mark))
    engine.disk.kill()
    check(engine.open())
    assert engine.node.services.unclean_start is not None


# 8. Records of another history


async def test_hazard_8_old_records_do_not_come_back_in_a_feed_of_the_same_name(engine):
    await write_and_flush(engine, b"old", b"older")
    await write(engine, b"not flushed")
    engine.drop("c")
    await create(engine, SPEC)
    await write(engine, b"new")
    for _ in range(2):
        engine.disk.kill()
        check(engine.open())
        assert engine.partition("c").high_seq == 1
        await engine.tend()


async def test_hazard_8_blocks_that_were_flushed_are_skipped_where_another_partition_keeps_their_file(engine):
    """An ordinary flush of one partition, while another has not flushed anything of the same file."""
    await create(engine, FeedSpec("two", partitions=2))
    first, second = (engine.keys_of("two", number, 3) for number in (0, 1))
    await write(engine, *second, name="two", number=1)
    for _ in range(3):
        await write(engine, *first, name="two", number=0)
        await engine.flush("two", 0)
        await engine.trim()
        engine.disk.cut_power(LOSE)
        check(engine.open())
    assert engine.partition("two", 1).flushed_seq == 0


# 10. Ends inside of segments


async def test_hazard_10_what_is_not_durable_is_not_flushed(engine):
    await write(engine, b"k")
    engine.write("c", [b"k"])
    consumer = consumer_of(engine)
    await engine.flush("c")
    assert engine.partition("c").flushed_seq == 1
    read(engine, consumer)
    assert consumer.position.seq == 1
    engine.disk.cut_power(LOSE)
    check(engine.open())
    read(engine, consumer)
    assert consumer.why == []


async def test_hazard_10_half_a_snapshot_at_level_memory_goes_on_at_level_disk_when_all_of_it_is_visible(engine):
    """The first half lacks what the second supersedes, so that there is no state in between."""
    for key in (b"k", b"a", b"k", b"b"):
        engine.write("c", [key])
    consumer = consumer_of(engine, Level.MEMORY)
    assert not read(engine, consumer, 2)
    consumer.level = Level.DISK
    read(engine, consumer)
    assert consumer.position.seq == 2, "nothing is shown before it is durable"
    await engine.sync()
    await engine.flush("c")
    read(engine, consumer)
    assert (consumer.position.seq, consumer.position.snapshot_last) == (4, 4)


# 12. Purged deletions


async def purged(engine):
    """k was put, a consumer saw it, k was deleted, and the deletion was purged."""
    await write_and_flush(engine, b"k", b"other")
    consumer = consumer_of(engine)
    read(engine, consumer)
    await write_and_flush(engine, b"-k")
    await write_and_flush(engine, b"x")
    await write_and_flush(engine, b"y")
    engine.clock.advance(200)
    assert await engine.fold("c")
    assert engine.partition("c").purge_seq == 3
    return consumer


@pytest.mark.parametrize("restarts", [False, True])
async def test_hazard_12_who_has_not_seen_a_purged_deletion_begins_at_0(engine, restarts):
    consumer = await purged(engine)
    if restarts:
        engine.disk.cut_power(LOSE)
        engine.open()
    read(engine, consumer)
    assert consumer.why == ["purged"]
    assert b"k" not in consumer.rows


async def test_hazard_12_a_fold_without_the_oldest_segment_keeps_deletions(engine):
    """Else what they delete would be alive again in the oldest one."""
    engine.write("c", [b"k", *(b"large%d" % row for row in range(30))], value_bytes=9_000)
    await engine.sync()
    await engine.flush("c")
    for key in (b"-k", b"x", b"y", b"z"):
        await write_and_flush(engine, key)
    engine.clock.advance(1_000)
    assert await engine.fold("c")
    _, minor = engine.partition("c").chain.segments
    assert (minor.identity.tombstones, engine.partition("c").purge_seq) == (1, 0)
    check_running(engine)


async def test_hazard_12_a_first_fill_over_several_connections_comes_to_its_end(engine):
    await purged(engine)
    consumer = consumer_of(engine)
    for _ in range(10):
        if read(engine, consumer, 1):
            break
    assert consumer.why == []
    assert consumer.position.seq == engine.partition("c").high_seq


# 18. Reads and conditions, over what is flushed


def conditional(engine, key, value, flags, version=None):
    partition = engine.partition("c")
    partition.keys.catch_up(partition.tree, lambda: False)
    block = encode_block([key], [value], partition=0, producer_id=77, producer_seq=1)
    return write_block(
        partition, block, engine.node.storage.journal, now_us=1, now=1.0, flags=flags, if_version=version
    )


async def test_hazard_18_a_condition_sees_what_is_flushed(engine):
    await write_and_flush(engine, b"k", b"gone", b"-gone")
    current = engine.partition("c").version_of(1)
    with pytest.raises(VersionConflict) as caught:
        conditional(engine, b"k", b"v", WriteFlag.IF_ABSENT)
    assert caught.value.current == current
    assert not conditional(engine, b"gone", None, WriteFlag.IF_PRESENT).fresh
    assert conditional(engine, b"k", b"v", WriteFlag.IF_VERSION, current).fresh


async def test_hazard_18_a_version_that_was_lost_is_no_version_of_what_came_in_its_place(engine):
    await write(engine, b"before")
    versions = engine.write("c", [b"k"])
    engine.disk.cut_power(LOSE)
    engine.open()
    await write_and_flush(engine, b"k")
    lost = Version(0, versions.branch, versions.first_seq)
    with pytest.raises(VersionLost):
        conditional(engine, b"k", b"v", WriteFlag.IF_VERSION, lost)


# 23. Bad disks and full ones


async def test_hazard_23_a_segment_that_cannot_be_read_is_named_and_concerns_nobody_else(engine):
    segment = await write_and_flush(engine, b"k")
    await create(engine, FeedSpec("other"))
    await write(engine, b"k", name="other")
    await engine.flush("other")

    def before(name, path):
        if name == "read_at" and path == segment.path:
            raise failure(errno.EIO, path)

    engine.disk.before = before
    partition, other = engine.partition("c"), engine.partition("other")
    for each in (partition, other):
        each.keys.catch_up(each.tree, lambda: False)
    with pytest.raises(SegmentDamaged, match="Input/output error") as caught:
        newest_row(partition, b"k")
    assert caught.value.path == segment.path
    with pytest.raises(SegmentDamaged):
        read(engine, consumer_of(engine))
    assert newest_row(other, b"k") is not None
    assert Consumer(engine.ledger.of(other), engine.feed_info(other), Level.DISK).read(
        engine.node, engine.ledger.of(other)
    )


async def test_hazard_23_a_segment_that_was_cut_off_is_an_error_and_not_the_end(engine):
    segment = await write_and_flush(engine, b"k")
    del engine.disk.content(segment.path)[100:]
    partition = engine.partition("c")
    partition.keys.catch_up(partition.tree, lambda: False)
    with pytest.raises(SegmentDamaged):
        newest_row(partition, b"k")


async def test_hazard_23_a_full_disk_is_emptied_with_what_was_kept_for_that(engine):
    await engine.node.storage.space.look()
    for _ in range(8):
        await write(engine, *(b"k%d" % row for row in range(20)))
    await engine.flush_feeds()
    await engine.trim()
    files = len(engine.node.storage.journal.file_numbers)
    engine.disk.size_bytes -= engine.disk.free
    with pytest.raises(NoSpace):
        engine.write("c", [b"k"], value_bytes=3_000)
    engine.clock.advance(100)
    await engine.node.storage.flusher.pass_once()
    assert engine.node.storage.flusher.failure == ""
    assert len(engine.node.storage.journal.file_numbers) < files
    await write(engine, b"k")
    check_running(engine)


# 24. Wall clocks


@pytest.mark.parametrize("restarts", [False, True])
async def test_hazard_24_a_jump_of_the_clock_makes_nothing_old(engine, restarts):
    await create(engine, FeedSpec("h", retention="history", history_age_s=100.0))
    await write(engine, b"k", name="h")
    await engine.flush("h")
    for key in (b"k", b"-k", b"x", b"y"):
        await write_and_flush(engine, key)
    engine.clock.jump(365 * DAY)
    if restarts:
        engine.stop()
        engine.open()
    await engine.tend()
    assert (engine.partition("c").purge_seq, engine.partition("h").trim_seq) == (0, 0)
    assert bool(engine.node.storage.compactor.uptime.suspended) != restarts
    check_running(engine)


async def test_hazard_24_timestamps_do_not_fall_with_the_clock(engine):
    await write_and_flush(engine, b"k")
    before = engine.partition("c").last_timestamp
    engine.clock.jump(-365 * DAY)
    for how in ("goes on", "flushed", "killed"):
        await write(engine, how.encode())
        assert engine.partition("c").last_timestamp == before
        if how == "flushed":
            await engine.flush("c")
        engine.disk.kill()
        check(engine.open())
