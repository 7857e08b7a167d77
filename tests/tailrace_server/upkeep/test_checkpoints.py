"""Checkpoints keep the files that a client copies: for how long, how many, and what a checkpoint says."""

import errno

import pytest
import trio

from tailrace.errors import BadSegment, NotDurable, Overloaded, UnknownCheckpoint, UnknownFeed
from tailrace.model import Level
from tailrace_server.config import Limits
from tailrace_server.segment import SegmentDamaged
from tailrace_server.upkeep.checkpoints import Checkpoints


@pytest.fixture
def limited(engine):
    """Makes checkpoints of the engine's node with other limits."""

    def limited(**limits):
        storage = engine.node.storage
        made = Checkpoints(engine.host, storage.pins, engine.flusher, Limits(**limits))
        storage.checkpoints = made
        return made

    return limited


async def flushed(engine, *rows):
    """A partition with one segment for each row."""
    partition = engine.create()
    for row in rows:
        engine.put(partition, row)
        await engine.flusher.flush(partition)
    return partition


async def compact(engine, partition):
    info = engine.node.feeds.named("orders").info
    assert await engine.node.storage.compactor.compact(partition, info)


async def test_a_checkpoint_says_what_the_partition_has(engine):
    partition = await flushed(engine, (b"a", b"1"), (b"b", b"2"))
    engine.put(partition, (b"c", b"3"))
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK, with_state=True)
    assert (taken.seq, taken.partition, taken.feed_id) == (2, 0, partition.feed_id)
    assert taken.log == partition.log
    assert [(file.first_seq, file.last_seq) for file in taken.segments] == [(1, 1), (2, 2)]
    for file, segment in zip(taken.segments, partition.chain.segments, strict=True):
        data = bytes(segment._file.read(0, segment.nbytes))
        assert (file.nbytes, file.checksum) == (len(data), data[-24:-8][::-1])
        assert (file.id, segment.verify()) == (segment.identity.segment_id, [])
    [(_, number, _, results)] = taken.producers["entries"]
    assert (number, results[-1][3]) == (2, 2), "as of the end of the segments"
    assert taken.sinks == {}
    without = await engine.node.storage.checkpoints.take(partition, Level.DISK)
    assert (without.producers, without.sinks) == (None, None)


async def test_a_flush_is_asked_for(engine):
    partition = await flushed(engine, (b"a", b"1"))
    engine.put(partition, (b"b", b"2"))
    engine.put(partition, (b"c", b"3"), sync=False)
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK, flush=True)
    assert taken.seq == 2, "what is not durable is not flushed"


async def test_a_queue_of_more_than_a_segment_is_flushed(engine, monkeypatch):
    monkeypatch.setattr("tailrace_server.upkeep.flushed_segment.SEGMENT_BYTES_MAX", 1)
    partition = engine.create()
    for number in range(3):
        engine.put(partition, (b"a", b"%d" % number))
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK, flush=True)
    assert (taken.seq, len(taken.segments)) == (3, 3)


async def test_flushes_for_checkpoints_have_a_pause_and_one_serves_all_that_wait(engine, limited, autojump_clock):
    engine.clock._passing = trio.current_time
    checkpoints = limited(checkpoint_flush_s=5.0)
    partition = await flushed(engine, (b"a", b"1"))
    engine.put(partition, (b"b", b"2"))
    assert (await checkpoints.take(partition, Level.DISK, flush=True)).seq == 2
    engine.put(partition, (b"c", b"3"))
    before, began_at, seqs = engine.flusher.statistics().flushes, trio.current_time(), []

    async def take():
        seqs.append((await checkpoints.take(partition, Level.DISK, flush=True)).seq)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(take)
    assert seqs == [3] * 5
    assert trio.current_time() - began_at == pytest.approx(5.0, abs=0.1)
    assert engine.flusher.statistics().flushes <= before + 1


async def test_a_full_disk_does_not_keep_a_client_from_what_is_there(engine):
    partition = await flushed(engine, (b"a", b"1"))
    engine.put(partition, (b"b", b"2"))
    engine.fail("write_at", ".seg", errno.ENOSPC)
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK, flush=True)
    assert taken.seq == 1


def kept_in_status(engine):
    storage = engine.node.status()["storage"]
    return storage["checkpoints"], storage["checkpoint_bytes"]


