"""Streams that begin and end at a time, against a node whose wall clock a test sets."""

import dataclasses
import datetime
import math
import time

import pytest
import trio

from tailrace import DataGone, Mutations, Positions
from tailrace_server.host.clock import SystemClock

# Everything is written here, in the past of the machine's clock.
BEGIN_US = 1_700_000_000_000_000


class SetClock(SystemClock):
    """A wall clock that stands where it is set."""

    def __init__(self, us=BEGIN_US):
        self.us = us

    def wall_us(self):
        return self.us


def moment(us):
    """``us`` microseconds after ``BEGIN_US``, as a program says it."""
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=BEGIN_US + us)


@pytest.fixture
def clock(running):
    running.node.services.clock = SetClock()
    running.node.storage.compactor.consider = lambda partition: None  # folds are of a test's own making
    return running.node.services.clock


@pytest.fixture(params=["compact", "history"])
async def feed(client, clock, request):
    """A feed of one partition."""
    return await client.create_feed("orders", partitions=1, retention=request.param)


async def put_at(feed, clock, *stamped):
    """Puts (time, key); the value is the time."""
    for us, key in stamped:
        clock.us = BEGIN_US + us
        await feed.put(key, b"%d" % us)


def values(event):
    return [int(value) for value in event.values()] if isinstance(event, Mutations) else []


async def read(stream):
    """The values of what comes up to the end of the stream."""
    return [value async for event in stream for value in values(event)]


async def read_into(found, stream):
    async with stream:
        found += await read(stream)


async def since(feed, us, until="now"):
    """The values of what comes since a time, and the positions at the end."""
    async with feed.consume(moment(us), until=until) as stream:
        return await read(stream), stream.latest_positions


async def flush(node, fold=False):
    for partition in (p for feed in node.feeds for p in feed.partitions):
        await node.storage.flusher.flush(partition)
        if fold:
            info = node.feeds.of_id(partition.feed_id).info
            while await node.storage.compactor.compact(partition, info):
                pass


KEYS = [(10, b"a"), (20, b"b"), (20, b"c"), (30, b"a"), (40, b"d")]


@pytest.mark.parametrize("where", ["tree", "segment", "segments", "folded", "both", "restarted"])
async def test_what_was_stamped_since(running, feed, clock, where):
    for number, stamped in enumerate(KEYS):
        await put_at(feed, clock, stamped)
        if where in ("segments", "folded") or (where == "both" and number == 2):
            await flush(running.node)
    if where in ("segment", "folded"):
        await flush(running.node, fold=where == "folded")
    if where == "restarted":
        await flush(running.node)
        await running.stop()
        await running.start()
    for us in (0, 10, 11, 20, 21, 30, 35, 40, 41):
        found, _ = await since(feed, us)
        superseded = [] if where != "folded" or feed_keeps_all(running.node) else [10]
        assert found == [stamp for stamp, _ in KEYS if stamp >= us and stamp not in superseded], us


def feed_keeps_all(node):
    return node.feeds.named("orders").info.retention == "history"


async def test_nothing_before_the_first_row_and_before_1970(feed, clock):
    await put_at(feed, clock, *KEYS)
    for when in (moment(-(10**12)), datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)):
        async with feed.consume(when, until="now") as stream:
            assert await read(stream) == [10, 20, 20, 30, 40]


async def test_a_time_to_come(feed, clock):
    """As now, but what is stamped before is left out."""
    await put_at(feed, clock, *KEYS)
    async with feed.consume(moment(100)) as stream:
        await put_at(feed, clock, (50, b"e"), (99, b"f"), (100, b"g"), (90, b"h"))
        found = []
        async for event in stream:
            found += values(event)
            if 90 in found or len(found) == 2:
                break
        assert found == [100, 90], "the clock was set back, the stamps were not"
        assert stream.latest_positions.seqs() == {0: 9}


async def test_the_start_is_fixed_by_the_first_answer_and_a_reconnect_goes_on(running, feed, clock):
    await put_at(feed, clock, *KEYS)
    async with feed.consume(moment(20)) as stream:
        assert {seq: at.seq for seq, at in stream.positions.items()} == {0: 1}
        found = []
        while len(found) < 4:
            found += values(await anext(stream))
        running.cut_connections()
        await put_at(feed, clock, (50, b"e"))
        while len(found) < 5:
            found += values(await anext(stream))
    assert found == [20, 20, 30, 40, 50]


async def test_positions_from_the_middle_of_a_run(running, client, clock):
    """It was never given what lies below in its run; the rest comes, and no more."""
    feed = await client.create_feed("orders", partitions=1)
    for stamped in (*KEYS, (50, b"b")):
        await put_at(feed, clock, stamped)
        await flush(running.node)
    await flush(running.node, fold=True)
    [partition] = (p for feed in running.node.feeds for p in feed.partitions)
    [segment] = partition.chain.segments
    assert segment.identity.deduplicated
    async with feed.consume(moment(30)) as stream:
        position = Positions.parse(str(stream.positions))
    assert (position[0].snapshot_first, position[0].seq, position[0].snapshot_last) == (0, 3, 6)
    async with feed.consume(position, until="now") as stream:
        assert await read(stream) == [30, 40, 50]
        assert stream.latest_positions[0][1:4] == (6, 6, 6)


