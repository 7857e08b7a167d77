"""Batches: the latest state, every mutation, and a part of either."""

from __future__ import annotations

import datetime

import pytest
import trio
from pyspark.sql.datasource import DataSourceReader
from tests.pyspark_tailrace.reading.test_partition_reader import fold, keys, write

from pyspark_tailrace.reading.batch_reader import BatchReader
from tailrace import BadPosition, DataGone, Put, UnknownFeed


@pytest.fixture(params=["history", "compact"])
async def feed(request, client):
    return await client.create_feed("f", partitions=4, retention=request.param)


async def put(feed, rows):
    await feed.write([Put(key, value) for key, value in rows])


async def test_state(feed, job):
    await put(feed, [(b"%d" % n, b"old") for n in range(100)])
    await put(feed, [(b"%d" % n, b"new") for n in range(0, 100, 2)])
    await feed.delete(b"7")
    rows = await job("f").rows()
    assert {row["key"]: row["value"] for row in rows} == {
        b"%d" % n: b"new" if n % 2 == 0 else b"old" for n in range(100) if n != 7
    }
    assert len(rows) == 99
    assert not any(row["deleted"] for row in rows)


async def test_state_without_values(feed, job):
    await put(feed, [(b"a", b"1"), (b"b", b"2")])
    await feed.delete(b"a")
    assert await job("f", ["key", "seq"]).rows() == [{"key": b"b", "seq": 2}]


async def test_mutations(feed, job):
    await put(feed, [(b"a", b"1"), (b"b", b"1")])
    await put(feed, [(b"a", b"2")])
    await feed.delete(b"a")
    rows = await job("f", read="mutations").rows()
    assert [(row["value"], row["deleted"]) for row in rows if row["key"] == b"a"] == [
        (b"1", False),
        (b"2", False),
        (None, True),
    ]
    assert len(rows) == 4


@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_empty_feed(feed, job, read):
    reading = job("f", read=read)
    assert await reading.rows() == []
    assert len(await reading.tasks()) == 1


async def test_mutations_of_a_history_in_ranges(client, job):
    feed = await client.create_feed("h", partitions=2, retention="history")
    await put(feed, [(b"%d" % n, b"v") for n in range(1000)])
    reading = job("h", read="mutations", minPartitions="7")
    assert len(await reading.tasks()) >= 7
    rows = await reading.rows()
    assert sorted((row["partition"], row["seq"]) for row in rows) == sorted({(r["partition"], r["seq"]) for r in rows})
    assert len(rows) == 1000


async def test_written_after_the_plan(client, job):
    feed = await client.create_feed("f", partitions=4, retention="history")
    await put(feed, [(b"%d" % n, b"v") for n in range(20)])
    reading = job("f", read="mutations")
    tasks = await reading.tasks()
    await put(feed, [(b"later", b"v")])
    rows = [row for task in tasks for row in await reading.read(task)]
    assert b"later" not in keys(rows)
    assert len(rows) == 20


async def test_run_that_crosses_the_end_of_a_compact_feed(running, client, job):
    """k@2 was superseded after the plan by a row above its end: that one comes instead."""
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"a", b"k", b"b")
    for read in ("state", "mutations"):
        reading = job("c", read=read)
        (task,) = await reading.tasks()
        await write(feed, b"k")
        await fold(running, "c", through=feed)
        rows = await reading.read(task)
        assert sorted(keys(rows))[:3] == [b"a", b"b", b"filling-0"]
        assert b"k" in keys(rows)


# Less than all


async def test_partitions(feed, job):
    await put(feed, [(b"%d" % n, b"v") for n in range(100)])
    rows = await job("f", partition_ids="1, 3").rows()
    assert {row["partition"] for row in rows} == {1, 3}
    with pytest.raises(UnknownFeed, match="no partition 9: it has 4"):
        await job("f", partition_ids="1, 9").rows()


@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_key_prefix(feed, job, read):
    await put(feed, [(b"%02d" % n, b"v") for n in range(100)])
    rows = await job("f", key_prefix="3", read=read).rows()
    assert sorted(keys(rows)) == [b"%02d" % n for n in range(30, 40)]


# From and to a place


async def places(client, job, retention, count=3):
    """A feed to which one value after the other was written, and the positions and the time after each."""
    feed = await client.create_feed("f", partitions=2, retention=retention)
    found = []
    for n in range(count):
        await put(feed, [(key, b"%d" % n) for key in (b"a", b"b", b"c", b"only-%d" % n)])
        async with feed.consume(until="now") as stream:
            async for _ in stream:
                pass
        await trio.sleep(0.002)
        found.append((str(stream.positions), datetime.datetime.now(datetime.UTC).isoformat()))
        await trio.sleep(0.002)
    return feed, found


@pytest.mark.parametrize("kind", [0, 1], ids=["positions", "times"])
async def test_the_mutations_between_two_places(client, job, kind):
    _, found = await places(client, job, "history")
    after_first, after_second = found[0][kind], found[1][kind]
    rows = await job("f", read="mutations", startingOffsets=after_first, endingOffsets=after_second).rows()
    assert {row["value"] for row in rows} == {b"1"}
    assert len(rows) == 4
    rows = await job("f", read="mutations", startingOffsets=after_second).rows()
    assert {row["value"] for row in rows} == {b"2"}
    rows = await job("f", read="mutations", endingOffsets=after_first, minPartitions="3").rows()
    assert {row["value"] for row in rows} == {b"0"}


@pytest.mark.parametrize("kind", [0, 1], ids=["positions", "times"])
async def test_the_state_of_an_earlier_moment(client, job, kind):
    feed, found = await places(client, job, "history")
    await feed.delete(b"a")
    rows = await job("f", endingOffsets=found[1][kind]).rows()
    assert {row["key"]: row["value"] for row in rows} == {
        **dict.fromkeys([b"a", b"b", b"c"], b"1"),
        b"only-0": b"0",
        b"only-1": b"1",
    }
    assert len(rows) == 5
    rows = await job("f", endingOffsets=found[1][kind], key_prefix="only").rows()
    assert sorted(keys(rows)) == [b"only-0", b"only-1"]


async def test_a_compact_feed_has_no_state_of_an_earlier_moment(client, job):
    _, found = await places(client, job, "compact")
    with pytest.raises(DataGone, match="retention 'history'"):
        await job("f", endingOffsets=found[0][0]).rows()
    with pytest.raises(ValueError, match="'endingOffsets' and 'key_prefix'"):
        await job("f", read="mutations", endingOffsets=found[0][0], key_prefix="o").rows()


async def test_what_of_a_range_was_superseded_above_it_is_an_error(running, client, job):
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"a", b"k", b"b")
    async with feed.consume(until="now") as stream:
        async for _ in stream:
            pass
    await write(feed, b"k")
    await fold(running, "c", through=feed)
    end = str(stream.positions)
    with pytest.raises(DataGone, match="superseded"):
        await job("c", read="mutations", endingOffsets=end).rows()
    rows = await job("c", read="mutations", endingOffsets=end, failOnDataLoss="false").rows()
    assert keys(rows) == [b"a", b"b"]


async def test_positions_of_another_feed_are_refused(client, job):
    _, found = await places(client, job, "history", count=1)
    await client.create_feed("g", partitions=2)
    with pytest.raises(BadPosition):
        await job("g", read="mutations", startingOffsets=found[0][0]).rows()


def test_no_filter_is_taken_from_spark():
    """Spark keeps filters that were taken when it uses a DataFrame again, in versions up to 4.3 at least."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