async def test_a_compaction_leaves_the_files_of_a_checkpoint_until_it_is_released(engine):
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    checkpoints = engine.node.storage.checkpoints
    taken = await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    await engine.flusher.trim()
    assert len(engine.segments(partition)) == 5
    for file in taken.segments:
        assert checkpoints.find(taken.id, file.id).read_part(0, file.nbytes)
    second = await checkpoints.take(partition, Level.DISK)
    assert kept_in_status(engine) == (2, sum(file.nbytes for file in taken.segments))
    checkpoints.release(taken.id)
    checkpoints.release(taken.id)
    assert kept_in_status(engine) == (1, 0)
    checkpoints.release(second.id)
    await engine.flusher.trim()
    assert len(engine.segments(partition)) == 1
    with pytest.raises(UnknownCheckpoint, match="ask for another one"):
        checkpoints.find(taken.id, taken.segments[0].id)


async def test_a_checkpoint_expires_and_a_fetch_renews_it(engine, limited):
    checkpoints = limited(checkpoint_kept_s=60.0)
    partition = await flushed(engine, (b"a", b"1"))
    used, unused = [await checkpoints.take(partition, Level.DISK) for _ in range(2)]
    engine.clock.advance(50.0)
    checkpoints.find(used.id, used.segments[0].id)
    engine.clock.advance(20.0)
    checkpoints.expire()
    assert len(checkpoints) == 1
    checkpoints.find(used.id, used.segments[0].id)
    with pytest.raises(UnknownCheckpoint, match="not used for 60 s"):
        checkpoints.find(unused.id, unused.segments[0].id)


async def test_a_copy_that_asks_again_keeps_its_last_checkpoint_only(engine, limited):
    """Its earlier answers were lost. Other copies, and those of other partitions, are not concerned."""
    checkpoints = limited(checkpoints_max=4)
    partition, other = await flushed(engine, (b"a", b"1")), engine.create("other")
    ours, theirs = b"a" * 16, b"b" * 16
    kept = [
        await checkpoints.take(each, Level.DISK, asker=asker) for each, asker in ((partition, theirs), (other, ours))
    ]
    kept.append(await checkpoints.take(partition, Level.DISK))
    for _ in range(20):
        last = await checkpoints.take(partition, Level.DISK, asker=ours)
        assert len(checkpoints) == 4
    assert checkpoints.find(last.id, last.segments[0].id)
    assert all(checkpoints.keeps(each.id) for each in kept)
    checkpoints.release(last.id)
    again = await checkpoints.take(partition, Level.DISK, asker=ours)
    engine.clock.advance(61.0)
    checkpoints.expire()
    assert not len(checkpoints)
    assert not checkpoints._asked
    assert (await checkpoints.take(partition, Level.DISK, asker=ours)).id != again.id


async def test_a_copy_that_asks_again_gives_its_replaced_segments_free(engine):
    partition = await flushed(engine, *[(b"a", b"%d" % number) for number in range(4)])
    checkpoints = engine.node.storage.checkpoints
    await checkpoints.take(partition, Level.DISK, asker=b"a" * 16)
    await compact(engine, partition)
    await engine.flusher.trim()
    assert len(engine.segments(partition)) == 5
    await checkpoints.take(partition, Level.DISK, asker=b"a" * 16)
    await engine.flusher.trim()
    assert len(engine.segments(partition)) == 1


async def test_a_segment_of_another_checkpoint(engine):
    partition = await flushed(engine, (b"a", b"1"))
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK)
    with pytest.raises(BadSegment, match="has no segment 7a7a"):
        engine.node.storage.checkpoints.find(taken.id, b"z" * 16)


async def test_no_more_checkpoints_than_the_limit(engine, limited):
    checkpoints = limited(checkpoints_max=2, checkpoint_kept_s=60.0)
    partition = await flushed(engine, (b"a", b"1"))
    for _ in range(2):
        await checkpoints.take(partition, Level.DISK)
    with pytest.raises(Overloaded, match="2 checkpoints"):
        await checkpoints.take(partition, Level.DISK)
    engine.clock.advance(61.0)
    await checkpoints.take(partition, Level.DISK)
    assert len(checkpoints) == 1


async def test_the_bytes_of_replaced_files_are_bounded(engine, limited):
    checkpoints = limited(checkpoint_kept_bytes_max=0)
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    old = await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    new = await checkpoints.take(partition, Level.DISK)
    checkpoints.expire()
    with pytest.raises(UnknownCheckpoint):
        checkpoints.find(old.id, old.segments[0].id)
    checkpoints.find(new.id, new.segments[0].id)


async def test_any_number_of_checkpoints_may_keep_too_many_bytes(engine, limited):
    checkpoints = limited(checkpoint_kept_bytes_max=0)
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    for _ in range(1_200):
        await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    checkpoints.expire()
    assert len(checkpoints) == 0