async def test_what_is_gone(running, client, clock):
    """Deletions that were purged, since a time that may be before them."""
    clock.us = int(time.time() * 1e6)
    feed = await client.create_feed("orders", partitions=1, tombstone_age_s=0)
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3)
    clock.us -= 7_200_000_000
    await feed.put(b"a", b"1")
    await feed.delete(b"b")
    await flush(running.node)
    [partition] = (p for feed in running.node.feeds for p in feed.partitions)
    partition.purge_seq = 2
    async with feed.consume(before + datetime.timedelta(hours=2)) as stream:
        assert stream.positions.seqs() == {0: 2}
    with pytest.raises(DataGone, match=r"purged up to seq 2.*since \"beginning\"") as raised:
        async with feed.consume(before):
            pass
    assert raised.value.first_seq == 3


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        ({"tombstone_age_s": 0}, {"tombstone_age_s": 259_200}, "purge_seq"),
        ({"retention": "history", "history_age_s": 0}, {"history_age_s": 259_200}, "trim_seq"),
        ({"retention": "history", "history_age_s": 0}, {"history_age_s": math.inf}, "trim_seq"),
        ({"retention": "history", "history_bytes": 1}, {"history_bytes": math.inf}, "trim_seq"),
    ],
)
async def test_what_went_under_a_shorter_age_is_still_known_to_be_gone(running, client, clock, before, after, gone):
    clock.us = int(time.time() * 1e6)
    since = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3)
    feed = await client.create_feed("orders", partitions=1, **before)
    clock.us -= 7_200_000_000
    await feed.put(b"a", b"1")
    await feed.delete(b"b")
    await flush(running.node)
    [partition] = (p for feed in running.node.feeds for p in feed.partitions)
    setattr(partition, gone, 2)
    await client.set_feed("orders", **after)
    with pytest.raises(DataGone, match="up to seq 2"):
        async with feed.consume(since):
            pass


async def test_a_naive_time_and_other_things_that_are_none(feed):
    with pytest.raises(ValueError, match="no time zone: use an aware datetime"):
        feed.consume(datetime.datetime(2026, 11, 21))
    with pytest.raises(ValueError, match="has to be 'beginning', 'now'"):
        feed.consume(20.0)


async def test_a_segment_that_is_damaged_is_asked_for_again(running, feed, clock):
    """The stream waits, shows why, and goes on once the file is whole."""
    await put_at(feed, clock, *KEYS)
    await flush(running.node)
    [partition] = (p for feed in running.node.feeds for p in feed.partitions)
    [segment] = partition.chain.segments
    read_block, broken, found = type(segment).read_block, True, []

    def read_or_fail(self, number):
        if broken:
            raise segment._damaged(number, "it was hit by a test")
        return read_block(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(segment), "read_block", read_or_fail)
        stream = feed.consume(moment(30), until="now")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_into, found, stream)
            while not (stream.status().partitions and "it was hit by a test" in stream.status().partitions[0].reason):
                await trio.lowlevel.checkpoint()
            broken = False
    assert found == [30, 40]
    assert "it was hit by a test" in "".join(running.node.storage.damages.values())


async def test_many_partitions_at_once(running, client, clock):
    """More than requests may wait for a thread: those that were refused ask again."""
    feed = await client.create_feed("many", partitions=64)
    running.node.services.config = dataclasses.replace(
        running.node.config, limits=dataclasses.replace(running.node.config.limits, waiting_requests_max=8)
    )
    async with feed.writer() as writer:
        for number in range(640):
            clock.us = BEGIN_US + number
            await writer.put(b"%d" % number, b"%d" % number)
            if number % 160 == 0:
                await writer.flush()
    await flush(running.node)
    async with feed.consume(moment(300), until="now") as stream:
        found = await read(stream)
    assert len(found) == len(set(found))
    assert set(found) >= set(range(480, 640)), "those of the last batch, whenever they were stamped"


async def up_to(feed, us, since="beginning"):
    """The values of what comes until a time, and the positions at the end."""
    async with feed.consume(since, until=moment(us)) as stream:
        return await read(stream), stream.latest_positions


