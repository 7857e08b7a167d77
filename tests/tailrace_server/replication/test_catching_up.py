"""A member that is far behind copies its leader's segments, and goes on by stream."""

import pytest
import trio
from tests.segment_fixtures import flip
from tests.tailrace_server.replication.made_set import (
    COPY_ALWAYS,
    last_written,
    numbered,
    publish_one,
    put,
    resend_state,
    until,
)

from tailrace.errors import UnknownCheckpoint
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.manifest import ManifestStore
from tailrace_server.replication import catching_up
from tailrace_server.upkeep import received_files
from tailrace_server.upkeep.received_files import PartitionFiles


@pytest.fixture
def set_options():
    return {"replication": COPY_ALWAYS}


async def away(members, client, partitions=1, **options):
    """A feed of which the third member has the first rows only; the leader has flushed all but the last ones."""
    feed = await client.create_feed("orders", partitions=partitions, **options)
    await put(feed, numbered(0, 50))
    await members.level("orders")
    await members[2].stop()
    await put(feed, numbered(50, 200))
    await members[0].flush()
    await put(feed, numbered(250, 5))
    return feed


def check_level(members):
    rows = members.leader.rows("orders")
    for member in members:
        if member.is_up:
            assert member.rows("orders") == rows
            member.node.check()
    return rows


async def test_an_empty_member_copies_segments_and_gets_its_vote(members, copied):
    async with members.client() as client:
        feed = await away(members, client, partitions=3)
        members[2].replace_disk()
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert sorted(id for id, _, _ in copied) == [0, 1, 2]
        for ours, theirs in zip(
            *(m.node.feeds.named("orders").partitions for m in (members[2], members[0])), strict=True
        ):
            ids = [[s.identity.segment_id for s in p.chain.segments] for p in (ours, theirs)]
            assert ids[0] == ids[1]
        await until(lambda: members[2].is_up and members[2].member.local.file.now.votes)
        await members[1].stop()  # the member that has caught up counts for the majority
        await put(feed, numbered(300, 10))
        assert members[2].rows("orders") == numbered(0, 255) | numbered(300, 10)


async def test_a_member_that_was_away_copies_segments(members, copied):
    async with members.client() as client:
        await away(members, client)
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert [before for _, before, _ in copied] == [50]
        assert not members[2].node.status()["replication"]["begun_anew"]
        await members[2].kill()
        await members[2].start()
        await members.level("orders")
        check_level(members)
        assert len(copied) == 1, "after a restart nothing is missing"


async def test_a_dead_tail_is_rolled_back_first(members, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await put(feed, numbered(0, 50))
        await members.level("orders")
        old = await members.settled()
        others = [member for member in members if member is not old]
        for member in others:
            await member.stop()
        async with members.client() as alone:
            await put(alone.feed("orders"), {b"tail": b"lost"}, "disk")
        await old.kill()
        for member in others:
            await member.start()
        await others[0].promote()
        leader = await members.settled()
        await put(feed, numbered(50, 100))
        await leader.flush()
        await old.start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 150)
        assert (0, 50, 150) in copied


