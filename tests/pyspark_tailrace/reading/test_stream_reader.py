"""Where a query begins, what a micro-batch takes, and where it goes on after the node has lost something."""

from __future__ import annotations

import datetime
import random

import pytest
from tests.pyspark_tailrace.reading.test_partition_reader import fold, keys, write
from tests.tailrace_server.replication.made_set import until
from tests.test_hazards import folded_until

from pyspark_tailrace.reading.offsets import from_offset
from pyspark_tailrace.versions import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from tailrace import BadPosition, DataGone, NotLeader, Put, StreamEnded


async def write_many(feed, count, value=b"v" * 50):
    await feed.write([Put(b"%06d" % number, value) for number in range(count)])


# Progress


async def test_the_node_is_told_what_is_handled_and_not_what_is_planned(running, client, query):
    feed = await client.create_feed("c", partitions=2)
    await write(feed, b"a", b"b")
    reading = query("c", query_name="revenue")
    start = await reading.initial()
    end = await reading.latest(start)
    assert told(running) == {"spark revenue": 0}
    await reading.rows(start, end)
    assert await reading.latest(end) == end
    assert told(running) == {"spark revenue": 2}


async def test_progress_is_told_again_to_a_node_that_has_forgotten_it(running, client, query):
    await client.create_feed("c", partitions=1)
    reading = query("c")
    start = await reading.initial()
    await reading.latest(start)
    reading.reader._node.close()
    await until(lambda: told(running) == {})
    await reading.latest(start)
    assert told(running) == {"spark source": 0}


async def test_an_older_node_is_not_told(running, client, query, monkeypatch):
    monkeypatch.setattr("tailrace.requests.client_core.ClientCore.takes_progress", False)
    await client.create_feed("c", partitions=1)
    reading = query("c")
    await reading.latest(await reading.initial())
    assert told(running) == {}


def told(running):
    """The mutations that each connection has told to have handled, by its name."""
    connections = [one for one in running.node.connections if one.progress is not None]
    return {one.name: sum(one.progress.seqs.values()) for one in connections}


# Beginnings


async def test_earliest_and_the_same_each_time_that_spark_asks(client, query):
    feed = await client.create_feed("c", partitions=2)
    await write(feed, b"a", b"b")
    reading = query("c")
    assert await reading.initial() == await reading.initial()
    ((first, second),), _ = await reading.batches()
    assert {first["key"], second["key"]} == {b"a", b"b"}


async def test_latest(client, query):
    feed = await client.create_feed("c", partitions=2)
    await write(feed, b"a", b"b")
    reading = query("c", startingOffsets="latest")
    start = await reading.initial()
    await write(feed, b"later")
    assert await reading.initial() == start
    (rows,), _ = await reading.batches(start)
    assert keys(rows) == [b"later"]


async def test_positions(client, query):
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"a")
    _, end = await query("c").batches()
    await write(feed, b"b")
    (rows,), _ = await query("c", startingOffsets=end["positions"]).batches()
    assert keys(rows) == [b"b"]


async def test_time(running, client, query):
    """Between rows of one block: those of the block that are earlier are left out."""
    feed = await client.create_feed("h", partitions=1, retention="history")
    await write(feed, b"a", b"b", b"c")
    ((_, row, _),), _ = await query("h").batches()
    since = row["timestamp"].astimezone(datetime.UTC).isoformat()
    (rows,), _ = await query("h", startingOffsets=since).batches()
    assert keys(rows) == [b"b", b"c"]
    (partition,) = running.node.feeds.named("h").partitions
    await running.node.storage.flusher.flush(partition)
    (rows,), _ = await query("h", startingOffsets=since).batches()
    assert keys(rows) == [b"b", b"c"]


async def test_time_to_come(client, query):
    feed = await client.create_feed("h", partitions=2, retention="history")
    await write(feed, b"a")
    assert (await query("h", startingOffsets="2100-01-01T00:00:00Z").batches())[0] == []


async def test_time_in_the_middle_of_a_run(running, client, query):
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"k", b"a", b"k", b"b")
    rows, _ = await query("c").batches()
    since = rows[0][1]["timestamp"].astimezone(datetime.UTC).isoformat()
    await fold(running, "c", through=feed)
    (rows,), _ = await query("c", startingOffsets=since).batches()
    assert keys(rows)[:3] == [b"a", b"k", b"b"]


async def test_positions_of_another_feed(client, query):
    await client.create_feed("a", partitions=1)
    await client.create_feed("b", partitions=1)
    start = await query("a", startingOffsets="latest").initial()
    with pytest.raises(BadPosition, match="another feed"):
        await query("b", startingOffsets=start["positions"]).initial()


# Admission


