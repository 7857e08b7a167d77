"""A feed that is dropped at any moment of its upkeep: nothing of its partitions is remembered afterwards."""

import itertools

import pytest

from tailrace.errors import TailraceError


def remembered(node):
    """Every partition that the tasks of ``node`` know."""
    flusher, installer, compactor = node.storage.flusher, node.storage.installer, node.storage.compactor
    for known in (flusher._dirty, flusher._unmerged, flusher._crowded, flusher._failures._failed, flusher._flushing):
        yield from known
    for known in (installer._locks, installer._orphans, installer._left, compactor._candidates, compactor._paused):
        yield from known
    yield from (partition for partition, _ in compactor._told)


async def flush(engine, partition):
    await engine.flusher.flush_due()


async def flush_all(engine, partition):
    await engine.flusher.flush_all(partition)


async def write(engine, partition):
    await engine.node.storage.installer.write(partition)


async def compact(engine, partition):
    await engine.node.storage.compactor._tend(partition)


@pytest.mark.parametrize("step", [flush, flush_all, write, compact])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_feed_that_is_dropped_meanwhile_is_forgotten(make_engine, step, fails):
    for number in itertools.count():
        engine = make_engine()
        engine.flusher.commit = engine.workers.begin  # without a committer: all is durable
        partition = engine.create()
        for value in range(4):
            engine.put(partition, (b"k", b"%d" % value))
            await engine.flusher.flush(partition)
        engine.put(partition, (b"k", b"last"))
        calls = itertools.count()

        def drop_then(engine=engine, calls=calls, number=number):
            if next(calls) == number:
                engine.drop()
                if fails:
                    raise OSError(5, "Input/output error")

        engine.workers.before = drop_then
        try:
            await step(engine, partition)
        except (OSError, TailraceError):
            assert partition.is_dropped
        engine.workers.before = lambda: None
        if not partition.is_dropped:
            break
        engine.node.storage.journal.sync()
        engine.clock.advance(100)
        await engine.flusher.pass_once()
        assert partition not in set(remembered(engine.node))
        assert engine.node.feeds.drops == {}
    assert number > 1 or step is write
