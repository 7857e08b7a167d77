"""A wall clock that was in 2100 once: rows that it stamped age out by the time that the node is up, and not earlier."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fake_host import WALL_US
from tests.tailrace_server.upkeep.conftest import Engine
from tests.tiers import examples

from tailrace_server.directory.uptime_file import store_uptime, tick_uptime
from tailrace_server.serving.starts import _seen_seq
from tailrace_server.stream.since import StreamStart, find_start, start_behind

HOUR = 3_600
DAY = 24 * HOUR
TO_2100_S = 27_000 * DAY
JUMPS_S = [HOUR // 2, 2 * HOUR, 400 * DAY, TO_2100_S]
KINDS = {"history": {"retention": "history", "history_age_s": 3.0 * DAY}, "tombstones": {"tombstone_age_s": 3.0 * DAY}}


async def write(engine, key=b"k"):
    """A row and its deletion, flushed."""
    partition = engine.partition()
    for value in (bytes(100), None):
        engine.put(partition, (key, value))
    await engine.flusher.pass_once()


async def pass_time(engine, seconds, step_s=HOUR):
    """The compactor looks at all every ``step_s`` seconds."""
    while seconds > 0:
        engine.clock.advance(min(step_s, seconds))
        seconds -= step_s
        await tend(engine)


async def tend(engine):
    tick_uptime(engine.node.storage.compactor.uptime, engine.clock)
    await engine.node.storage.compactor._tend(engine.partition())
    assert not engine.node.storage.compactor.failure


def rows_left(engine):
    return sum(segment.identity.rows for segment in engine.partition().chain.segments)


async def stop_and_start(engine):
    await engine.flusher.flush_for_stop()
    engine.node.stop()
    engine.start()


async def was_in_2100(engine, how):
    """The clock is right again, and a partition is stamped by 2100."""
    if how == "at a boot":
        await stop_and_start_at(engine, TO_2100_S)
    else:
        engine.clock.jump(TO_2100_S)
    await tend(engine)
    await write(engine)
    if how == "at a boot":
        await stop_and_start_at(engine, -TO_2100_S)
    else:
        engine.clock.jump(-TO_2100_S)
        await tend(engine)


async def stop_and_start_at(engine, jump_s):
    engine.node.stop()
    engine.clock.jump(jump_s)
    engine.start()


@pytest.mark.parametrize("how", ["while it runs", "at a boot"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_written_in_2100_and_after_it_ages_out(engine, kind, restarts, how):
    engine.create(**KINDS[kind])
    await pass_time(engine, DAY)
    await was_in_2100(engine, how)
    await pass_time(engine, DAY)
    await write(engine, b"l")
    if restarts:
        await stop_and_start(engine)
    await pass_time(engine, 2 * DAY - HOUR)
    assert rows_left(engine) >= 2, "nothing is three days old"
    await pass_time(engine, DAY / 2 + HOUR)
    assert engine.partition().high_seq == 4
    assert engine.partition().chain.segments, "the second two rows are not three days old"
    await write(engine, b"m")
    await pass_time(engine, 4 * DAY)
    assert rows_left(engine) == 0


async def test_a_stream_since_next_year_begins_with_next_year(engine):
    engine.create(retention="history")
    await write(engine)
    engine.clock.jump(TO_2100_S)
    await tend(engine)
    await write(engine)
    engine.clock.jump(-TO_2100_S)
    await pass_time(engine, 360 * DAY, 10 * DAY)
    await pass_time(engine, 5 * DAY)
    partition = engine.partition()
    await write(engine)
    await pass_time(engine, 3 * HOUR)
    assert begin(engine, partition, engine.clock.wall_us()) == StreamStart.at(6, 6)
    next_year_us = WALL_US + 365 * DAY * 1_000_000
    assert begin(engine, partition, next_year_us - 1_000_000) == StreamStart.at(4, 4)
    assert begin(engine, partition, WALL_US + DAY * 1_000_000) == StreamStart.at(2, 2), "no mark is kept for so long"
    assert begin(engine, partition, next_year_us + DAY * 1_000_000) == StreamStart.at(2, 2), "a time to come"


async def test_a_clock_that_is_behind_hides_nothing(engine):
    """All partitions are ahead of it, and their stamps are right."""
    engine.create(retention="history")
    await write(engine)
    await pass_time(engine, 2 * DAY)
    since_us = engine.clock.wall_us()
    await write(engine)
    engine.node.stop()
    engine.clock.jump(-3 * DAY)
    engine.start()
    await pass_time(engine, 4 * HOUR)
    assert begin(engine, engine.partition(), since_us - 1_000_000) == StreamStart.at(2, 2)
    engine.clock.jump(3 * DAY)
    await pass_time(engine, HOUR)
    assert begin(engine, engine.partition(), since_us - 1_000_000) == StreamStart.at(2, 2)


async def test_the_newest_segment_of_a_pushed_history_stays(engine):
    """A follower that joins comes to the last seq by it; without it that one would never get its vote."""
    engine.create(**KINDS["history"], replication="segment")
    for _ in range(3):
        await write(engine)
    await pass_time(engine, 10 * DAY, DAY)
    [newest] = engine.partition().chain.segments
    assert (newest.identity.after_seq, newest.identity.last_seq) == (engine.partition().trim_seq, 6)
    await write(engine)
    await pass_time(engine, DAY, DAY)
    assert engine.partition().trim_seq == 6


def begin(engine, partition, since_us):
    found = find_start(partition, since_us)
    assert isinstance(found, StreamStart), "its segments are on one side of the time each"
    return start_behind(partition, found, _seen_seq(engine.node.services, partition, since_us))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.just(0)),
        st.tuples(st.just("up"), st.integers(1, 40)),
        st.tuples(
            st.just("jump"), st.sampled_from([-TO_2100_S, -400 * DAY, -2 * HOUR, 2 * HOUR, 400 * DAY, TO_2100_S])
        ),
        st.tuples(st.sampled_from(["stop", "kill", "store"]), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.sampled_from(sorted(KINDS)))
async def test_nothing_is_dropped_before_its_age_whatever_the_clock_does(steps, kind):
    engine, written = Engine(), []
    engine.create(**KINDS[kind])
    for step, number in steps:
        if step == "write":
            await write(engine)
            written += [engine.clock.monotonic()] * 2
        elif step == "up":
            await pass_time(engine, number * HOUR, 4 * HOUR)
        elif step == "jump":
            engine.clock.jump(number)
        elif step == "stop":
            await stop_and_start(engine)
        elif step == "kill":
            engine.kill()
        else:
            store_uptime(engine.node.storage.compactor.uptime, engine.disk, "/data")
        await tend(engine)
        gone_seq = max(engine.partition().trim_seq, engine.partition().purge_seq)
        assert all(engine.clock.monotonic() - at >= 3 * DAY for at in written[:gone_seq])
    # And once no clock is set any more, all of it ages out: the first restart vouches for the clock again.
    await stop_and_start(engine)
    await stop_and_start(engine)
    await tend(engine)
    await pass_time(engine, 4 * DAY, 4 * HOUR)
    assert rows_left(engine) == 0
