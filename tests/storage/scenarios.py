"""One step of each kind, and what has to be there before it: ``prepare`` is done in peace, ``step`` is crashed."""

from __future__ import annotations

from typing import NamedTuple

from tests.memory_disk import MemoryDisk

from tailrace.model import Level
from tailrace_server.upkeep.held_writer import HELD_SECONDS

from .checks import check_running
from .crashes import POWER_CUTS, Recorder, crash_everywhere, tear
from .engine import STORAGE, Engine, FeedSpec

COMPACT = FeedSpec("c", tombstone_age_s=10.0)
HISTORY = FeedSpec("h", retention="history", history_age_s=100.0)
SCENARIOS = {}


class Scenario(NamedTuple):
    prepare: object
    step: object


def scenario(prepare):
    """Marks a step; ``prepare`` comes before it."""

    def mark(step):
        SCENARIOS[step.__name__] = Scenario(prepare, step)
        return step

    return mark


async def crash_scenario(name, seed, storage=STORAGE, power_cuts=POWER_CUTS, *, in_turn=False):
    """Does the scenario once, and crashes its step at every call; how many starts there were.

    ``in_turn``: each call with one kind of a crash, as `crash_everywhere` says.
    """
    prepare, step = SCENARIOS[name]
    engine = Engine(MemoryDisk(), seed, storage=storage)
    await prepare(engine)
    with Recorder(engine) as recorder:
        await step(engine)
    starts = await crash_everywhere(recorder.crashes, seed, power_cuts, in_turn=in_turn)
    if not engine.is_stopped:
        check_running(engine)
    return starts


# What is there before


async def nothing(engine):
    """Not even a directory."""


async def written(engine, spec=COMPACT):
    """A feed with some durable rows, and consumers at several places."""
    engine.open()
    engine.create(spec)
    await engine.sync()
    await write_some(engine, spec.name)


async def written_history(engine):
    await written(engine, HISTORY)


async def write_some(engine, name, rounds=4):
    """Rows that supersede each other, and deletions; each time a consumer comes that stops somewhere."""
    told = engine.ledger.of(engine.partition(name))
    for index in range(rounds):
        first = len(told.rows)
        engine.write(name, [b"a%d" % index, b"b", b"c"], producer=1)
        await engine.sync()
        engine.write(name, [b"-c", b"a%d" % (index - 1)] if index % 2 else [b"-a%d" % (first % 5)], producer=2)
        await engine.sync()
        level = Level.MEMORY if index == 1 else Level.DISK
        engine.ledger.consumer(engine.partition(name), level).read(engine.node, told, index)


async def flushed(engine, spec=COMPACT, segments=1):
    await written(engine, spec)
    await engine.flush(spec.name)
    await engine.trim()
    for _ in range(segments - 1):
        await write_some(engine, spec.name, 2)
        await engine.flush(spec.name)
    await write_some(engine, spec.name, 1)


async def two_flushed(engine):
    await flushed(engine, segments=2)


async def four_flushed(engine):
    """The policy folds all four."""
    await flushed(engine, segments=4)


async def four_flushed_and_old(engine):
    """Their deletions may be purged."""
    await flushed(engine, segments=4)
    engine.clock.advance(1_000)


async def major_and_four_flushed(engine):
    """A large segment, and four small ones behind it."""
    engine.open()
    engine.create(COMPACT)
    engine.write("c", [b"large%d" % row for row in range(30)], value_bytes=9_000)
    await engine.sync()
    await engine.flush("c")
    for _ in range(4):
        await write_some(engine, "c", 2)
        await engine.flush("c")


async def old_history(engine):
    await flushed(engine, HISTORY, segments=2)
    engine.clock.advance(1_000)
    await write_some(engine, "h", 2)


async def two_feeds_flushed(engine):
    await flushed(engine, segments=2)
    engine.create(HISTORY)
    await engine.sync()
    await write_some(engine, "h")


async def stopped(engine):
    await two_flushed(engine)
    engine.stop()


async def killed(engine):
    await two_flushed(engine)
    engine.write("c", [b"not", b"durable"])
    engine.disk.kill()


async def after_many_crashes(engine):
    """Control records of several starts, and no rows between them."""
    await two_flushed(engine)
    for _ in range(3):
        engine.disk.kill()
        engine.open()


async def many_blocks(engine):
    """A full chunk of small blocks in the tree."""
    await written(engine)
    for index in range(70):
        engine.write("c", [b"m%d" % (index % 7)], value_bytes=5)
    await engine.sync()


