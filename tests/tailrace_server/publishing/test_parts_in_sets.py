"""Batches in parts in a set of three: a part that a majority has is known to it as a part, whoever leads then."""

from __future__ import annotations

import pytest
import trio
from tests.tailrace_server.publishing.test_sets import last_batches, numbered, publish, staged
from tests.tailrace_server.replication.made_set import make_set, until

from tailrace.wire.stage_messages import Publish, SinksTold
from tailrace_server.config import StorageConfig
from tailrace_server.publishing import cutting, publisher
from tailrace_server.state.last_batches import to_json
from tailrace_server.stream.replication_stream import ReplicationStream

ROWS = numbered(0, 200)


@pytest.fixture
async def members(tmp_path, nursery, monkeypatch):
    """A set whose nodes take 1,000 bytes of a batch at a time, one part a request."""
    monkeypatch.setattr(publisher, "STEP_S", 0.0)
    monkeypatch.setattr(cutting, "READ_BYTES", 1)
    made = make_set(tmp_path, nursery, storage=StorageConfig(publish_bytes_max=1_000))
    await made.start()
    await made.settled()
    return made


async def publish_some(node, feed, stage, parts):
    """Publishes so many parts, at quorum, and leaves the rest."""
    feed_id = (await feed.resolve()).feed_id
    request = Publish(feed_id, "job", "job", 0, (stage.stage_id,), (0, 1), in_steps=True)
    written = 0
    while written < parts:
        written += len((await node.node.publisher.publish(request)).written)


def rows_written(node):
    return sum(partition.high_seq for partition in node.node.feeds.named("orders").partitions)


async def lose_the_leader(members, client, *, is_flushed=False):
    """Between two parts of the second partition; gives how many rows there are when the batch was published again."""
    feed = await client.create_feed("orders", partitions=2)
    await members.level("orders")
    leader = members.leader
    stage = await staged(feed, ROWS, batch_rows=7)
    while not last_batches(leader)[1]:
        await publish_some(leader, feed, stage, 1)
        if is_flushed:
            for partition in leader.node.feeds.named("orders").partitions:
                await leader.node.storage.flusher.flush_all(partition)
    await members.level("orders")
    assert [last.is_complete for last in last_batches(leader)] == [True, False]
    new = next(node for node in members if node is not leader)
    await leader.kill()
    await new.promote()
    published = await publish(feed, 0, ROWS, batch_rows=11)
    assert sorted(published.written) == [1]
    await leader.start()
    await members.level("orders")
    for node in members:
        node.node.check()
        assert node.rows("orders") == ROWS
    return rows_written(new)


@pytest.mark.slow
@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_new_leader_goes_on_with_the_parts_that_are_not_there(members, is_flushed):
    async with members.client() as client:
        assert await lose_the_leader(members, client, is_flushed=is_flushed) == len(ROWS)
    told = [last_batches(node) for node in members]
    assert told == [told[0]] * 3
    assert all(last.is_complete and len(last.parts) > 1 for last in told[0])


@pytest.mark.slow
@pytest.mark.planted
async def test_a_follower_that_forgets_the_parts_is_found(members, monkeypatch):
    """A planted bug: followers are told of the batch, and not that they have a part of it."""

    def forget_the_parts(stream, seq):
        table = {sink: last._replace(parts=()) for sink, last in stream.partition.sinks.as_of(seq).items()}
        return [SinksTold(stream.partition.id, seq, to_json(table)).encode(stream.id)] if table else []

    monkeypatch.setattr(ReplicationStream, "_encode_sinks", forget_the_parts)
    async with members.client() as client:
        with pytest.raises(AssertionError):
            await lose_the_leader(members, client)


@pytest.mark.slow
async def test_a_part_that_no_majority_has_is_rolled_back_and_the_ones_before_it_stay(members):
    """The old leader writes one more, follows the new one, and leads again: it goes on above what is left."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        old, new, third = members
        assert old.leads
        stage = await staged(feed, ROWS, batch_rows=7)
        await publish_some(old, feed, stage, 3)
        await members.level("orders")
        before = last_batches(old)
        await new.kill()
        await third.kill()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_some, old, feed, stage, 1)
            await until(lambda: last_batches(old) != before)
            nursery.cancel_scope.cancel()
        alone = last_batches(old)
        await old.kill()
        await new.start()
        await third.start()
        await new.promote()
        for number in range(20):
            await feed.put(b"other %d" % number, b"v", level="quorum")
        await old.start()
        await members.level("orders")
        assert alone != before
        assert last_batches(old) == last_batches(new) == before
        await old.promote()
        await publish(feed, 0, ROWS, batch_rows=11)
        await members.level("orders")
        for node in members:
            assert rows_written(node) == len(ROWS) + 20
            assert node.rows("orders").items() >= ROWS.items()
            assert all(last.is_complete for last in last_batches(node))


@pytest.mark.slow
async def test_a_handover_between_two_parts(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        old, new, _ = members
        await publish_some(old, feed, await staged(feed, ROWS, batch_rows=7), 2)
        await members.level("orders")
        await old.hand_over(new)
        await publish(feed, 0, ROWS, batch_rows=11)
        assert rows_written(new) == len(ROWS)
        assert new.rows("orders") == ROWS


@pytest.mark.slow
async def test_a_member_that_was_away_gets_the_parts(members):
    """In a snapshot of segments, which have several of them."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        await members[2].stop()
        stage = await staged(feed, ROWS, batch_rows=7)
        await publish_some(members[0], feed, stage, 3)
        for partition in members[0].node.feeds.named("orders").partitions:
            await members[0].node.storage.flusher.flush_all(partition)
        await members[2].start()
        await members.level("orders")
        assert last_batches(members[2]) == last_batches(members[0])
        assert not last_batches(members[2])[0].is_complete
        await members[2].kill()
        await members[2].start()
        await members.level("orders")
        await members[2].promote()
        await publish(feed, 0, ROWS, batch_rows=11)
        assert rows_written(members[2]) == len(ROWS)
        assert members[2].rows("orders") == ROWS
