"""A follower that falls far behind on its open stream gives it up, copies segments, and streams again."""

import dataclasses
import functools

import pytest
from tests.tailrace_server.replication import made_set
from tests.tailrace_server.replication.made_set import REPLICATION, until

from tailrace.model import EndReason
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.replication import lagging_partitions, pulled_node
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.upkeep.received_files import PartitionFiles

BYTES_MIN = 20_000
WINDOW_BYTES = 16_384


@pytest.fixture
def set_options(monkeypatch):
    monkeypatch.setattr(lagging_partitions, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(pulled_node, "WINDOW_BYTES", WINDOW_BYTES)
    return {"replication": dataclasses.replace(REPLICATION, catch_up_bytes_min=BYTES_MIN)}


@pytest.fixture
def slow_disk(members, hold_rows):
    """The rows of orders that the third member takes."""
    return hold_rows(members[2])


def numbered(first, count, nbytes=100):
    return {b"%d" % number: b"%d" % number * (nbytes // 4) for number in range(first, first + count)}


put = functools.partial(made_set.put, batch_rows=20)


async def behind(members, feed, rows):
    """The other two have ``rows``, most of them in segments, when the third member goes on."""
    half = len(rows) // 2
    await put(feed, dict(list(rows.items())[:half]))
    await members[0].flush()
    await put(feed, dict(list(rows.items())[half:-20]))
    await members[0].flush()
    await put(feed, dict(list(rows.items())[-20:]))


async def check_level(members, rows):
    await members.level("orders")
    for member in members:
        assert member.rows("orders") == rows
        member.node.check()


async def test_a_member_with_a_slow_disk_switches_to_segments_and_back(members, slow_disk, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        following = members[2].member.following
        rows = numbered(0, 4_000)
        await behind(members, feed, rows)
        assert members[2].seqs("orders") == [0]
        slow_disk.release()
        await check_level(members, rows)
        assert members[2].member.following is following, "the other partitions' streams went on"
        [(number, before, after)] = copied
        assert number == 0
        assert before < after, "how far the stream had come when the copy began depends on the machine"
        assert after > 2_000
        await put(feed, numbered(4_000, 100))  # by stream again
        await members[1].stop()
        await put(feed, numbered(5_000, 100))  # the third member's acknowledgements count
        assert members[2].rows("orders") == rows | numbered(4_000, 100) | numbered(5_000, 100)
        assert len(copied) == 1


async def test_a_member_that_is_a_little_behind_stays_on_its_stream(members, slow_disk, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        rows = numbered(0, 300)  # fewer bytes than it takes
        await behind(members, feed, rows)
        slow_disk.release()
        await check_level(members, rows)
        assert not copied


async def test_a_burst_that_is_a_small_share_of_the_partition_is_streamed(members, hold_rows, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        rows = numbered(0, 6_000)
        await put(feed, rows)
        await members.level("orders")
        await members[0].flush()
        burst, held = numbered(10_000, 600, 200), hold_rows(members[2])
        await behind(members, feed, burst)
        held.release()
        await check_level(members, rows | burst)
        assert not copied


async def test_other_partitions_are_acknowledged_while_one_is_copied(members, slow_disk, held_parts, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        rows = {key: value for key, value in numbered(0, 8_000).items() if partition_of_hash(key_hash(key), 2) == 0}
        await behind(members, feed, rows)
        slow_disk.release()
        await held_parts.reached.wait()
        await members[1].stop()
        others = {key: value for key, value in numbered(9_000, 50).items() if partition_of_hash(key_hash(key), 2) == 1}
        await put(feed, others)
        assert not copied
        held_parts.release()
        await members[1].start()
        await check_level(members, rows | others)
        assert [number for number, _, _ in copied] == [0]


async def test_a_change_of_leader_ends_the_copy(members, slow_disk, held_parts, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        rows = numbered(0, 4_000)
        await behind(members, feed, rows)
        slow_disk.release()
        await held_parts.reached.wait()
        await members[1].promote()
        assert not copied
        held_parts.release()
        await check_level(members, rows)


async def test_a_copy_that_fails_goes_on_by_stream(members, slow_disk, monkeypatch, copied):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await members.level("orders")
        following = members[2].member.following
        rows, tries = numbered(0, 4_000), []

        async def refuse(files, received):
            tries.append(received)
            raise OSError("the disk has refused")

        monkeypatch.setattr(PartitionFiles, "store_parts", refuse)
        await behind(members, feed, rows)
        slow_disk.release()
        await check_level(members, rows)
        assert members[2].member.following is following
        assert not copied
        assert 1 <= len(tries) <= 6, "each try takes twice as many bytes of the stream as the one before"


async def test_a_stream_that_ends_below_a_trim_is_followed_by_a_copy(members, monkeypatch, hold_rows, copied):
    """It does not begin at 0, and owes nothing."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await put(feed, numbered(0, 1_000))
        await members.level("orders")
        failed, stream_failed = [], ReplicaPuller._stream_failed

        async def note(puller, stream, event):
            failed.append(event.reason)
            await stream_failed(puller, stream, event)

        monkeypatch.setattr(ReplicaPuller, "_stream_failed", note)
        held = hold_rows(members[2])
        [partition] = members[0].node.feeds.named("orders").partitions
        rows = numbered(2_000, 2_000)
        await put(feed, rows)
        await members[0].flush()
        later = numbered(5_000, 500)
        await put(feed, later)
        await members[0].flush()
        count = len(partition.chain.segments) - 1
        await members[0].node.storage.installer.drop_oldest(partition, count)
        held.release()
        await until(lambda: members[2].seqs("orders") == members[0].seqs("orders"))
        assert failed == [EndReason.TRIMMED]
        assert copied
        assert not members[2].member.local.file.now.owes
        assert members[2].rows("orders").items() >= later.items()
