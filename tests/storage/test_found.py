"""What the crashes and the lives have found, each reduced to its few steps."""

from __future__ import annotations

import pytest
from tests.memory_disk import LOSE, MemoryDisk

from tailrace.errors import NoSpace
from tailrace_server.feeds.feed import SYSTEM_FEED_ID

from .checks import check, check_running
from .engine import DATA, DAY, Engine, FeedSpec

SPEC = FeedSpec("c")
OTHER = FeedSpec("other")


@pytest.fixture
def engine():
    return Engine(MemoryDisk()).open()


def again(engine):
    """The node after a crash, compared with what was told."""
    check(engine.open())


async def create(engine, *specs):
    for spec in specs:
        engine.create(spec)
    await engine.sync()


async def write(engine, name, rounds, rows=10):
    """Enough for some files of the journal."""
    for index in range(rounds):
        engine.write(name, [b"%d-%d" % (index, row) for row in range(rows)], producer=9)
    await engine.sync()


async def nothing():
    """Does not write HELD."""


async def test_a_drop_that_is_lost_finds_the_feeds_blocks_in_the_journal(engine):
    """The journal was trimmed as if a drop that was not durable yet could not be undone any more."""
    await create(engine, SPEC, OTHER)
    await engine.trim()
    await write(engine, "c", 4)
    await write(engine, "other", 4)
    await engine.flush("other")
    engine.drop("c")
    engine.node.storage.held.keep = nothing  # it syncs the journal, and the drop with it
    await engine.trim()
    engine.disk.cut_power(LOSE)
    again(engine)
    assert engine.partition("c").high_seq == 40


async def test_the_files_of_a_dropped_feed_need_its_blocks_until_they_are_gone(engine):
    """A drop that comes while the journal is about to be trimmed: the start found a gap in the dropped feed."""
    await create(engine, SPEC, OTHER)
    await engine.trim()
    await write(engine, "c", 4)
    engine.drop("c")
    await engine.sync()
    await engine.node.storage.flusher._trimmer._trim_journal()
    engine.disk.kill()
    again(engine)


async def test_a_feed_that_was_dropped_when_it_was_young_does_not_stop_the_start(engine):
    """Without its FEED, which is written a while after the creation, its segments were taken for damage."""
    await create(engine, SPEC)
    await write(engine, "c", 1)
    await engine.flush("c")
    engine.drop("c")
    await engine.sync()
    engine.disk.kill()
    again(engine)
    await engine.trim()
    assert engine.disk.names(f"{DATA}/feeds") == []


async def test_a_creation_that_is_lost_leaves_no_second_feed_of_its_name(engine):
    """FEED was durable before the journal's record of the creation, and of the drop before it."""
    await create(engine, SPEC)
    await engine.trim()
    engine.drop("c")
    engine.create(SPEC)
    await engine.trim()
    engine.disk.cut_power(LOSE)
    again(engine)
    names = set(engine.disk.names(f"{DATA}/feeds")) - {SYSTEM_FEED_ID.hex()}
    assert len(names) == len(engine.node.feeds) == 1


async def test_a_full_disk_does_not_keep_the_node_from_starting(engine):
    """What is kept to empty a full disk with is kept for the start as well."""
    await create(engine, SPEC)
    await engine.node.storage.space.look()
    await write(engine, "c", 3)
    engine.disk.size_bytes -= engine.disk.free
    engine.disk.kill()
    again(engine)
    await engine.node.storage.flusher.pass_once()
    assert engine.partition("c").high_seq == 30


async def test_what_an_interrupted_flush_left_does_not_keep_the_node_from_starting(engine):
    await create(engine, SPEC)
    await engine.flush("c")
    await write(engine, "c", 1)
    await engine.flush("c")
    await engine.trim()
    directory = engine.node.storage.store.partition_directory(engine.partition("c").feed_id, 0)
    file = engine.disk.create(f"{directory}/{'ab' * 16}.seg.new")
    file.write_at(0, (bytes(20_000),), 20_000)
    engine.disk.size_bytes -= engine.disk.free
    engine.disk.kill()
    again(engine)


async def test_a_disk_that_is_full_of_other_things_is_told(engine):
    await create(engine, SPEC)
    await write(engine, "c", 1)
    engine.disk.size_bytes -= engine.disk.free
    engine.disk.kill()
    with pytest.raises(NoSpace, match="free some"):
        engine.open()
    engine.disk.size_bytes += 1 << 30
    engine.disk.kill()
    again(engine)


async def test_a_clock_that_was_set_back_makes_nothing_old_at_any_later_start(engine):
    """The start after the next took the earlier run's time, which was ahead, for one that all rows are older than."""
    await create(engine, FeedSpec("h", retention="history", history_age_s=100.0))
    engine.clock.advance(500)
    engine.stop()
    engine.open()
    engine.clock.jump(-DAY)
    for _ in range(2):
        engine.stop()
        engine.open()
    await write(engine, "h", 1)
    await engine.flush("h")
    engine.clock.advance(50)
    await engine.trim_history("h")
    assert engine.partition("h").trim_seq == 0
    check_running(engine)
