"""A follower copies a partition anew whose segments it cannot read. Its rows stay until the leader's are here."""

import os

import pytest
from tests.segment_fixtures import flip
from tests.tailrace_server.replication.made_set import COPY_ALWAYS, numbered, put, until

from tailrace_server.partition.chain import LostSegment
from tailrace_server.replication import far_partitions
from tailrace_server.replication.catching_up import CatchUp
from tailrace_server.segment import SegmentDamaged

ROWS = numbered(0, 50)


@pytest.fixture
def set_options():
    return {"replication": COPY_ALWAYS}


@pytest.fixture(autouse=True)
def tried_often(monkeypatch):
    monkeypatch.setattr(far_partitions, "ANEW_SECONDS", 0.1)
    monkeypatch.setattr(far_partitions, "ANEW_SECONDS_MAX", 0.1)


def cut(path):
    os.truncate(path, 200)


def change(path):
    flip(path, 1_000)


async def filled(members, client, **options):
    """All members have ROWS in segments of their own, and one row more in their trees."""
    feed = await client.create_feed("orders", partitions=2, **options)
    await put(feed, ROWS)
    await members.level("orders")
    for member in members:
        await member.flush()
    await put(feed, numbered(50, 5))
    await members.level("orders")
    return feed


def damaged(member, damage, number=0):
    """Damages the first segment of a partition, and has the node know of it, as a check of the segments would."""
    partition = member.node.feeds.named("orders").partitions[number]
    path = partition.chain.segments[0].path
    damage(path)
    member.node.storage.found_damage(SegmentDamaged(path, 0, "a test has damaged it"))
    return partition


def unreadable(member):
    return member.node.status()["replication"]["unreadable"]


async def mended(member):
    await until(lambda: member.is_up and member.member.following is not None and not unreadable(member))


async def check(members, feed, rows):
    """All members have the rows, and go on."""
    await put(feed, numbered(100, 5))
    await members.level("orders")
    for member in members:
        assert member.rows("orders") == rows | numbered(100, 5)
        assert member.node.status()["healthy"]
        member.node.check()


@pytest.mark.parametrize("damage", [cut, change, os.remove])
async def test_a_follower_that_finds_damage_copies_the_partition_anew(members, copied, damage):
    async with members.client() as client:
        feed = await filled(members, client)
        following, high_seq = members[1].member.following, members[1].seqs("orders")[0]
        damaged(members[1], damage)
        assert unreadable(members[1])
        await mended(members[1])
        assert [(id, before) for id, before, _ in copied] == [(0, high_seq)]
        assert members[1].member.following is following, "the other streams go on"
        assert not members[1].member.local.file.now.owes, "at no moment a row was missing"
        await check(members, feed, ROWS | numbered(50, 5))
        [told] = members[1].node.status()["replication"]["begun_anew"]
        assert (told["feed"], told["partition"], told["why"]) == ("orders", 0, "damaged")


@pytest.mark.parametrize("damage", [cut, change, os.remove])
async def test_a_file_that_the_leader_has_too_is_replaced(members, copied, damage):
    """The third member has its segments from the leader: the good file has the name of the damaged one."""
    async with members.client() as client:
        feed = await filled(members, client)
        await members[2].stop()
        members[2].replace_disk()
        await members[2].start()
        await members.level("orders")
        await until(lambda: members[2].is_up and members[2].member.local.votes)
        copied.clear()
        partition = damaged(members[2], damage)
        path = partition.chain.segments[0].path
        await mended(members[2])
        assert partition.chain.segments[0].path == path
        await check(members, feed, ROWS | numbered(50, 5))
        await members[2].kill()
        await members[2].start()
        await members.level("orders")
        assert not unreadable(members[2])
        await check(members, feed, ROWS | numbered(50, 5))


@pytest.mark.parametrize("damage", [cut, os.remove])
async def test_damage_that_the_start_finds_is_mended_too(members, copied, damage):
    async with members.client() as client:
        feed = await filled(members, client)
        path = members[2].node.feeds.named("orders").partitions[0].chain.segments[0].path
        await members[2].stop()
        damage(path)
        await put(feed, numbered(60, 5))
        await members[2].start()
        await mended(members[2])
        await members.level("orders")
        chain = members[2].node.feeds.named("orders").partitions[0].chain
        assert not any(isinstance(segment, LostSegment) for segment in chain.segments)
        await check(members, feed, ROWS | numbered(50, 5) | numbered(60, 5))


async def test_a_partition_in_mode_segment_is_copied_anew(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        await put(feed, ROWS, "disk")
        await members[0].flush()
        await members.level("orders")
        damaged(members[1], cut)
        await mended(members[1])
        await put(feed, numbered(100, 5), "disk")
        await members[0].flush()
        await members.level("orders")
        assert members[1].rows("orders") == ROWS | numbered(100, 5)


async def test_the_list_of_feeds_is_copied_anew(members):
    async with members.client() as client:
        feed = await filled(members, client)
        [listed] = members[1].node.feeds.system.partitions
        await members[1].node.storage.flusher.flush_all(listed)
        path = listed.chain.segments[0].path
        cut(path)
        members[1].node.storage.found_damage(SegmentDamaged(path, 0, "a test has damaged it"))
        await mended(members[1])
        await client.create_feed("other", partitions=1)
        await members.level("other")
        await check(members, feed, ROWS | numbered(50, 5))


async def test_a_copy_that_the_leader_cannot_read_either_stays_and_is_tried_again(members, copied, monkeypatch):
    """Its rows are the set's only ones: a repair may still save most of them."""
    async with members.client() as client:
        feed = await filled(members, client)
        [leaders] = [p for p in members[0].node.feeds.named("orders").partitions if p.id == 0]
        change(leaders.chain.segments[0].path)
        partition = damaged(members[1], change)
        chain, begun, run = partition.chain, [], CatchUp.run

        async def counted(catch_up):
            begun.append(catch_up)
            await run(catch_up)

        monkeypatch.setattr(CatchUp, "run", counted)
        await until(lambda: len(begun) >= 2)
        assert partition.chain is chain
        assert unreadable(members[1])
        await put(feed, numbered(60, 5))  # the stream goes on between two tries
        await members.level("orders")
        change(leaders.chain.segments[0].path)  # it is good again
        await mended(members[1])
        assert [id for id, _, _ in copied] == [0]


async def test_a_kill_before_the_install_leaves_the_old_copy(members, held_parts, copied):
    async with members.client() as client:
        feed = await filled(members, client)
        partition = damaged(members[2], change)
        seq = partition.high_seq
        await held_parts.reached.wait()
        await put(feed, numbered(60, 5))  # by the other two
        await members[2].kill()
        held_parts.release()
        await members[2].start()
        assert members[2].seqs("orders")[0] >= seq
        await members.level("orders")
        damaged(members[2], lambda path: None)  # nothing had told the new start of it
        await mended(members[2])
        await check(members, feed, ROWS | numbered(50, 5) | numbered(60, 5))