@pytest.mark.parametrize("rows", [1, 7, 100, 5000])
async def test_batches_of_a_history_have_so_many_rows(client, query, rows):
    feed = await client.create_feed("h", partitions=4, retention="history")
    await write_many(feed, 500)
    reading = query("h", maxRowsPerTrigger=str(rows))
    start = await reading.initial()
    if rows == 1:
        start = await reading.latest(start, ReadMaxRows(490))
        reading = query("h", maxRowsPerTrigger="1")
    batches, end = await reading.batches(start)
    expected = 500 - sum(from_offset(start).seqs().values())
    assert sum(map(len, batches)) == expected
    assert all(len(batch) == rows for batch in batches[:-1])
    assert end == await reading.latest(end)


async def test_shares_are_even(client, query):
    feed = await client.create_feed("h", partitions=4, retention="history")
    await write_many(feed, 400)
    reading = query("h", maxRowsPerTrigger="40")
    end = await reading.latest(await reading.initial())
    assert set(from_offset(end).seqs().values()) == {10}


async def test_batches_of_so_many_bytes(client, query):
    feed = await client.create_feed("h", partitions=2, retention="history")
    for _ in range(10):
        await write_many(feed, 100, random.Random(1).randbytes(1000))
    reading = query("h", maxBytesPerTrigger="100000")
    assert reading.reader.getDefaultReadLimit() == ReadMaxBytes(100_000)
    batches, _ = await reading.batches()
    assert sum(map(len, batches)) == 1000
    assert all(50 <= len(batch) <= 110 for batch in batches[:-1])


async def test_trigger_that_wants_all_there_is(client, query):
    feed = await client.create_feed("h", partitions=2, retention="history")
    await write_many(feed, 100)
    reading = query("h", maxRowsPerTrigger="10", maxBytesPerTrigger="10")
    batches, _ = await reading.batches(limit=ReadAllAvailable())
    assert [len(batch) for batch in batches] == [100]


async def test_batches_of_a_compact_feed_are_whole_snapshots(running, client, query):
    """The state at each batch's end is one that the feed has had, though all rows of a key but one are gone."""
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"k", b"a", b"k", b"a")
    identity = await fold(running, "c", through=feed)
    await write(feed, b"x", b"y")
    reading = query("c", maxRowsPerTrigger="1")
    start = await reading.initial()
    end = await reading.latest(start)
    assert from_offset(end).seqs() == {0: identity.last_seq}
    batches, _ = await reading.batches(start)
    assert [keys(batch) for batch in batches][1:] == [[b"x", b"y"]]


async def test_partitions_of_a_compact_feed_have_their_turns(client, query):
    feed = await client.create_feed("c", partitions=4)
    await write_many(feed, 100)
    reading = query("c", maxRowsPerTrigger="1")
    batches, _ = await reading.batches()
    assert [{row["partition"] for row in batch} for batch in batches] == [{0}, {1}, {2}, {3}]
    assert sum(map(len, batches)) == 100


async def test_available_now_ends_though_writes_go_on(client, query):
    feed = await client.create_feed("h", partitions=1, retention="history")
    await write_many(feed, 50)
    reading = query("h", maxRowsPerTrigger="20")
    await reading.call("prepareForTriggerAvailableNow")
    start, counts = await reading.initial(), []
    while (end := await reading.latest(start)) != start:
        await write_many(feed, 30)
        counts.append(len(await reading.rows(start, end)))
        start = end
    assert counts == [20, 20, 10]


async def test_available_now_of_a_compact_feed_ends_with_a_snapshot(running, client, query):
    feed = await client.create_feed("c", partitions=1)
    await write(feed, b"a", b"k")
    reading = query("c")
    await reading.call("prepareForTriggerAvailableNow")
    await write(feed, b"k")
    await fold(running, "c", through=feed)
    batches, _ = await reading.batches()
    assert [keys(batch)[:2] for batch in batches] == [[b"a", b"k"]]


async def test_nothing_new_is_the_same_offset(running, client, query):
    """Also after a start that has added a branch: else each would make an empty batch."""
    feed = await client.create_feed("h", partitions=2, retention="history")
    await write(feed, b"a")
    reading = query("h")
    _, end = await reading.batches()
    await running.kill()
    await running.start()
    assert await reading.latest(end) == end
    await write(feed, b"b")
    (rows,), _ = await reading.batches(end)
    assert keys(rows) == [b"b"]


async def test_lag(client, query):
    feed = await client.create_feed("h", partitions=2, retention="history")
    await write_many(feed, 100)
    reading = query("h", maxRowsPerTrigger="30")
    start = await reading.initial()
    assert (await reading.call("reportLatestOffset"))["behind"] == 100
    await reading.latest(start)
    told = await reading.call("reportLatestOffset")
    assert told["behind"] == 70
    assert sum(from_offset(told).seqs().values()) == 100


# Rollbacks


async def lost(feed, reading, lose):
    """Two rows that are there, two that the query is given and the node loses; gives the offsets after both."""
    await write(feed, b"a", b"b")
    _, middle = await reading.batches()
    async with lose():
        await write(feed, b"lost", b"lost-too")
        _, end = await reading.batches(middle)
    return middle, end


