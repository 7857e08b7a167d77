"""Members below the end of a history in mode ``segment``, of which the leader has trimmed all rows but a few."""

from __future__ import annotations

import errno

import pytest
from tests.tailrace_server.replication.made_set import make_set, numbered, put, until

from tailrace_server.config import StorageConfig
from tailrace_server.upkeep import compactor
from tailrace_server.upkeep.flusher import Flusher

pytestmark = pytest.mark.slow

STORAGE = StorageConfig(flush_age_s=0.1, pushed_age_s=0.1, reserve_bytes=0)
AGED = {"retention": "history", "history_age_s": 0.5}


@pytest.fixture
async def members(tmp_path, nursery, monkeypatch):
    """A set of three that leads, follows, and looks at the age of its segments all the time."""
    monkeypatch.setattr(compactor, "SWEEP_SECONDS", 0.1)
    made = make_set(tmp_path, nursery, storage=STORAGE)
    await made.start()
    await made.settled()
    return made


def partition_of(member):
    [partition] = member.node.feeds.named("orders").partitions
    return partition


def is_trimmed(member):
    return partition_of(member).trim_seq == partition_of(member).high_seq > 0


async def trimmed_in_mode_stream(members, client):
    """All rows of a feed, which is then pushed, were trimmed on all members. Gives the feed."""
    feed = await client.create_feed("orders", partitions=1, **AGED)
    await put(feed, numbered(0, 20))
    await until(lambda: all(is_trimmed(member) for member in members))
    assert not any(partition_of(member).chain.segments for member in members)
    await client.set_feed("orders", replication="segment")
    return feed


async def test_a_new_disk_gets_its_vote_though_all_rows_were_trimmed_before_the_feed_was_pushed(members):
    leader = members.leader
    joiner, third = [member for member in members if member is not leader]
    async with members.client() as client:
        feed = await trimmed_in_mode_stream(members, client)
        await joiner.kill()
        joiner.replace_disk()
        await joiner.start()
        await until(lambda: joiner.is_up and joiner.member.local.votes)
        assert joiner.seqs("orders") == [20]
        assert partition_of(joiner).trim_seq == 20
        assert partition_of(third).high_seq == 20
        # What is written next comes behind it, and is what a new leader begins with.
        await feed.put(b"next", b"v", level="disk")
        await members.level("orders")
        await joiner.promote()
        assert (await feed.put(b"after", b"v", level="disk")).seq == 22
        for member in members:
            member.node.check()


async def test_a_member_that_was_away_comes_to_the_end_without_another_write(members):
    """The rows that it lacks were trimmed, all but those of the newest segment, which were never sent to anybody."""
    leader = members.leader
    away = next(member for member in members if member is not leader)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment", **AGED)
        await put(feed, numbered(0, 5), "disk")
        await members.level("orders")
        await away.kill()
        number = 5
        while partition_of(leader).trim_seq <= 5:
            await put(feed, numbered(number, 5), "disk")
            number += 5
        await until(lambda: len(partition_of(leader).chain.segments) == 1)
        await until(lambda: not partition_of(leader).tree.block_count)
        await away.start()
        await until(lambda: away.seqs("orders") == leader.seqs("orders"))
        await leader.hand_over(away)
        assert away.leads
        away.node.check()


async def test_the_end_is_offered_later_if_the_disk_refuses_it(members, monkeypatch, caplog):
    leader = members.leader
    behind = next(member for member in members if member is not leader)
    flush_end, tries = Flusher.flush_end, []

    async def refuse_once(self, partition):
        tries.append(partition)
        if len(tries) == 1:
            raise OSError(errno.EIO, "the disk refuses")
        await flush_end(self, partition)

    monkeypatch.setattr(Flusher, "flush_end", refuse_once)
    async with members.client() as client:
        await behind.kill()
        behind.replace_disk()
        await trimmed_in_mode_stream([leader], client)
        await behind.start()
        await until(lambda: behind.seqs("orders") == [20])
    assert len(tries) > 1
    assert "the end of a trimmed history is offered later: [Errno 5] the disk refuses" in caplog.text


async def test_a_handover_does_not_wait_for_rows_that_were_trimmed_before_the_feed_was_pushed(members):
    leader = members.leader
    behind = next(member for member in members if member is not leader)
    async with members.client() as client:
        await behind.kill()
        feed = await client.create_feed("orders", partitions=1, **AGED)
        await put(feed, numbered(0, 20))
        await until(lambda: is_trimmed(leader) and not partition_of(leader).chain.segments)
        await client.set_feed("orders", replication="segment")
        await behind.start()
        await until(lambda: behind.seqs("orders") is not None)
        await leader.hand_over(behind)
        assert behind.leads
        assert behind.seqs("orders") == [20]
        behind.node.check()
