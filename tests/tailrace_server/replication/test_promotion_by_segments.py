"""A candidate that is far behind copies segments of the member that it fetches from, and leads with the same data."""

import os

import pytest
import trio
from tests.tailrace_server.replication.made_set import (
    COPY_ALWAYS,
    last_written,
    numbered,
    publish_one,
    put,
    resend_state,
    until,
)

from tailrace.errors import NoSpace, NotLeader, TailraceError
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.replication import catching_up, missing_rows
from tailrace_server.replication.segment_source import SegmentSource


@pytest.fixture
def set_options():
    return {"replication": COPY_ALWAYS}


async def flush(member):
    partitions = await member.flush()
    await member.node.storage.flusher.write_feeds()
    return partitions


async def behind(members, client, *, tail=5, **options):
    """The third member has the first 50 rows, the second all 250, of which it has flushed all but ``tail``.

    The leader is down, the third one is up again, and follows no leader.
    """
    feed = await client.create_feed("orders", **({"partitions": 1} | options))
    await put(feed, numbered(0, 50))
    await members.level("orders")
    await members[2].stop()
    await put(feed, numbered(50, 200 - tail))
    await members.level("orders")
    await flush(members[1])
    await put(feed, numbered(250 - tail, tail))
    await members.level("orders")
    await members[0].kill()
    await members[2].start()
    return feed


def histories(member):
    return [(p.high_seq, p.log[1:] if member.leads else p.log) for p in member.node.feeds.named("orders").partitions]


async def test_a_candidate_that_is_far_behind_copies_segments(members, copied):
    async with members.client() as client:
        feed = await behind(members, client, partitions=3)
        before = histories(members[1])
        await members[2].promote()
        assert members[2].leads
        assert sorted(id for id, _, _ in copied) == [0, 1, 2]
        assert members[2].rows("orders") == numbered(0, 250)
        assert histories(members[2]) == before
        await put(feed, numbered(250, 5))
        await members[0].start()
        await members.level("orders")
        for member in members:
            assert member.rows("orders") == numbered(0, 255)
            member.node.check()
        await members[2].kill()
        await members[2].start()
        await members.level("orders")
        assert members[2].rows("orders") == numbered(0, 255)


async def test_a_checkpoint_may_have_all_that_is_missing(members, copied):
    async with members.client() as client:
        await behind(members, client, tail=0)
        await members[2].promote()
        assert copied == [(0, 50, 250)]
        assert members[2].rows("orders") == numbered(0, 250)


