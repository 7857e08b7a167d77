"""Ranges that can be given again exactly, ranges that cannot any more, and how that is told."""

from __future__ import annotations

import random

import pytest
import trio
from tests.pyspark_tailrace.reading.conftest import rows_of
from tests.test_hazards import folded_until

from pyspark_tailrace.reading import partition_reader
from tailrace import BadPosition, DataGone, Put, StreamEnded, UnknownFeed


async def write(feed, *keys, value=b"v"):
    for key in keys:
        await feed.put(key, value)


async def fold(running, name, *, through):
    """Folds all of the feed's one partition: writes and flushes until it is done."""
    node = running.node
    (partition,) = node.feeds.named(name).partitions
    await node.storage.flusher.flush(partition)
    feed = through
    for number in range(3):
        await feed.put(b"filling-%d" % number, b"v")
        await node.storage.flusher.flush(partition)
    await folded_until(running, lambda: partition.chain.segments[0].identity.deduplicated)
    return partition.chain.segments[0].identity


def keys(rows):
    return [row["key"] for row in rows]


async def test_range_of_a_history_is_the_same_for_ever(running, client, query):
    feed = await client.create_feed("h", partitions=1, retention="history")
    reading = query("h", minPartitions="3")
    await write(feed, b"k", b"a", b"k", b"b")
    start = await reading.initial()
    end = await reading.latest(start)
    wanted = await reading.rows(start, end)
    assert [(row["seq"], row["key"]) for row in wanted] == [(1, b"k"), (2, b"a"), (3, b"k"), (4, b"b")]
    await write(feed, b"k", b"a", value=b"later")
    (partition,) = running.node.feeds.named("h").partitions
    await running.node.storage.flusher.flush(partition)
    await running.kill()
    await running.start()
    again = query("h", minPartitions="2")
    assert await again.rows(start, end) == wanted
    assert len(await again.tasks(start, end)) == 2


@pytest.mark.parametrize("strict", [True, False])
async def test_hazard_25_a_range_of_a_compact_feed_that_is_not_whole_any_more(running, client, query, strict):
    """k@2 is in the range; before its task reads, k@5 supersedes it in a folded segment: k is in no range then."""
    feed = await client.create_feed("c", partitions=1)
    reading = query("c", failOnDataLoss=str(strict).lower())
    await write(feed, b"a", b"k", b"b")
    start = await reading.initial()
    end = await reading.latest(start)
    assert keys(await reading.rows(start, end)) == [b"a", b"k", b"b"]
    await write(feed, b"c", b"k")
    identity = await fold(running, "c", through=feed)
    assert identity.last_seq > 5
    if strict:
        with pytest.raises(DataGone, match=r"seq 2 has been superseded .*above seq 3, .*retention 'history'.*failOn"):
            await reading.rows(start, end)
    else:
        assert keys(await reading.rows(start, end)) == [b"a", b"b"]
        rest = await reading.rows(end, await reading.latest(end))
        assert [(row["key"], row["seq"]) for row in rest][:2] == [(b"c", 4), (b"k", 5)]


async def test_hazard_25_a_run_that_ends_in_the_range_is_whole(running, client, query):
    """k@1 is superseded by k@3, and both are in the range: its state is all there."""
    feed = await client.create_feed("c", partitions=1)
    reading = query("c")
    await write(feed, b"k", b"a", b"k")
    start = await reading.initial()
    await fold(running, "c", through=feed)
    end = await reading.latest(start)
    await write(feed, b"k")
    assert [(row["key"], row["seq"]) for row in await reading.rows(start, end)][:2] == [(b"a", 2), (b"k", 3)]
    rows = await reading.rows(end, await reading.latest(end))
    assert keys(rows) == [b"k"]


async def test_hazard_25_a_run_that_crosses_the_end_and_lacks_nothing_of_the_range(running, client, query):
    feed = await client.create_feed("c", partitions=1)
    reading = query("c")
    await write(feed, b"a", b"b")
    start = await reading.initial()
    end = await reading.latest(start)
    await write(feed, b"k", b"k")
    await fold(running, "c", through=feed)
    assert keys(await reading.rows(start, end)) == [b"a", b"b"]


