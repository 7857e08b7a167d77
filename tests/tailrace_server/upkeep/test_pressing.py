"""Thousands of queues are due at once, or thousands of manifests: what is more pressing is flushed first."""

import pytest
import trio

from tailrace_server.upkeep import flusher as module
from tailrace_server.upkeep import merger

AGED = 20


@pytest.fixture
def engine(make_engine):
    return make_engine(flush_age_s=60.0, segment_bytes=5_000, memory_bytes_max=40_000)


@pytest.fixture
def aged(engine):
    """So many partitions whose queues are due for their age."""
    partitions = [engine.create(f"aged{number}") for number in range(AGED)]
    for partition in partitions:
        engine.put(partition, (b"k", b"1"))
    engine.clock.advance(100)
    return partitions


@pytest.fixture
def flushed(engine):
    """The partitions of the feeds that clients made, in the order in which they are flushed."""
    order = []
    engine.flusher.on_flushed = lambda partition: order.append(partition) if partition.takes_writes else None
    return order


def after(flushed, count, do):
    """Calls ``do`` once, when so many flushes are over."""
    on_flushed = flushed.append

    def note(partition):
        on_flushed(partition)
        if len(flushed) == count:
            do()

    return note


@pytest.mark.parametrize("count", [1, 7])
async def test_a_queue_that_fills_up_meanwhile_is_the_next(engine, aged, flushed, count):
    busy = engine.create("busy")
    engine.flusher.on_flushed = after(flushed, count, lambda: engine.put(busy, (b"k", bytes(6_000))))
    await engine.flusher.pass_once()
    assert flushed.index(busy) in (count, count + 1)  # one of these may be that of the list of feeds
    assert set(flushed) >= {busy, *aged}


async def test_queues_that_are_large_together_are_the_next(engine, aged, flushed):
    busy = [engine.create(f"busy{number}") for number in range(6)]

    def fill():
        for partition in busy:
            engine.put(partition, (b"k", bytes(4_000)))
        assert engine.node.storage.memory.is_tight
        engine.flusher.wake()

    engine.flusher.on_flushed = after(flushed, 3, fill)
    await engine.flusher.pass_once()
    assert set(busy) & set(flushed[3:5]), "the largest comes first"
    assert not engine.node.storage.memory.is_tight


async def test_with_every_tick_all_is_looked_at_again(engine, aged, monkeypatch):
    """The journal may be over its bound by now, and nothing wakes the flusher for that."""
    looks = []
    choose = module.choose

    def noting(queues, limits, **state):
        looks.append(engine.node.storage.journal.statistics().bytes)
        return choose(queues, limits, **state)

    def tick(_):
        engine.clock.advance(module.TICK_SECONDS / 4)
        engine.put(aged[0], (b"k", b"1"))

    monkeypatch.setattr(module, "choose", noting)
    engine.flusher.on_flushed = tick
    await engine.flusher.pass_once()
    assert len(looks) > AGED / 4
    assert looks == sorted(set(looks))


async def test_a_trim_holds_up_no_flush(engine, aged):
    """Each partition's manifest is to be written, which takes for ever; meanwhile a queue fills up."""
    busy = engine.create("busy")
    for number in range(4):
        engine.put(busy, (b"%d" % number, bytes(1_000)))
    for partition in engine.node.feeds.partitions():
        await engine.flusher.flush(partition)
    gate, waiting = trio.Event(), trio.Event()
    write = engine.node.storage.installer.write

    async def slowly(partition):
        if partition is not busy:
            waiting.set()
            await gate.wait()
        await write(partition)

    for partition in aged:  # as after an unclean start: nothing but its branch is to be kept
        partition.journal_references.control(1)
    engine.node.storage.installer.write = slowly
    flushed = trio.Event()
    engine.flusher.on_flushed = lambda partition: flushed.set() if partition is busy else None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine.flusher.run)
        engine.flusher.wake()
        with trio.fail_after(60):
            await waiting.wait()
        engine.put(busy, (b"k", bytes(6_000)))
        with trio.fail_after(60):
            await flushed.wait()
        assert not gate.is_set()
        gate.set()
        nursery.cancel_scope.cancel()


async def test_looking_at_many_queues_lets_others_have_their_turns(engine, monkeypatch):
    """No step of a pass looks at more than so many partitions."""
    for each in (merger, module):
        monkeypatch.setattr(each, "LOOKS_AT_ONCE", 4)
    for number in range(40):
        engine.put(engine.create(f"feed{number}"), (b"k", b"1"))
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await engine.flusher.flush_due()
        nursery.cancel_scope.cancel()
    assert turns >= 20
