"""While a long journal is flushed writers are slowed down, so that it never gets much longer."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.upkeep import flusher as module
from tailrace_server.upkeep.pace import GROWTH_SHARE, Pace

BOUND_S = 0.02


@given(st.floats(0.001, 10), st.floats(1, 3), st.integers(1, 5_000))
def test_after_all_flushes_writers_have_come_to_the_full_bound_or_nowhere(bound_s, over, count):
    replay_s = bound_s * over
    pace = Pace(replay_s, bound_s, count)
    pace.flushed(count - 1)
    full = bound_s * (1 + GROWTH_SHARE)
    assert pace.allowed_s == pytest.approx(max(full, replay_s))


@pytest.fixture
def engine(make_engine):
    return make_engine(flush_age_s=1e9, journal_replay_s=BOUND_S, journal_file_bytes_max=200_000)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 70])
async def test_writers_do_not_outrun_a_flush(engine, count):
    partitions = [engine.create(f"feed-{number}") for number in range(count)]
    node, most, waited, added = engine.node, [], 0, 0

    def write():
        nonlocal waited, added
        for partition in partitions * 50:
            if node.storage.memory.must_wait:
                waited += 1
                return
            engine.put(partition, (b"k", b"v"))
            added += 1
            most.append(node.storage.journal.statistics().replay_seconds)

    while node.storage.journal.statistics().replay_seconds <= BOUND_S:
        for partition in partitions:
            engine.put(partition, (b"k", b"v"))
    assert not node.storage.memory.must_wait
    began = node.storage.journal.statistics().replay_seconds
    engine.flusher.on_flushed = lambda _: write()
    await engine.flusher.flush_due()
    assert waited > 0
    assert added > 0
    assert max(most) <= max(BOUND_S * (1 + GROWTH_SHARE), began) + 20e-6
    assert not node.storage.memory.must_wait
    assert all(partition.flushed_seq > 0 for partition in partitions)
    engine.flusher.on_flushed = lambda _: None
    await engine.flusher.pass_once()
    engine.kill()
    for number in range(count):
        engine.check_rows(engine.partition(f"feed-{number}"))


async def test_a_writer_who_waits_goes_on_with_the_next_flush(engine):
    partitions = [engine.create(f"feed-{number}") for number in range(10)]
    while engine.node.storage.journal.statistics().replay_seconds <= BOUND_S * (1 + GROWTH_SHARE):
        for partition in partitions:
            engine.put(partition, (b"k", b"v"))
    through = []

    async def writer():
        await engine.node.storage.memory.room()
        through.append(sum(partition.flushed_seq > 0 for partition in partitions))

    async def flush(partition):
        await original(partition)
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        original, engine.flusher.flush = engine.flusher.flush, flush
        engine.flusher.on_flushed = lambda _: nursery.start_soon(writer) if not through else None
        await engine.flusher.flush_due()
    assert through == [10] * len(through) != []  # it was full: nothing is added before all is flushed


async def test_no_writer_waits_for_a_journal_that_no_flush_makes_shorter(engine):
    partition = engine.create()
    engine.fail("create", ".seg", times=1_000)
    while engine.node.storage.journal.statistics().replay_seconds <= 2 * BOUND_S:
        engine.put(partition, (b"k", b"v"))
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 0
    assert not engine.node.storage.memory.must_wait


async def test_many_small_queues_are_flushed_at_the_same_time(engine):
    partitions = [engine.create(f"feed-{number}") for number in range(module.TOGETHER_FROM)]
    for partition in partitions:
        engine.put(partition, (b"k", b"v"))
    under_way, most = 0, 0
    original = engine.flusher.flush

    async def flush(partition):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await trio.lowlevel.checkpoint()
        await original(partition)
        under_way -= 1

    engine.flusher.flush = flush
    engine.clock.advance(2e9)
    await engine.flusher.pass_once()
    assert most == module.FLUSHED_TOGETHER
    assert all(partition.flushed_seq == 1 for partition in partitions)


async def test_flushes_that_are_due_do_not_wait_for_all_that_is_to_be_merged(make_engine, monkeypatch):
    engine = make_engine(flush_age_s=60.0)
    partitions = [engine.create(f"feed-{number}") for number in range(5)]
    for partition in partitions:
        engine.put(partition, (b"k", b"v"))
    engine.clock.advance(100)
    merge, merged = engine.flusher.merger.merge, []

    async def slowly(partition, until):
        engine.clock.advance(0.4)
        merged.append(len([each for each in partitions if each.flushed_seq]))
        await merge(partition, until)

    engine.flusher.merger.merge = slowly
    await engine.flusher.flush_due()
    assert merged[:3] == [0, 0, 0]
    assert any(partition.flushed_seq for partition in partitions)
    await engine.flusher.pass_once()
    assert all(partition.flushed_seq for partition in partitions)