@pytest.mark.parametrize("where", ["tree", "segment", "segments", "folded", "both", "restarted"])
async def test_what_was_stamped_until(running, feed, clock, where):
    for number, stamped in enumerate(KEYS):
        await put_at(feed, clock, stamped)
        if where in ("segments", "folded") or (where == "both" and number == 2):
            await flush(running.node)
    if where in ("segment", "folded"):
        await flush(running.node, fold=where == "folded")
    if where == "restarted":
        await flush(running.node)
        await running.stop()
        await running.start()
        running.node.services.clock = SetClock()
    running.node.services.clock.us = BEGIN_US + 1_000
    stamps = [stamp for stamp, _ in KEYS]
    if where == "folded" and not feed_keeps_all(running.node):
        stamps.remove(10)
    for us in (0, 10, 11, 20, 21, 30, 35, 40):
        found, positions = await up_to(feed, us)
        assert found == [stamp for stamp in stamps if stamp < us], us
        # Whoever goes on from there is given the rest, and all of it.
        rest, _ = await up_to(feed, 41, positions) if us > 10 else ([], None)
        assert us <= 10 or found + rest == stamps, us
        async with feed.consume(positions, until="now") as stream:
            assert found + await read(stream) == stamps


async def test_between_two_times(feed, clock):
    await put_at(feed, clock, *KEYS)
    async with feed.consume(moment(20), until=moment(40)) as stream:
        assert await read(stream) == [20, 20, 30]
    async with feed.consume(moment(20), until=moment(20)) as stream:
        assert await read(stream) == []
    with pytest.raises(ValueError, match="which is before since"):
        feed.consume(moment(20), until=moment(19))
    with pytest.raises(ValueError, match=r"until is .*no time zone"):
        feed.consume(until=datetime.datetime(2026, 11, 21))


async def test_a_time_to_come_ends_it_by_a_row(running, feed, clock):
    await put_at(feed, clock, *KEYS)
    async with feed.consume(until=moment(60)) as stream:
        found = []
        while len(found) < 5:
            found += values(await anext(stream))
        running.cut_connections()
        await put_at(feed, clock, (59, b"e"))
        while len(found) < 6:
            found += values(await anext(stream))
        await put_at(feed, clock, (60, b"f"), (61, b"g"))
        found += await read(stream)
    assert found == [10, 20, 20, 30, 40, 59]
    assert stream.latest_positions.seqs() == {0: 6}


async def test_a_clock_that_is_set_back_ends_nothing_too_early(feed, clock):
    """Stamps do not fall: what is taken after the time is not before it, whatever the clock says."""
    await put_at(feed, clock, (50, b"a"))
    async with feed.consume(until=moment(60)) as stream:
        await put_at(feed, clock, (20, b"b"), (59, b"c"), (60, b"d"), (30, b"e"))
        assert await read(stream) == [50, 20, 59]


async def test_a_quiet_partition_ends_by_the_clock(running, client, clock):
    """Four partitions, one of which has rows; what is in memory only is delivered first."""
    feed = await client.create_feed("quiet", partitions=4)
    clock.us = time.time_ns() // 1_000
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.3)
    async with feed.consume(until=until) as stream:
        await feed.put(b"a", b"1", level="memory")
        running.node.services.clock = SystemClock()
        assert await read(stream) == [1]
    assert datetime.datetime.now(datetime.UTC) >= until
    assert not any(connection.rounds.deadlines.next_us for connection in running.node.connections)


async def test_a_clock_that_is_set_ahead_is_noticed(running, feed, clock):
    """Not at once, but at the node's next look at its connections."""
    await put_at(feed, clock, *KEYS)
    async with feed.consume(until=moment(10**12)) as stream:
        found = []
        while len(found) < 5:
            found += values(await anext(stream))
        clock.us += 10**12
        for connection in running.node.connections:
            connection.tick(running.node.host.clock.monotonic())
        assert await read(stream) == []


async def test_an_idle_stream_has_no_task_of_its_own(running, client, clock):
    feed = await client.create_feed("idle", partitions=64)
    before = trio.lowlevel.current_statistics().tasks_living
    async with feed.consume(until=moment(10**15)):
        [connection] = [connection for connection in running.node.connections if connection.rounds.slots]
        assert len(connection.rounds.slots) == 64
        assert connection.deadline_timer._runs
        assert trio.lowlevel.current_statistics().tasks_living < before + 16


@pytest.mark.parametrize("where", ["tree", "segments"])
async def test_with_a_filter(running, feed, clock, where):
    for stamped in (*KEYS, (50, b"b"), (60, b"c")):
        await put_at(feed, clock, stamped)
        if where == "segments":
            await flush(running.node)
    for since_us, until_us, expected in ((0, 20, []), (0, 21, [20]), (20, 50, [20]), (21, 51, [50]), (51, 60, [])):
        async with feed.consume(moment(since_us), until=moment(until_us), key_prefix=b"b") as stream:
            assert await read(stream) == expected
        async with feed.consume(stream.latest_positions, until="now", key_prefix=b"b") as stream:
            assert await read(stream) == [stamp for stamp in (20, 50) if stamp >= max(until_us, since_us)]
    async with feed.consume(moment(20), until=moment(50), keys_only=True) as stream:
        events = [event async for event in stream if isinstance(event, Mutations)]
    assert [mutation.key for event in events for mutation in event] == [b"b", b"c", b"a", b"d"]
    assert {value for event in events for value in event.values()} == {None}