async def test_producers_and_last_batches_come_with_the_segments(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        await members[2].stop()
        await put(feed, numbered(0, 20))
        [theirs] = members[1].node.feeds.named("orders").partitions
        await members.level("orders")
        written = last_written(theirs)
        await publish_one(feed)
        await members.level("orders")
        await flush(members[1])
        before = resend_state(theirs)
        assert before[1]
        await members[0].kill()
        await members[2].start()
        await members[2].promote()
        [ours] = members[2].node.feeds.named("orders").partitions
        assert copied
        assert resend_state(ours) == before
        assert written.is_known_to(ours), "the candidate knows the blocks whose rows it has by segments"


async def test_an_empty_member_that_is_promoted(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await put(feed, numbered(0, 250))
        await members.level("orders")
        await members[2].stop()
        members[2].replace_disk()
        for member in members[0], members[1]:
            await flush(member)
        await members[2].start()
        await members[2].promote()
        leader = await members.level("orders")
        assert leader is members[2]
        assert leader.rows("orders") == numbered(0, 250)
        assert sorted((id, before) for id, before, _ in copied) == [(0, 0), (1, 0)]


async def test_a_candidate_below_the_trim_of_its_peer_does_not_begin_at_0(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await put(feed, numbered(0, 10))
        await members.level("orders")
        await members[2].stop()
        for first in (100, 200):
            await put(feed, numbered(first, 10))
            await members.level("orders")
            [partition] = await flush(members[1])
        await members[1].node.storage.installer.drop_oldest(partition, 1)
        await members[0].kill()
        await members[2].start()
        await members[2].promote()
        assert copied == [(0, 10, 30)]
        assert members[2].rows("orders") == numbered(200, 10)
        assert not members[2].member.local.file.now.owes


async def test_a_feed_in_mode_segment(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        await put(feed, numbered(0, 50), "disk")
        await flush(members[0])
        await members.level("orders")
        await members[2].stop()
        for first in (50, 150):
            await put(feed, numbered(first, 100), "disk")
            await flush(members[0])
            await members.level("orders")
        await members[0].kill()
        await members[2].start()
        before = histories(members[1])
        await members[2].promote()
        assert copied == [(0, 50, 250)]
        assert members[2].rows("orders") == numbered(0, 250)
        assert histories(members[2]) == before
        ids = [
            [segment.identity.segment_id for segment in m.node.feeds.named("orders").partitions[0].chain.segments]
            for m in (members[1], members[2])
        ]
        assert ids[0] == ids[1], "the leader has nothing to push"
        await put(feed, numbered(250, 10), "disk")
        await flush(members[2])
        await members.level("orders")
        assert members[1].rows("orders") == numbered(0, 260)


async def test_the_peer_dies_while_it_is_copied_from(members, held_parts, copied):
    async with members.client() as client:
        await behind(members, client)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def promote():
                with pytest.raises(TailraceError):
                    await members[2].promote()

            await held_parts.reached.wait()
            await members[1].kill()
        assert not members[2].leads
        assert not copied
        assert members[2].rows("orders") == numbered(0, 50)
        held_parts.release()
        await members[1].start()
        await members[2].promote()
        assert members[2].rows("orders") == numbered(0, 250)
        assert copied


async def test_a_promise_to_another_member_ends_the_copy(members, held_parts, copied):
    async with members.client() as client:
        await behind(members, client)
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def promote():
                with pytest.raises(NotLeader, match="promised to another"):
                    await members[2].promote()

            await held_parts.reached.wait()
            await members[1].promote()
            assert members[2].seqs("orders") == [50]
            held_parts.release()
        assert not members[2].leads
        await until(lambda: members[2].member.following is not None)
        assert await members.level("orders") is members[1]
        assert members[2].rows("orders") == numbered(0, 250)


@pytest.mark.usefixtures("damaged_parts")
async def test_damaged_bytes_are_streamed_instead(members, copied):
    async with members.client() as client:
        await behind(members, client)
        await members[2].promote()
        assert members[2].rows("orders") == numbered(0, 250)
        assert not copied


async def test_a_partition_that_its_peer_cannot_read(members, copied):
    """The next best copy is chosen, and the loss is told, as with a stream."""
    async with members.client() as client:
        await behind(members, client, partitions=2)
        damaged, sound = members[1].node.feeds.named("orders").partitions
        os.truncate(damaged.chain.segments[-1].path, 100)
        with pytest.raises(NotLeader, match="cannot read it"):
            await members[2].promote()
        await members[2].promote(force=True)
        assert [id for id, _, _ in copied] == [sound.id]
        seqs = members[2].seqs("orders")
        assert seqs[sound.id] == sound.high_seq
        assert seqs[damaged.id] < damaged.high_seq


async def test_a_member_from_which_nothing_comes_counts_as_one_that_cannot_read_its_copy(
    members, monkeypatch, held_parts, copied
):
    monkeypatch.setattr(missing_rows, "STALLED_SECONDS", 0.05)
    async with members.client() as client:
        await behind(members, client)
        with pytest.raises(NotLeader, match=rf"{members[1].address} has it up to seq .*nothing has come from it for"):
            await members[2].promote()
        assert not members[2].leads
        assert not copied
        held_parts.release()
        monkeypatch.setattr(missing_rows, "STALLED_SECONDS", 3_600.0)
        await members[2].promote()
        assert members[2].rows("orders") == numbered(0, 250)


async def test_a_peer_that_follows_a_later_leader_is_not_copied(members, monkeypatch, copied):
    """Its rows of a later term must not come below a branch of the candidate's term."""
    async with members.client() as client:
        await behind(members, client)
        ask = SegmentSource.checkpoint

        async def later(source, request):
            told = await ask(source, request)
            entry = told.log[0]
            newest = FailoverEntry(b"l" * 16, entry.term + 100, told.seq)
            return told._replace(log=FailoverLog([newest, *told.log]))

        monkeypatch.setattr(SegmentSource, "checkpoint", later)
        await members[2].promote()
        assert not copied
        [partition] = members[2].node.feeds.named("orders").partitions
        assert partition.log.term == members[2].node.leaderships.system.term
        assert members[2].rows("orders") == numbered(0, 250)


async def test_a_disk_that_refuses_the_manifest_ends_the_promotion_by_name(members, monkeypatch):
    """A manifest that may be of another chain has to be written before rows come."""
    async with members.client() as client:
        await behind(members, client)
        installer, settle = members[2].node.storage.installer, members[2].node.storage.installer.settle

        async def refuse(storage, partition, received):
            installer._unsure.add(partition)
            raise OSError("the disk has refused twice")

        async def fail(partition):
            if partition in installer._unsure:
                raise NoSpace("the disk is full")
            await settle(partition)

        with monkeypatch.context() as full:
            full.setattr(catching_up, "install_received_chain", refuse)
            full.setattr(installer, "settle", fail)
            with pytest.raises(NoSpace, match="the disk is full"):
                await members[2].promote()
        assert not members[2].leads
        assert members[2].rows("orders") == numbered(0, 50)
        await members[2].promote()
        assert members[2].rows("orders") == numbered(0, 250)