async def torn(engine):
    """The process was killed within its last write."""
    await two_flushed(engine)
    engine.write("c", [b"not", b"durable"])
    engine.write("c", [b"torn"], value_bytes=200)
    tear(engine.disk, engine.journal_path, engine.rnd)
    engine.disk.kill()


async def killed_after_a_drop(engine):
    await two_feeds_flushed(engine)
    engine.drop("c")
    await engine.sync()
    engine.disk.kill()


# The steps


@scenario(written)
async def keep(engine):
    """What is held is noted while rows are written that are not durable yet, and the journal begins new files."""
    for number in range(3):
        engine.write("c", [b"k%d" % number], value_bytes=600)
        engine.clock.advance(HELD_SECONDS)
        await engine.node.storage.held.keep()
    await engine.sync()


@scenario(nothing)
async def first_start(engine):
    engine.open()
    engine.create(COMPACT)
    await engine.sync()
    engine.write("c", [b"a", b"b"])
    await engine.sync()


@scenario(written)
async def writes(engine):
    for index in range(3):
        engine.write("c", [b"a%d" % index] * 3)
        engine.write("c", [b"-a%d" % index], producer=2)
        if index % 2:
            await engine.sync()


@scenario(written)
async def first_flush(engine):
    engine.write("c", [b"not", b"durable"])
    await engine.flush("c")


@scenario(two_flushed)
async def flush(engine):
    engine.write("c", [b"not", b"durable"])
    await engine.flush("c")
    await engine.trim()


@scenario(many_blocks)
async def merge_and_flush(engine):
    await engine.node.storage.flusher.merger.merge(engine.partition("c"))
    assert engine.partition("c").tree.block_count < 40
    await engine.flush("c")
    await engine.trim()


@scenario(major_and_four_flushed)
async def fold_minor(engine):
    assert await engine.fold("c")
    assert not engine.partition("c").chain.segments[-1].identity.is_major
    await engine.trim()


@scenario(four_flushed)
async def fold_all(engine):
    assert await engine.fold("c")
    assert engine.partition("c").purge_seq == 0
    await engine.trim()


@scenario(four_flushed_and_old)
async def fold_and_purge(engine):
    assert await engine.fold("c")
    assert not engine.partition("c").chain.segments[0].identity.tombstones
    await engine.trim()


@scenario(old_history)
async def trim_history(engine):
    await engine.trim_history("h")
    assert engine.partition("h").trim_seq > 0
    await engine.trim()


@scenario(after_many_crashes)
async def manifest_of_controls(engine):
    """The journal's oldest files hold nothing but the beginnings of branches."""
    await engine.flush("c")
    await engine.node.storage.installer.write(engine.partition("c"))
    await engine.trim()


@scenario(flushed)
async def trim_journal(engine):
    engine.write("c", [b"t%d" % index for index in range(40)])
    engine.write("c", [b"t%d" % index for index in range(40)])
    await engine.sync()
    oldest = engine.node.storage.journal.oldest_number
    await engine.flush_feeds()
    await engine.flush("c")
    await engine.trim()
    assert engine.node.storage.journal.oldest_number >= oldest + 2


@scenario(two_feeds_flushed)
async def drop_feed(engine):
    engine.drop("c")
    await engine.sync()
    await engine.trim()


@scenario(two_feeds_flushed)
async def drop_and_create_again(engine):
    """A feed of the same name is another one."""
    engine.drop("c")
    engine.create(COMPACT)
    await engine.sync()
    engine.write("c", [b"again"])
    await engine.sync()
    await engine.tend()
    await engine.flush("c")


@scenario(killed)
async def recovery(engine):
    engine.open()


@scenario(torn)
async def recovery_after_a_torn_tail(engine):
    engine.open()


@scenario(killed_after_a_drop)
async def restore_after_a_drop(engine):
    engine.open()
    await engine.trim()


@scenario(stopped)
async def clean_start(engine):
    engine.open()


@scenario(two_flushed)
async def clean_stop(engine):
    engine.write("c", [b"the", b"last"])
    engine.stop()


@scenario(two_flushed)
async def full_disk(engine):
    """A flush finds no room, takes what was reserved for it, and the journal is trimmed."""
    await engine.node.storage.space.look()
    assert engine.node.storage.space.reserved_bytes
    for index in range(0, 40, 10):
        engine.write("c", [b"f%d" % row for row in range(index, index + 10)])
    await engine.sync()
    engine.disk.size_bytes -= engine.disk.free - 1_000
    engine.clock.advance(100)
    await engine.node.storage.flusher.pass_once()
    assert engine.partition("c").flushed_seq == engine.partition("c").durable_seq
    engine.disk.size_bytes += 1 << 30
