"""What a start makes of manifests and journal, whatever was moved from the one to the other before."""

import pytest
from tests.memory_disk import LOSE

from tailrace.wire.messages import WriteFlag
from tailrace_server.segment import SegmentDamaged

ROW = (b"k", bytes(900))


def log_of(partition):
    return [tuple(entry) for entry in partition.log]


async def test_blocks_that_are_in_a_segment_already_are_passed_over(engine):
    """The process dies between the manifest and the trim."""
    partition = engine.create()
    await engine.flusher.pass_once()
    for number in range(3):
        engine.put(partition, (b"%d" % number, b"v"))
    await engine.flusher.flush(partition)
    engine.put(partition, (b"new", b"v"))
    engine.kill()
    partition = engine.partition()
    assert (partition.flushed_seq, partition.high_seq, partition.durable_seq) == (3, 4, 4)
    assert [b.header.first_seq for b in partition.tree.blocks_after(0)] == [4]
    engine.check_rows(partition)


async def test_all_of_it_may_be_in_segments(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    engine.put(partition, (b"gone", b"1"), (b"gone", None))
    await engine.flusher.pass_once()
    for _ in range(2):
        engine.kill()
        partition = engine.partition()
        assert (partition.flushed_seq, partition.high_seq) == (3, 3)
        assert engine.node.storage.memory.used == 0
        engine.check_rows(partition)
        await engine.flusher.pass_once()


async def test_a_start_that_is_not_clean_begins_a_branch_that_the_next_manifest_has(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.kill()
    partition = engine.partition()
    assert partition.log.term == 2
    engine.put(partition, (b"a", b"1"))
    await engine.flusher.pass_once()
    assert len(engine.journal_files) == 1
    log = log_of(partition)
    engine.kill()
    assert log_of(engine.partition())[1:] == log
    engine.check_rows(engine.partition())


async def test_a_branch_alone_is_given_a_home_too(engine):
    """Nothing was written since: the manifest is written for it, so that the journal can go."""
    engine.put(engine.create(), ROW)
    await engine.flusher.pass_once()
    engine.kill()
    other = engine.create("other")
    for _ in range(3):
        engine.put(other, ROW)
    await engine.flusher.pass_once()
    assert len(engine.journal_files) == 1
    term = engine.partition().log.term
    engine.kill()
    assert engine.partition().log.term == term + 1


async def test_timestamps_go_on_where_they_were(engine):
    partition = engine.create()
    before = engine.clock.wall_us()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.clock.jump(-8)
    engine.kill()
    partition = engine.partition()
    engine.put(partition, ROW)
    assert partition.last_timestamp == before


# Resends


@pytest.mark.parametrize("flushed", ["all", "some", "none"])
async def test_a_resend_is_recognised_wherever_its_block_is(engine, flushed):
    partition = engine.create()
    first = [engine.put(partition, ROW, number=number) for number in (1, 2)]
    if flushed == "some":
        await engine.flusher.pass_once()
    first += [engine.put(partition, ROW, number=3)]
    if flushed == "all":
        await engine.flusher.pass_once()
        assert len(engine.journal_files) == 1
    engine.kill()
    partition = engine.partition()
    for number, taken in enumerate(first, 1):
        again = engine.put(partition, ROW, number=number, flags=WriteFlag.RESEND)
        assert (again.versions, again.fresh) == (taken.versions, False)
    assert engine.put(partition, ROW, number=4).fresh


async def test_a_manifest_knows_of_no_block_that_it_does_not_have(engine):
    """Block 2 is lost with the journal's unsynced end: its resend has to be written."""
    partition = engine.create()
    engine.put(partition, ROW, number=1)
    engine.put(partition, ROW, number=2, sync=False)
    await engine.flusher.flush(partition)
    engine.written[partition.feed_id, 0].pop()
    engine.disk.cut_power(LOSE)
    engine.start()
    partition = engine.partition()
    assert partition.high_seq == 1
    assert engine.put(partition, ROW, number=2, flags=WriteFlag.RESEND).fresh
    engine.check_rows(partition)


async def test_a_producer_that_was_never_heard_of_is_not_made_up(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.kill()
    assert engine.put(engine.partition(), ROW, producer=8, number=1, flags=WriteFlag.RESEND).fresh


# Feeds


async def test_a_feed_without_rows_comes_back_from_its_file(engine):
    engine.create("empty")
    busy = engine.create("busy")
    for _ in range(3):
        engine.put(busy, ROW)
    await engine.flusher.pass_once()
    assert len(engine.journal_files) == 1
    assert not engine.node.feeds.creations
    made = engine.node.feeds.named("empty")
    engine.kill()
    found = engine.node.feeds.named("empty")
    assert (found.info, found.first_branch) == (made.info, made.first_branch)
    assert engine.partition("empty").log.term == 2
    engine.check_rows(engine.partition("busy"))


async def test_a_dropped_feed_stays_dropped(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.drop()
    engine.sync()
    engine.kill()
    assert len(engine.node.feeds) == 0
    assert list(engine.node.feeds.drops) == [partition.feed_id]
    await engine.flusher.pass_once()
    assert engine.feed_directories() == []
    assert not engine.node.feeds.drops
    engine.kill()
    assert len(engine.node.feeds) == 0


async def test_its_files_stay_until_the_drop_is_durable(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.pass_once()
    engine.drop()
    await engine.flusher.pass_once()
    assert engine.segments(partition)
    engine.sync()
    await engine.flusher.pass_once()
    assert not engine.segments(partition)


async def test_a_feed_that_was_dropped_before_it_had_its_file(engine):
    """It has segments, since a pass flushes before it writes FEED."""
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.flush(partition)
    engine.drop()
    engine.sync()
    engine.kill()
    assert len(engine.node.feeds) == 0
    await engine.flusher.pass_once()
    assert engine.feed_directories() == []


async def test_the_next_feed_of_a_name(engine):
    """The new one has its FEED already, the old one's files are still there."""
    old = engine.create()
    engine.put(old, (b"old", b"1"))
    await engine.flusher.pass_once()
    engine.drop()
    feed_id = b"\xff" * 16
    for order in (b"\x01" * 16, feed_id):
        engine.node.feed_changes.create({"name": "orders", "feed_id": order.hex(), "partitions": 1})
        engine.sync()
        new = engine.partition()
        engine.put(new, (b"new", order))
        await engine.node.storage.flusher._trimmer.write_feeds()
        await engine.flusher.flush(new)
        engine.kill()
        new = engine.partition()
        assert new.feed_id == order
        engine.check_rows(new)
        if order != feed_id:
            engine.drop()
    await engine.flusher.pass_once()
    assert engine.feed_directories() == [feed_id.hex()]


async def test_a_feed_that_has_segments_and_no_file_is_read_from_the_journal(engine):
    partition = engine.create()
    engine.put(partition, ROW)
    await engine.flusher.flush(partition)
    engine.put(partition, (b"a", b"1"))
    engine.kill()
    partition = engine.partition()
    engine.check_rows(partition)
    await engine.flusher.pass_once()
    engine.kill()
    engine.check_rows(engine.partition())
    assert len(engine.segments(engine.partition())) == len(engine.partition().chain.segments)


# Damage


@pytest.fixture
async def damaged(engine):
    """Two feeds with a segment each; that of ``orders`` has lost its last byte while the node was down."""
    for name in ("orders", "other"):
        engine.put(engine.create(name), (b"a", bytes(500)))
    await engine.flusher.pass_once()
    engine.put(engine.partition(), (b"b", b"2"))
    (segment,) = engine.partition().chain.segments
    engine.good = bytes(engine.disk.content(segment.path))
    del engine.disk.content(segment.path)[-1:]
    engine.path = segment.path
    engine.kill()
    return engine


async def test_a_damaged_segment_concerns_its_partition_only(damaged):
    status = damaged.node.status()
    assert not status["healthy"]
    assert damaged.path in status["failure"]
    assert "damaged at offset" in status["failure"]
    damaged.check_rows(damaged.partition("other"))
    damaged.put(damaged.partition("other"), ROW)
    with pytest.raises(SegmentDamaged):
        damaged.put(damaged.partition(), ROW, number=9)
    assert damaged.get(damaged.partition(), b"b") == [b"2"]
    with pytest.raises(SegmentDamaged):
        damaged.get(damaged.partition(), b"a")


async def test_its_manifest_goes_on_naming_it_so_that_it_can_be_put_back(damaged):
    """A flush, a new branch and two starts later."""
    await damaged.flusher.pass_once()
    assert damaged.flusher.failure == ""
    assert damaged.partition().flushed_seq == 2
    damaged.kill()
    assert len(damaged.segments(damaged.partition())) == 2
    damaged.disk.content(damaged.path)[:] = damaged.good
    damaged.kill()
    assert damaged.node.status()["healthy"]
    damaged.check_rows(damaged.partition())


async def test_a_segment_that_is_missing_or_another_one(damaged):
    other = damaged.partition("other").chain.segments[0].path
    damaged.disk.content(damaged.path)[:] = damaged.disk.content(other)
    damaged.kill()
    assert "the manifest says" in damaged.node.status()["failure"]
    damaged.disk.remove(damaged.path)
    damaged.kill()
    assert "it cannot be opened" in damaged.node.status()["failure"]
    assert not damaged.partition("other").damage
