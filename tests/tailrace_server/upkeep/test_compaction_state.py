"""The compactions of a partition that are running or planned, as the console shows them."""

from tests.tailrace_server.upkeep.test_compactor import flushed


async def test_nothing_is_planned_for_a_few_segments(engine):
    partition = engine.create(retention="history")
    await flushed(engine, partition, 3)
    state = engine.node.storage.compactor.state_of(partition)
    assert state == (None, None, None, "")


async def test_what_is_planned_is_what_is_compacted(engine):
    partition, compactor = engine.create(retention="history"), engine.node.storage.compactor
    await flushed(engine, partition, 5)
    planned = compactor.state_of(partition).planned
    chain = partition.chain.segments
    assert (planned.reason, planned.is_major) == ("tier", True)
    assert planned.rows == sum(segment.identity.rows for segment in chain[planned.first : planned.last + 1])
    begin, end = chain[planned.first].identity.after_seq, chain[planned.last].identity.last_seq
    assert await compactor.compact(partition, engine.node.feeds.of_id(partition.feed_id).info)
    made = partition.chain.segments[planned.first].identity
    assert (made.after_seq, made.last_seq) == (begin, end)
    assert compactor.state_of(partition).planned is None


async def test_a_compaction_is_told_while_it_runs(engine):
    partition, compactor = engine.create(retention="history"), engine.node.storage.compactor
    await flushed(engine, partition, 5)
    planned, workers, seen = compactor.state_of(partition).planned, engine.workers, []

    async def begin():
        workers.begin_compaction = workers.begin
        engine.clock.advance(3)
        seen.append(compactor.state_of(partition))

    workers.begin_compaction = begin
    assert await compactor.compact(partition, engine.node.feeds.of_id(partition.feed_id).info)
    [state] = seen
    assert (state.running.first, state.running.last) == (planned.first, planned.last)
    assert state.running.nbytes == planned.nbytes
    assert state.running.since_s == 3
    assert state.planned is None
    assert compactor.state_of(partition).running is None


async def test_a_failure_and_its_pause_are_told(engine):
    partition, compactor = engine.create(retention="history"), engine.node.storage.compactor
    await flushed(engine, partition, 5)
    engine.workers.begin_compaction = _refuse
    await compactor._tend(partition)
    state = compactor.state_of(partition)
    assert "no room" in state.failure
    assert 0 < state.pause_s <= 60
    assert state.running is None


async def _refuse():
    raise OSError("no room")
