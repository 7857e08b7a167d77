"""A partition that its leader cannot stream on holds up no other one; nor the vote of a disk that was replaced."""

import dataclasses
import os

import pytest
from tests.tailrace_server.replication.made_set import numbered, until

from tailrace.errors import NotLeader, TailraceError
from tailrace_server.replication.debts import Debt
from tailrace_server.replication.standings import PartitionId, Standing


async def put(feed, rows):
    for key, value in rows.items():
        await feed.put(key, value, level="quorum")


async def flushed(node, feed):
    """All of the feed there is in segments; gives the partitions."""
    partitions = node.node.feeds.named(feed).partitions
    for partition in partitions:
        await node.node.storage.flusher.flush_all(partition)
    return partitions


def damage(partition):
    """Its first segment has lost its end, from the first block on."""
    os.truncate(partition.chain.segments[0].path, 100)


async def trimmed(members, client, rows):
    """The third member has ``rows`` of a history, in one partition, of which the leader has trimmed those and more.

    It takes rows by streams only; with segments it would not go back (test_catching_up.py).
    """
    feed = await client.create_feed("log", partitions=1, retention="history")
    await put(feed, rows)
    await members.level("log")
    await members[2].stop()
    by_stream = dataclasses.replace(members[2].config.replication, catch_up_bytes_min=None)
    members[2].config = dataclasses.replace(members[2].config, replication=by_stream)
    await put(feed, numbered(100, 10))
    [partition] = await flushed(members[0], "log")
    await put(feed, numbered(200, 10))
    await flushed(members[0], "log")
    await members[0].node.storage.installer.drop_oldest(partition, 1)
    assert partition.trim_seq == len(rows) + 10
    return partition


async def test_a_follower_below_what_a_history_keeps_copies_that_partition_anew(members):
    async with members.client() as client:
        orders = await client.create_feed("orders", partitions=2)
        partition = await trimmed(members, client, numbered(0, 10))
        await members[2].start()
        await put(orders, numbered(0, 20))
        await members.level("orders")
        await members.level("log")
        assert members[2].rows("log") == members[0].rows("log") == numbered(200, 10)
        [copy] = members[2].node.feeds.named("log").partitions
        assert copy.trim_seq == partition.trim_seq
        [told] = members[2].node.status()["replication"]["begun_anew"]
        assert told == {"feed": "log", "partition": 0, "stood_at": 10, "kept_from": 21, "why": "trimmed"}
        assert not members[0].node.status()["replication"]["begun_anew"]
        members[2].node.check()
        await client.drop_feed("log")
        await until(lambda: not members[2].node.status()["replication"]["begun_anew"])


async def test_what_a_follower_gives_up_below_a_trim_is_owed_until_it_is_copied(members):
    """By its promise none is promoted meanwhile who has less than it had acknowledged."""
    async with members.client() as client:
        await client.create_feed("orders", partitions=1)
        partition = await trimmed(members, client, numbered(0, 10))
        term = members[0].node.leaderships.system.term
        await members[2].start()
        await members.level("log")
        assert members[2].member.local.file.now.owes == (Debt(PartitionId(partition.feed_id, 0), Standing(term, 10)),)
        await members[1].promote()  # it asks for a promise, with which what is there again is owed no more
        assert not members[2].member.local.file.now.owes


async def test_a_partition_that_is_copied_anew_ends_no_stream(members):
    """Nor does what is written to it then find the follower gone."""
    async with members.client() as client:
        partition = await trimmed(members, client, numbered(0, 10))
        await members[2].start()
        await members.level("log")
        follower = members[2].node
        following = members[2].member.following
        await put(client.feed("log"), numbered(300, 5))
        await members.level("log")
        assert members[2].member.following is following
        follower.check()
        assert follower.feeds.named("log").partitions[0].high_seq == partition.high_seq


async def test_a_damaged_segment_of_the_leader_holds_up_no_other_partition(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 20), partitions=2)
        broken, _ = await flushed(members[0], "orders")
        damage(broken)
        await members[2].stop()
        members[2].replace_disk()
        await members[2].start()
        await until(lambda: members[2].member.following is not None)
        other = await client.create_feed("other", partitions=1)
        await put(other, numbered(0, 5))
        await put(feed, numbered(20, 20))
        await until(lambda: members[2].is_up and members[2].seqs("other") == members[0].seqs("other"))
        await until(lambda: members[2].seqs("orders")[1] == members[0].seqs("orders")[1])
        assert members[2].seqs("orders")[0] == 0
        assert members[0].leads


async def test_a_new_disk_votes_though_the_leader_cannot_read_a_partition_which_it_owes_then(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 20), partitions=2)
        broken, _ = await flushed(members[0], "orders")
        damage(broken)
        await members[2].stop()
        members[2].replace_disk()
        await members[2].start()
        await until(lambda: members[2].member.local.votes)
        standing = Standing(members[0].node.leaderships.system.term, broken.high_seq)
        assert members[2].member.local.file.now.owes == (Debt(PartitionId(broken.feed_id, 0), standing),)
        await members[0].kill()
        await members[1].promote()  # it has all that is owed
        await until(lambda: members[2].rows("orders") == numbered(0, 20))
        assert members[2].member.local.votes


async def test_by_the_promise_of_who_owes_a_partition_only_one_leads_that_has_it(members):
    """What the leader and the old disk had is on the leader alone, which is gone: to lead without needs force."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 10), partitions=1)
        await members[1].stop()
        await put(feed, numbered(10, 10))
        [broken] = await flushed(members[0], "orders")
        damage(broken)
        await members[2].stop()
        members[2].replace_disk()
        await members[1].start()
        await members[2].start()
        await until(lambda: members[2].member.local.votes)
    with pytest.raises(TailraceError):  # what is missing it would have to fetch from who cannot read it
        await members[1].promote()
    await members[0].kill()
    with pytest.raises(NotLeader, match="had acknowledged partition 0"):
        await members[1].promote()
    await members[1].promote(force=True)