async def test_a_member_below_a_trim_does_not_go_back_to_0(members, copied):
    """So it owes nothing: it has all that it acknowledged at each moment."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await put(feed, numbered(0, 10))
        await members.level("orders")
        await members[2].stop()
        await put(feed, numbered(100, 10))
        [partition] = await members[0].flush()
        await put(feed, numbered(200, 10))
        await members[0].flush()
        await members[0].node.storage.installer.drop_oldest(partition, 1)
        await members[2].start()
        await members.level("orders")
        assert copied == [(0, 10, 30)]
        assert members[2].rows("orders") == numbered(200, 10)
        assert not members[2].member.local.file.now.owes
        [copy] = members[2].node.feeds.named("orders").partitions
        assert copy.trim_seq == partition.trim_seq
        [told] = members[2].node.status()["replication"]["begun_anew"]
        assert (told["stood_at"], told["kept_from"], told["why"]) == (10, 21, "trimmed")


async def test_what_a_resend_is_known_by_comes_with_the_segments(members, copied):
    async with members.client() as client:
        feed = await away(members, client)
        await publish_one(feed)
        await members[0].flush()
        await members[2].start()
        await members.level("orders")
        assert copied
        [ours], [theirs] = (m.node.feeds.named("orders").partitions for m in (members[2], members[0]))
        assert resend_state(ours) == resend_state(theirs)


async def test_other_partitions_stream_meanwhile(members, held_parts, copied):
    """A member that copies one partition for long acknowledges the others all the same."""
    async with members.client() as client:
        await away(members, client)
        near = await client.create_feed("near", partitions=1)
        await members[2].start()
        await until(lambda: members[2].member.following is not None)
        await members[1].stop()
        await put(near, numbered(0, 5))  # at level quorum: the third member is needed
        held_parts.release()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert copied


async def test_a_checkpoint_that_expires_is_asked_for_again_and_files_stay(members, monkeypatch, copied):
    async with members.client() as client:
        await away(members, client)
        [partition] = members[0].node.feeds.named("orders").partitions
        monkeypatch.setattr(catching_up, "WINDOW_BYTES_FIRST", 4_096)
        monkeypatch.setattr(catching_up, "next_window", lambda window_bytes, seconds: 4_096)
        checkpoints, received, store = members[0].node.storage.checkpoints, 0, PartitionFiles.store_parts

        async def note(files, parts):
            nonlocal received
            if received == 0:
                for kept in list(checkpoints._kept):
                    checkpoints.release(kept)
            received += sum(len(data) for _, data in parts)
            await store(files, parts)

        monkeypatch.setattr(PartitionFiles, "store_parts", note)
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert copied
        assert received == partition.chain.nbytes > 8_192, "bytes that were here came again"


async def test_a_leader_that_keeps_no_checkpoint_is_streamed_from(members, monkeypatch, copied):
    async with members.client() as client:
        await away(members, client)

        async def refuse(*_, **__):
            raise UnknownCheckpoint("it is gone")

        monkeypatch.setattr(members[0].node.storage.checkpoints, "take", refuse)
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert not copied


@pytest.mark.usefixtures("damaged_parts")
async def test_damaged_bytes_are_not_installed(members, copied):
    async with members.client() as client:
        await away(members, client)
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert not copied


async def test_a_change_of_leader_in_between_leaves_the_old_state(members, held_parts):
    async with members.client() as client:
        feed = await away(members, client)
        await members[2].start()
        await held_parts.reached.wait()
        [partition] = members[2].node.feeds.named("orders").partitions
        await members[1].promote()
        assert partition.high_seq == 50
        held_parts.release()
        await put(feed, numbered(300, 10))
        await members.level("orders")
        assert check_level(members) == numbered(0, 255) | numbered(300, 10)


async def test_files_that_are_not_used_are_removed(members, monkeypatch):
    async with members.client() as client:
        await away(members, client)

        async def refuse(files, received):
            await PartitionFiles_store(files, received)
            raise OSError("the follower has found another way")

        PartitionFiles_store = PartitionFiles.store_parts
        monkeypatch.setattr(PartitionFiles, "store_parts", refuse)
        await members[2].start()
        await members.level("orders")
        check_level(members)
        monkeypatch.setattr(received_files, "UNUSED_SECONDS", 0.0)
        storage = members[2].node.storage
        [partition] = members[2].node.feeds.named("orders").partitions
        directory = storage.store.partition_directory(partition.feed_id, partition.id)
        await storage.received.expire()
        named = {segment.path.rpartition("/")[2] for segment in partition.chain.segments}
        assert {name for name in storage.host.disk.names(directory) if ".seg" in name} == named


async def test_a_resend_after_the_catch_up_is_written_once(members, copied):
    """The member that has caught up leads: it knows the blocks whose rows it has by segments."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        await members[2].stop()
        await put(feed, numbered(0, 20))
        [partition] = members[0].node.feeds.named("orders").partitions
        written = last_written(partition)
        await members[0].flush()
        await members[2].start()
        await members.level("orders")
        assert copied
        await members[2].promote()
        await members.settled()
        [copy] = members[2].node.feeds.named("orders").partitions
        assert written.is_known_to(copy)


