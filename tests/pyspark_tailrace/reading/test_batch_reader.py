"""Batches: the latest state, every mutation, and what the node is spared by filters."""

from __future__ import annotations

import datetime

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan
from tests.pyspark_tailrace.reading.test_partition_reader import fold, keys, write

from tailrace import Put
from tailrace.hashing import key_hash, partition_of_hash


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


# Filters: what the tasks give before Spark applies them


async def narrowed(job, *filters, **options):
    reading = job("f", filters=filters, **options)
    return await reading.rows(), await reading.tasks()


async def test_partitions(feed, job):
    await put(feed, [(b"%d" % n, b"v") for n in range(100)])
    rows, _ = await narrowed(job, In(("partition",), (1, 3)))
    assert {row["partition"] for row in rows} == {1, 3}
    rows, _ = await narrowed(job, EqualTo(("partition",), 9))
    assert rows == []


async def test_key(feed, job):
    await put(feed, [(b"%d" % n, b"v") for n in range(100)])
    rows, (task,) = await narrowed(job, EqualTo(("key",), b"7"))
    assert {part.partition for part in task.parts} == {partition_of_hash(key_hash(b"7"), 4)}
    assert b"7" in keys(rows)
    assert all(key.startswith(b"7") for key in keys(rows))


@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_key_prefix(feed, job, read):
    await put(feed, [(b"%02d" % n, b"v") for n in range(100)])
    rows, _ = await narrowed(job, GreaterThanOrEqual(("key",), b"3"), LessThan(("key",), b"4"), read=read)
    assert sorted(keys(rows)) == [b"%02d" % n for n in range(30, 40)]


async def test_seqs_of_mutations(feed, job):
    for n in range(40):
        await put(feed, [(b"%d" % n, b"v")])
    rows, _ = await narrowed(job, GreaterThan(("seq",), 3), LessThan(("seq",), 6), read="mutations")
    assert {row["seq"] for row in rows} == {4, 5}


async def test_seqs_of_the_state(feed, job):
    """A row below the bound is left out, and none is taken for the latest that is superseded above it."""
    await put(feed, [(b"a", b"1")])
    await put(feed, [(b"a", b"2")])
    rows, _ = await narrowed(job, LessThan(("seq",), 2))
    assert [row["seq"] for row in rows] == [2]
    rows, _ = await narrowed(job, GreaterThan(("seq",), 2))
    assert rows == []


@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_times(feed, job, read):
    await put(feed, [(b"a", b"1")])
    await put(feed, [(b"a", b"2")])
    await put(feed, [(b"a", b"3")])
    first, second, third = sorted(row["timestamp"] for row in await job("f", read="mutations").rows())
    assert first < second < third
    rows, _ = await narrowed(job, GreaterThanOrEqual(("timestamp",), second), read=read)
    assert [row["value"] for row in rows] == ([b"3"] if read == "state" else [b"2", b"3"])
    rows, _ = await narrowed(job, LessThan(("timestamp",), third), read=read)
    assert [row["value"] for row in rows] == ([b"3"] if read == "state" else [b"1", b"2"])


async def test_time_whose_mutations_may_be_gone_is_left_to_spark(running, client, job):
    """Deletions were purged since: the state is read from the beginning."""
    feed = await client.create_feed("f", partitions=1, tombstone_age_s=0.0)
    since = datetime.datetime.now(datetime.UTC)
    await write(feed, b"a", b"k")
    await feed.delete(b"k")
    await fold(running, "f", through=feed)
    rows, _ = await narrowed(job, GreaterThanOrEqual(("timestamp",), since))
    assert sorted(keys(rows))[0] == b"a"
