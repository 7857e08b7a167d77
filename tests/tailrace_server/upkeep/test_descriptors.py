"""More segments than a process may have files open: nothing fails, and no more are open than may be."""

import errno
import itertools

import pytest

from tailrace.errors import Overloaded
from tailrace_server.journal.next_file import SPARE_DESCRIPTORS
from tailrace_server.partition.chain import LostSegment

# The journal's file, and what a flush or a fold has open at once.
OTHERS = 1 + SPARE_DESCRIPTORS + 3


@pytest.fixture
def engine(make_engine):
    engine = make_engine(segments_open_max=4)
    engine.disk.files_max = 4 + OTHERS
    return engine


async def flushed(engine, partition, times=3):
    for number in range(times):
        engine.put(partition, (b"k%d" % number, b"%d" % number), (b"always", b"%d" % number))
        await engine.flusher.flush(partition)


@pytest.mark.slow
async def test_more_segments_than_descriptors(engine):
    for number in range(30):
        await flushed(engine, engine.create(f"feed{number}"))
        await engine.flusher.write_feeds()
        assert engine.disk.files <= engine.disk.files_max
    for _ in range(2):
        engine.node.check()
        for number in range(30):
            partition = engine.partition(f"feed{number}")
            assert len(partition.chain.segments) == 3
            assert not any(isinstance(segment, LostSegment) for segment in partition.chain.segments)
            engine.check_rows(partition)
        engine.kill()


async def test_the_journal_goes_on_where_no_descriptor_is_left(engine):
    """Whoever took them: the journal has its own, and a flush gets those of segments."""
    partition = engine.create()
    await flushed(engine, partition)
    engine.check_rows(partition)
    engine.disk.files_max = engine.disk.files
    for number in range(8):
        engine.put(partition, (b"%d" % number, bytes(900)))  # each begins another file
    engine.disk.files_max = engine.disk.files
    engine.clock.advance(10)
    await engine.flusher.pass_once()
    assert engine.node.storage.journal.failed is None
    assert engine.flusher.failure == ""
    assert partition.flushed_seq == partition.high_seq
    engine.check_rows(partition)


async def test_a_flush_without_any_descriptor_is_tried_again(engine):
    partition = engine.create()
    engine.put(partition, (b"a", b"1"))
    engine.node.storage.store.segment_files.close_idle()
    engine.disk.files_max = engine.disk.files
    await engine.flusher.pass_once()
    assert "Too many open files" in engine.flusher.failure
    engine.disk.files_max += OTHERS
    engine.clock.advance(10)
    await engine.flusher.pass_once()
    assert (engine.flusher.failure, partition.flushed_seq) == ("", 1)


async def test_a_look_up_without_any_descriptor_is_refused_and_no_damage(engine):
    partition = engine.create()
    await flushed(engine, partition)
    engine.node.storage.store.segment_files.close_idle()
    engine.disk.files_max = engine.disk.files
    with pytest.raises(Overloaded, match="no file descriptor is free to read"):
        engine.get(partition, b"always")
    engine.disk.files_max += 1
    assert engine.get(partition, b"always") == [b"2"]


@pytest.mark.slow
async def test_no_call_of_a_flush_or_a_fold_leaves_a_descriptor_behind(make_engine):
    """Each call fails once, by the lack of a descriptor."""
    for number in itertools.count():
        engine = make_engine(segments_open_max=4)
        partition = engine.create()
        await flushed(engine, partition, times=4)
        engine.put(partition, (b"last", b"1"))
        engine.node.storage.store.segment_files.close_idle()
        engine.disk.fail_at(number, errno.EMFILE)
        await engine.flusher.pass_once()
        await engine.node.storage.compactor._tend(partition)
        failed = engine.disk.before is None
        engine.disk.before = None
        engine.check_rows(partition)
        assert not engine.node.storage.damages
        engine.node.storage.store.segment_files.close_idle()
        assert engine.disk.files == 1 + SPARE_DESCRIPTORS
        if not failed:
            return


async def test_a_dropped_feed_is_removed_after_the_last_read_of_it(engine):
    """A descriptor may have been given up meanwhile: a read that is under way opens the file again."""
    partition, other = engine.create("dropped"), engine.create()
    await flushed(engine, partition)
    segment = partition.chain.segments[0]
    engine.node.storage.pins.pin(segment)
    engine.drop("dropped")
    engine.put(other, (b"a", b"1"))
    await engine.flusher.pass_once()
    assert engine.disk.exists(segment.path)
    engine.node.storage.store.segment_files.close_idle()
    assert segment.read_block(0).rows == 2
    engine.node.storage.pins.unpin(segment)
    await engine.flusher.pass_once()
    assert not engine.disk.exists(segment.path)
    assert engine.node.feeds.drops == {}
    assert engine.flusher.failure == ""
