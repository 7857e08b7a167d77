"""Queries over a set of nodes whose leader is killed."""

from __future__ import annotations

import pytest
from tests.pyspark_tailrace.reading.conftest import Query
from tests.pyspark_tailrace.reading.test_partition_reader import keys
from tests.tailrace_server.replication.made_set import numbered
from tests.tailrace_server.replication.test_sets import put

from tailrace import StreamEnded


@pytest.fixture
def query(members):
    """Makes queries, and stops them at the end."""
    made = []

    def make(**options):
        made.append(Query(members.url, "orders", **{"retry_for": "60"} | options))
        return made[-1]

    yield make
    for reading in made:
        reading.reader.stop()


async def test_what_is_read_at_quorum_stays(members, query):
    """The query itself goes on at the new leader: nothing of it is made anew."""
    reading = query(visibility="quorum")
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2, retention="history")
        await put(feed, numbered(0, 10), level="quorum")
        first, end = await reading.batches()
        await members.level("orders")
        await members[0].kill()
        await members[1].promote()
        await put(feed, numbered(10, 10), level="quorum")
        rest, _ = await reading.batches(end)
    assert sorted(keys(row for batch in first + rest for row in batch)) == sorted(numbered(0, 20))


async def test_what_only_the_old_leader_had_was_read_at_disk(members, query):
    """It ends the query, or is left behind; what the new leader has written instead comes."""
    others = [node for node in members if node is not members[0]]
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await put(feed, numbered(0, 10), level="quorum")
        await members.level("orders")
        for node in others:
            await node.kill()
        await put(feed, {b"lost": b"never replicated"})
        batches, end = await query().batches()
        assert keys(batches[0])[-1] == b"lost"
        await members[0].kill()
        for node in others:
            await node.start()
        await members[1].promote()
        await put(feed, {b"new": b"in its place"}, level="quorum")
    with pytest.raises(StreamEnded, match=r"has read up to seq 11 .* agrees with that up to seq 10 only"):
        await query().latest(end)
    batches, _ = await query(on_rollback="follow").batches(end)
    assert [[(row["seq"], row["key"]) for row in batch] for batch in batches] == [[(11, b"new")]]