async def test_only_as_many_checkpoints_end_as_keep_too_many_bytes(engine, limited):
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    nbytes = sum(segment.nbytes for segment in partition.chain.segments)
    checkpoints = limited(checkpoint_kept_bytes_max=2 * nbytes - 1)
    for _ in range(2):
        await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    checkpoints.expire()
    assert len(checkpoints) == 2, "they keep the same segments"
    for number in range(4):
        engine.put(partition, (b"b", b"%d" % number))
        await engine.flusher.flush(partition)
    newest = await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    checkpoints.expire()
    assert list(checkpoints._kept) == [newest.id]


async def test_a_nearly_full_disk_drops_what_keeps_replaced_files(engine):
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    checkpoints = engine.node.storage.checkpoints
    await checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    kept = await checkpoints.take(partition, Level.DISK)
    engine.node._space_low()
    assert len(checkpoints) == 1
    checkpoints.find(kept.id, kept.segments[0].id)


async def test_a_dropped_feed_is_removed_although_it_was_copied(engine):
    partition = await flushed(engine, (b"a", b"1"))
    await engine.node.storage.checkpoints.take(partition, Level.DISK)
    engine.drop()
    engine.sync()
    await engine.flusher.trim()
    assert engine.feed_directories() == []
    assert len(engine.node.storage.checkpoints) == 0


async def test_no_checkpoint_of_a_feed_that_was_dropped_meanwhile(engine):
    partition = await flushed(engine, (b"a", b"1"))
    engine.drop()
    for flush in (False, True):
        with pytest.raises(UnknownFeed):
            await engine.node.storage.checkpoints.take(partition, Level.DISK, flush=flush)
    assert len(engine.node.storage.checkpoints) == 0


def once(engine, step):
    """Does ``step`` right before the next work in a thread, beside it."""
    begin = engine.workers.begin

    async def begin_late():
        engine.workers.begin = begin
        await step()

    engine.workers.begin = begin_late


async def test_no_checkpoint_of_a_feed_that_is_dropped_while_checksums_are_read(engine):
    """Its files go after the reading, which would take them for damaged."""
    partition = await flushed(engine, (b"a", b"1"))

    async def drop():
        engine.drop()
        engine.sync()
        await engine.flusher.trim()

    once(engine, drop)
    with pytest.raises(UnknownFeed):
        await engine.node.storage.checkpoints.take(partition, Level.DISK)
    assert len(engine.node.storage.checkpoints) == 0
    await engine.flusher.trim()
    assert engine.feed_directories() == []


async def test_files_stay_while_their_checksums_are_read_also_if_the_same_copy_asks_again(engine):
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    checkpoints = engine.node.storage.checkpoints

    async def ask_again():
        await compact(engine, partition)
        assert len((await checkpoints.take(partition, Level.DISK, asker=b"c" * 16)).segments) == 1
        await engine.flusher.trim()

    once(engine, ask_again)
    assert len((await checkpoints.take(partition, Level.DISK, asker=b"c" * 16)).segments) == 4
    assert len(checkpoints) == 1
    await engine.flusher.trim()
    assert len(engine.segments(partition)) == 1


async def test_nothing_is_kept_after_a_restart(engine):
    partition = await flushed(engine, (b"a", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"4"))
    taken = await engine.node.storage.checkpoints.take(partition, Level.DISK)
    await compact(engine, partition)
    await engine.flusher.trim()
    engine.kill()
    assert len(engine.segments(engine.partition())) == 1
    with pytest.raises(UnknownCheckpoint, match="the node restarted"):
        engine.node.storage.checkpoints.find(taken.id, taken.segments[0].id)


async def test_a_segment_that_cannot_be_read_keeps_nothing(engine, monkeypatch):
    partition = await flushed(engine, (b"a", b"1"))
    [segment] = partition.chain.segments

    def broken():
        raise SegmentDamaged(segment.path, 0, "the disk can't read it")

    monkeypatch.setattr(segment, "read_checksum", broken)
    with pytest.raises(SegmentDamaged):
        await engine.node.storage.checkpoints.take(partition, Level.DISK)
    assert len(engine.node.storage.checkpoints) == 0


async def test_segments_that_a_majority_does_not_have_yet(engine, monkeypatch):
    partition = await flushed(engine, (b"a", b"1"))
    monkeypatch.setattr(type(partition), "visible_seq", lambda self, level: 0)
    with pytest.raises(NotDurable, match="flushed up to seq 1, and level quorum has come to 0"):
        await engine.node.storage.checkpoints.take(partition, Level.QUORUM)