async def test_no_rows_twice_and_none_left_out_where_a_run_is_read_in_two_ranges(running, client, query):
    """The end of the first range lies in a run that was folded since, and lacks nothing below."""
    feed = await client.create_feed("c", partitions=1)
    reading = query("c")
    await write(feed, b"a", b"b", b"c")
    start = await reading.initial()
    middle = await reading.latest(start)
    await write(feed, b"d", b"e", b"d")
    await fold(running, "c", through=feed)
    first, rest = await reading.rows(start, middle), await reading.rows(middle, await reading.latest(middle))
    assert keys(first) == [b"a", b"b", b"c"]
    assert keys(rest)[:2] == [b"e", b"d"]


@pytest.mark.parametrize("strict", [True, False])
async def test_deletions_that_were_purged_since(running, client, query, strict):
    """The query has k, and will never be told that it was deleted."""
    feed = await client.create_feed("c", partitions=1, tombstone_age_s=0.0)
    await write(feed, b"k", b"a")
    reading = query("c", failOnDataLoss=str(strict).lower())
    _, end = await reading.batches()
    await feed.delete(b"k")
    await write(feed, b"b")
    (partition,) = running.node.feeds.named("c").partitions
    for number in range(3):
        await feed.put(b"filling-%d" % number, b"v")
        await running.node.storage.flusher.flush(partition)
    await feed.put(b"filling-3", b"v")
    await running.node.storage.flusher.flush(partition)
    await folded_until(running, lambda: partition.purge_seq)
    later = await reading.latest(end)
    if strict:
        with pytest.raises(DataGone, match=r"rolled back to seq 0 \(purged\).*'failOnDataLoss', 'false'"):
            await reading.rows(end, later)
    else:
        assert {b"a", b"b", b"filling-3"} <= set(keys(await reading.rows(end, later)))


@pytest.mark.parametrize("retention", ["history", "compact"])
async def test_mutations_that_were_lost_and_written_anew_are_another_history(client, query, lose, retention):
    """The range was planned with rows that the node has lost since: seqs 3 and 4 are others now."""
    feed = await client.create_feed("h", partitions=1, retention=retention)
    reading = query("h")
    await write(feed, b"a", b"b")
    start = await reading.initial()
    async with lose():
        await write(feed, b"lost-1", b"lost-2")
        end = await reading.latest(start)
        tasks = await reading.tasks(start, end)
    await write(feed, b"c", b"d")
    with pytest.raises(StreamEnded, match="seq 4 was lost after the range up to it was planned"):
        await reading.read(tasks[0])


async def test_feed_that_was_dropped_and_made_again(client, query):
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"a")
    reading = query("c")
    start = await reading.initial()
    end = await reading.latest(start)
    tasks = await reading.tasks(start, end)
    await client.drop_feed("c")
    with pytest.raises(UnknownFeed):
        await reading.read(tasks[0])
    await client.create_feed("c", partitions=1)
    with pytest.raises(BadPosition, match="dropped and made again"):
        await reading.latest(end)


async def test_columns_that_are_asked_for(client, query):
    feed = await client.create_feed("c", partitions=1)
    await feed.write([Put(b"a", b"1")])
    await feed.delete(b"a")
    reading = query("c", ["deleted", "key"])
    ((first, second),), _ = await reading.batches()
    assert (first, second) == ({"deleted": False, "key": b"a"}, {"deleted": True, "key": b"a"})


async def test_mutations_that_were_lost_and_not_written_anew(client, query, lose, monkeypatch):
    """Nothing comes, so it is the reader that has to ask."""
    monkeypatch.setattr(partition_reader, "QUIET_SECONDS", 0.05)
    feed = await client.create_feed("h", partitions=1, retention="history")
    reading = query("h")
    await write(feed, b"a", b"b")
    start = await reading.initial()
    async with lose():
        await write(feed, b"lost")
        (task,) = await reading.tasks(start, await reading.latest(start))
    with pytest.raises(StreamEnded, match="seq 3 was lost"):
        await reading.read(task)


async def test_node_that_is_away_while_a_task_reads(running, client, query):
    feed = await client.create_feed("h", partitions=2, retention="history")
    values = random.Random(1)  # more than the window of a stream lets through
    for first in range(0, 2000, 500):
        await feed.write([Put(b"%05d" % number, values.randbytes(10_000)) for number in range(first, first + 500)])
    reading = query("h", ["key", "value"])
    start = await reading.initial()
    (task,) = await reading.tasks(start, await reading.latest(start))
    batches = reading.reader.read(task)
    rows = await trio.to_thread.run_sync(lambda: rows_of([next(batches)]))
    assert len(rows) < 1000
    await running.kill()
    await running.start()
    rows += await trio.to_thread.run_sync(rows_of, batches)
    assert sorted(keys(rows)) == [b"%05d" % number for number in range(2000)]