async def test_files_that_were_installed_stay_if_the_following_ends_right_after(members, monkeypatch):
    """Nothing is left to be removed later: the chain has the files."""
    async with members.client() as client:
        await away(members, client)
        install, installed = catching_up.install_received_chain, trio.Event()

        async def end(storage, partition, received):
            await install(storage, partition, received)
            if not installed.is_set():
                installed.set()
                members[2].member.following.stop()

        monkeypatch.setattr(catching_up, "install_received_chain", end)
        await members[2].start()
        await installed.wait()
        await members.level("orders")
        storage = members[2].node.storage
        [partition] = members[2].node.feeds.named("orders").partitions
        monkeypatch.setattr(received_files, "UNUSED_SECONDS", 0.0)
        await storage.received.expire()
        assert all(storage.host.disk.exists(segment.path) for segment in partition.chain.segments)
        check_level(members)


async def test_a_manifest_that_may_name_another_chain_is_written_before_rows_come(members, monkeypatch):
    """After a crash it would hide the rows that were journaled below its last seq."""
    async with members.client() as client:
        await away(members, client)

        async def refuse(storage, partition, received):
            storage.installer._unsure.add(partition)
            raise OSError("the disk has refused twice")

        monkeypatch.setattr(catching_up, "install_received_chain", refuse)
        await members[2].start()
        await members.level("orders")
        [partition] = members[2].node.feeds.named("orders").partitions
        assert partition not in members[2].node.storage.installer._unsure
        members[2].node.storage.installer._unsure.add(partition)
        await members[2].promote()
        assert partition not in members[2].node.storage.installer._unsure
        assert check_level(members) == numbered(0, 255)


async def test_files_that_the_manifest_on_disk_may_name_stay(members, monkeypatch):
    """The disk takes a manifest, and then refuses for long. After a crash the start needs the segments in it."""
    async with members.client() as client:
        await away(members, client)
        write, refused = ManifestStore.write, []

        def refuse(store, manifest):
            if store is not members[2].node.storage.store or manifest.feed_id == SYSTEM_FEED_ID:
                write(store, manifest)
                return
            if manifest.flushed_seq == 250 and not refused:
                write(store, manifest)  # it has its name, and nobody knows whether that is durable
                refused.append(manifest)
            if refused:
                raise OSError("the disk refuses")
            write(store, manifest)

        with monkeypatch.context() as full:
            full.setattr(ManifestStore, "write", refuse)
            await members[2].start()
            await until(lambda: refused)
            storage = members[2].node.storage
            [partition] = members[2].node.feeds.named("orders").partitions
            await until(lambda: partition in storage.installer._unsure)
            await until(lambda: not storage.received.of(partition).in_use)
            full.setattr(received_files, "UNUSED_SECONDS", 0.0)
            await storage.received.expire()
            await members[2].kill()
        await members[2].start()
        await members.level("orders")
        assert members[2].node.feeds.named("orders").partitions[0].damage is None
        assert check_level(members) == numbered(0, 255)


async def test_the_leader_finds_its_damaged_segment_when_a_member_cannot_copy_it(members, copied):
    """The key table is damaged: the rows come by stream, and the leader would not have noticed."""
    async with members.client() as client:
        await away(members, client)
        [partition] = members[0].node.feeds.named("orders").partitions
        segment = partition.chain.segments[-1]
        flip(segment.path, int(segment._places[-1]))
        await members[2].start()
        await members.level("orders")
        assert check_level(members) == numbered(0, 255)
        assert not copied
        await until(lambda: members[0].node.storage.damages)
        assert list(members[0].node.storage.damages) == [segment.path]