async def test_rollback_ends_the_query(client, query, lose):
    feed = await client.create_feed("h", partitions=1, retention="history")
    middle, end = await lost(feed, query("h"), lose)
    await write(feed, b"new")
    text = r"partition 0: .* read up to seq 4 .* agrees with that up to seq 2 only.*'on_rollback', 'follow'"
    with pytest.raises(StreamEnded, match=text):
        await query("h").latest(end)
    with pytest.raises(StreamEnded, match=text):
        await query("h").tasks(middle, end)


@pytest.mark.parametrize("retention", ["history", "compact"])
async def test_rollback_is_followed_from_the_common_point(client, query, lose, retention):
    feed = await client.create_feed("f", partitions=1, retention=retention)
    middle, end = await lost(feed, query("f"), lose)
    reading = query("f", on_rollback="follow")
    assert await reading.rows(middle, end) == []  # a micro-batch that was planned before, and is run again
    after = await reading.latest(end)
    assert from_offset(after).seqs() == {0: 2}
    await write(feed, b"new", b"newer", b"newest")
    batches, _ = await reading.batches(end)
    assert [[(row["seq"], row["key"]) for row in batch] for batch in batches] == [
        [(3, b"new"), (4, b"newer"), (5, b"newest")]
    ]


async def test_older_copy_is_waited_for(running, client, query, tmp_path):
    """A node that knows less than the query does is not followed, nor is it an error while nothing is to be read."""
    feed = await client.create_feed("h", partitions=1, retention="history")
    await write(feed, b"a")
    running.copy_data(tmp_path / "older")
    for _ in range(2):  # the older copy, when it starts, adds a branch too
        await running.kill()
        await running.start()
    await write(feed, b"b")
    _, end = await query("h").batches()
    await running.stop()
    running.put_back(tmp_path / "older")
    await running.start()
    reading = query("h")
    assert await reading.latest(end) == end
    with pytest.raises(NotLeader, match="at term 2, and the query has seen 3"):
        await reading.tasks(await query("h").initial(), end)


# Trimming


async def trimmed(running, feed):
    node = running.node
    (partition,) = node.feeds.named(feed.name).partitions
    for _ in range(4):
        await feed.put(b"k", b"v" * 1000)
        await node.storage.flusher.flush(partition)
    await folded_until(running, lambda: partition.trim_seq)
    return partition.trim_seq


async def test_history_that_was_trimmed(running, client, query):
    feed = await client.create_feed("h", partitions=1, retention="history", history_bytes=1500)
    reading = query("h")
    await write(feed, b"a", b"b")
    start = await reading.initial()
    middle = await reading.latest(start, ReadMaxRows(1))
    trim_seq = await trimmed(running, feed)
    end = await reading.latest(start)
    for begin in (start, middle):
        with pytest.raises(DataGone, match=r"trimmed|kept mutations begin"):
            await reading.rows(begin, end)
    left = await query("h", failOnDataLoss="false").rows(middle, end)
    assert [row["seq"] for row in left] == list(range(left[0]["seq"], 7))
    assert left[0]["seq"] > trim_seq  # by as much as was trimmed meanwhile
    (rows,), _ = await query("h").batches()  # which begins with what is kept
    assert rows == left[-len(rows) :]


def check_kept(seqs, trim_seq):
    """Each is given once, up to the last; those that go while they are read are perhaps not."""
    assert seqs == sorted(set(seqs))
    assert seqs[0] > trim_seq
    assert seqs[-1] == 6


@pytest.mark.parametrize("option", ["maxBytesPerTrigger", "maxRowsPerTrigger"])
async def test_micro_batches_go_on_with_what_is_kept(running, client, query, option):
    """Not only the tasks: planning a micro-batch looks at rows too, where bytes are its bound."""
    feed = await client.create_feed("h", partitions=1, retention="history", history_bytes=1500)
    await write(feed, b"a", b"b")
    start = await query("h").latest(await query("h").initial(), ReadMaxRows(1))
    trim_seq = await trimmed(running, feed)  # and perhaps more meanwhile
    reading = query("h", failOnDataLoss="false", **{option: "1"})
    if option == "maxBytesPerTrigger":
        with pytest.raises(DataGone, match=r"trimmed|kept mutations begin"):
            await query("h", maxBytesPerTrigger="1").latest(start)
        assert from_offset(await reading.latest(start)).seqs()[0] > trim_seq
    batches, end = await reading.batches(start)
    assert from_offset(end).seqs() == {0: 6}
    check_kept([row["seq"] for batch in batches for row in batch], trim_seq)


async def test_time_before_what_is_kept(running, client, query):
    feed = await client.create_feed("h", partitions=1, retention="history", history_bytes=1500)
    await write(feed, b"a", b"b")
    trim_seq = await trimmed(running, feed)
    with pytest.raises(DataGone):
        await query("h", startingOffsets="2001-01-01T00:00:00Z").initial()
    batches, _ = await query("h", startingOffsets="2001-01-01T00:00:00Z", failOnDataLoss="false").batches()
    check_kept([row["seq"] for batch in batches for row in batch], trim_seq)
