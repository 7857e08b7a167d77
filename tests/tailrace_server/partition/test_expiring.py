"""Keys expire: by the leader alone, in order, flagged, wherever their rows lie; and never a newer row of the key."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import Delete, Put
from tailrace.block import encode_block
from tailrace.block.header import EXPIRED
from tailrace.errors import BadBlock, Overloaded, TailraceError
from tailrace_server.host.disk import RealDisk
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.offline.backup import backup
from tailrace_server.offline.restore import restore
from tailrace_server.partition.validation import validate_block
from tailrace_server.partition.writing import append_block
from tailrace_server.replication import expirer

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _swift(monkeypatch):
    monkeypatch.setattr(expirer, "SWEEP_SECONDS", 0.05)


async def gone(feed, *keys):
    """Returns once these keys are."""
    while any(await feed.get_many(keys)):  # noqa: ASYNC110 - the node tells of it to streams only
        await trio.sleep(0.02)


async def mutations_of(feed):
    """All mutations of a feed, by key: None for an expiry, False for another deletion, otherwise the value."""
    found = {}
    async with feed.consume(until="now") as stream:
        async for event in stream:
            for row in event if isinstance(event, tailrace.Mutations) else ():
                assert not row.expired or row.deleted
                found.setdefault(row.key, []).append(None if row.expired else row.value or False)
    return found


async def test_keys_expire_that_were_written_in_any_way_and_others_stay(client):
    feed = await client.create_feed("sessions", partitions=2)
    await feed.put(b"put", b"1", ttl=1)
    await feed.write([Put(b"written", b"1", ttl=1), Put(b"written for good", b"1"), Delete(b"deleted")])
    async with feed.writer() as writer:
        await writer.put(b"by writer", b"1", ttl=1)
        await writer.put(b"by writer for good", b"1")
        await writer.write([Put(b"by write", b"1", ttl=1), Put(b"by write for long", b"1", ttl=1_000)])
    await gone(feed, b"put", b"written", b"by writer", b"by write")
    assert await mutations_of(feed) == {
        **{key: [b"1", None] for key in (b"put", b"written", b"by writer", b"by write")},
        **{key: [b"1"] for key in (b"written for good", b"by writer for good", b"by write for long")},
        b"deleted": [False],
    }


@pytest.mark.parametrize("flushes", [(), (1,), (2,), (1, 2)])
async def test_a_newer_row_of_a_key_is_not_deleted_by_the_ttl_of_the_one_before(node, client, flushes):
    feed = await client.create_feed("sessions", partitions=1)
    [partition] = node.feeds.named("sessions").partitions
    await feed.put(b"kept", b"old", ttl=1)
    await feed.put(b"deleted", b"old", ttl=1)
    if 1 in flushes:
        await node.storage.flusher.flush_all(partition)
    await feed.put(b"kept", b"new")
    await feed.delete(b"deleted")
    await feed.put(b"later", b"new", ttl=1)
    if 2 in flushes:
        await node.storage.flusher.flush_all(partition)
    await gone(feed, b"later")
    assert await mutations_of(feed) == {
        b"kept": [b"old", b"new"],
        b"deleted": [b"old", False],
        b"later": [b"new", None],
    }


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_many_keys_expire_also_if_the_node_starts_anew(running, run_node, is_flushed):
    async with tailrace.connect(running.url) as client:
        feed = await client.create_feed("sessions", partitions=1)
        await feed.write([Put(b"%d" % number, b"v" * 100, ttl=2) for number in range(3_000)])
        await feed.put(b"kept", b"1")
        if is_flushed:
            await running.node.storage.flusher.flush_all(*running.node.feeds.named("sessions").partitions)
        await running.stop()
        again = await run_node(running.config)
        await until(lambda: again.node.expirer.expired_rows >= 3_000)
        [partition] = again.node.feeds.named("sessions").partitions
        assert again.node.expirer.expired_rows == 3_000
        assert partition.high_seq == 6_001
        assert [item.key async for item in feed.items()] == [b"kept"]


async def test_a_restored_backup_goes_on(running, run_node, tmp_path):
    async with tailrace.connect(running.url) as client:
        feed = await client.create_feed("sessions", partitions=1, ttl_s=1_000)
        await feed.put(b"short", b"1", ttl=2)
        await feed.put(b"by the feed", b"1")
    await running.stop()
    disk, target, restored = RealDisk(), str(tmp_path / "backup"), str(tmp_path / "restored")
    backup(disk, running.config.data, target, 0)
    restore(disk, target, restored, SystemRandomness())
    again = await run_node(dataclasses.replace(running.config, data=restored, listen=("127.0.0.1", 0)))
    async with tailrace.connect(again.url) as client:
        feed = client.feed("sessions")
        await gone(feed, b"short")
        assert [info.ttl_s for info in await client.feeds()] == [1_000]
        assert await mutations_of(feed) == {b"short": [b"1", None], b"by the feed": [b"1"]}


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_the_ttl_of_a_feed_is_for_rows_that_name_none_also_for_earlier_ones(node, client, is_flushed):
    feed = await client.create_feed("sessions", partitions=1)
    await feed.put(b"a", b"1")
    await feed.put(b"long", b"1", ttl=1_000)
    if is_flushed:
        await node.storage.flusher.flush_all(*node.feeds.named("sessions").partitions)
    assert (await client.set_feed("sessions", ttl_s=1)).ttl_s == 1
    await gone(feed, b"a")
    await feed.put(b"b", b"1")
    await gone(feed, b"b")
    assert (await client.set_feed("sessions", ttl_s=float("inf"))).ttl_s is None
    await feed.put(b"c", b"1")
    await feed.put(b"d", b"1", ttl=1)
    await gone(feed, b"d")
    assert await mutations_of(feed) == {
        b"a": [b"1", None],
        b"long": [b"1"],
        b"b": [b"1", None],
        b"c": [b"1"],
        b"d": [b"1", None],
    }


async def test_a_feed_with_a_ttl_is_created_listed_and_compared(client):
    await client.create_feed("sessions", ttl_s=60)
    [info] = await client.feeds()
    assert info.ttl_s == 60
    await client.create_feed("sessions", ttl_s=60)
    with pytest.raises(tailrace.FeedExists, match="ttl_s 60"):
        await client.create_feed("sessions", ttl_s=61)
    for wrong in (0, 0.5, 315_360_001):
        with pytest.raises(TailraceError, match=r"ttl_s is .* from 1 to 315360000"):
            await client.set_feed("sessions", ttl_s=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 315_360_001, 1.5, True, float("nan")])
async def test_a_ttl_out_of_its_bounds_is_refused_and_nothing_is_written(client, wrong):
    feed = await client.create_feed("sessions", partitions=1)
    for write in (
        lambda: feed.put(b"a", b"1", ttl=wrong),
        lambda: feed.write([Put(b"a", b"1", ttl=wrong)]),
    ):
        with pytest.raises(ValueError, match=r"ttl is .* from 1 to 315360000"):
            await write()
    async with feed.writer() as writer:
        with pytest.raises(ValueError, match=r"ttl is .* from 1 to 315360000"):
            await writer.put(b"a", b"1", ttl=wrong)
    assert await mutations_of(feed) == {}


def test_a_producer_writes_no_expiries():
    block = encode_block([b"a", b"b"], [None, b"1"], partition=0, ttls=[EXPIRED, 60])
    with pytest.raises(BadBlock, match="must not have expiries"):
        validate_block(block, 0, 2**64 - 1)


async def test_a_stage_takes_no_ttls(feed):
    async def staged():
        async with feed.stage() as stage:
            await stage.put(b"a", b"1", ttl=60)
            await stage.seal()

    with pytest.raises(TailraceError, match="a stage takes no ttls"):
        await staged()


async def test_a_leader_that_takes_no_writes_deletes_nothing(node, client):
    feed = await client.create_feed("sessions", partitions=1)
    await feed.put(b"a", b"1", ttl=1)
    [partition] = node.feeds.named("sessions").partitions
    looks, delete = [], node.expirer._delete

    def counted(*arguments):
        looks.append(delete(*arguments))
        return looks[-1]

    node.expirer._delete = counted
    node.leaderships.system.pause_writes()
    await until(lambda: len(looks) > 2)
    assert partition.high_seq == 1
    node.leaderships.system.resume_writes()
    await gone(feed, b"a")
    assert looks[:2] == [False, False]


async def test_a_segment_for_which_no_descriptor_is_free_is_looked_at_again(node, client, monkeypatch):
    """The node goes on: its clients may have taken the descriptors."""
    monkeypatch.setattr(expirer, "UNREAD_US", 50_000)
    feed = await client.create_feed("sessions", partitions=1)
    [partition] = node.feeds.named("sessions").partitions
    await feed.put(b"k", b"v", ttl=1)
    await node.storage.flusher.flush_all(partition)
    look, failures = expirer.look, [Overloaded("no file descriptor is free")] * 2

    def failing(*arguments):
        if failures:
            raise failures.pop()
        return look(*arguments)

    monkeypatch.setattr(expirer, "look", failing)
    await gone(feed, b"k")
    assert not failures
    assert node.expirer.expired_rows == 1


async def test_a_row_that_is_written_between_look_and_deletion_stays(node, client, monkeypatch):
    """The check of a key and its deletion are one step."""
    feed = await client.create_feed("sessions", partitions=1)
    looked, goes_on = trio.Event(), trio.Event()
    in_thread = node.host.workers.in_thread

    async def slow(function):
        result = await in_thread(function)
        if type(result).__name__ == "Looked" and result.due:
            looked.set()
            await goes_on.wait()
        return result

    monkeypatch.setattr(node.host.workers, "in_thread", slow)
    await feed.put(b"again", b"old", ttl=1)
    await feed.put(b"gone", b"old", ttl=1)
    await looked.wait()
    await feed.put(b"again", b"new")
    goes_on.set()
    await gone(feed, b"gone")
    assert (await feed.get(b"again")).value == b"new"


@pytest.mark.parametrize("flushes", [(), (1,), (1, 2), (1, 2, 3)])
async def test_of_many_keys_only_those_expire_that_were_not_written_again(node, client, flushes):
    """Keys are written once, twice in one segment or queue, and again behind it."""
    feed = await client.create_feed("sessions", partitions=1)
    [partition] = node.feeds.named("sessions").partitions

    async def step(number):
        if number in flushes:
            await node.storage.flusher.flush_all(partition)

    await feed.write([Put(b"%d" % number, b"1", 2) for number in range(3_000)])
    await feed.write([Put(b"%d" % number, b"2") for number in range(0, 3_000, 10)])
    await step(1)
    await feed.write([Put(b"%d" % number, b"3") for number in range(1, 3_000, 10)])
    await feed.write([Delete(b"%d" % number) for number in range(2, 3_000, 10)])
    await step(2)
    await feed.write([Put(b"%d" % number, b"4") for number in range(3, 3_000, 10)])
    await step(3)
    await until(lambda: node.expirer.expired_rows >= 1_800)
    await gone(feed, b"2999")
    assert node.expirer.expired_rows == 1_800
    left = {item.key: item.value async for item in feed.items()}
    values = {0: b"2", 1: b"3", 3: b"4"}
    assert left == {b"%d" % number: values[number % 10] for number in range(3_000) if number % 10 in values}


async def test_a_row_with_a_wrong_hash_is_not_deleted_by_it(node, client):
    """Its key has a newer row under the right hash, or none: a compaction tells later."""
    feed = await client.create_feed("sessions", partitions=1)
    [partition] = node.feeds.named("sessions").partitions
    wrong = encode_block([b"a", b"b"], [b"old", b"old"], partition=0, hashes=[5, 6], ttls=[1, 1])
    append_block(partition, wrong, node.storage.journal, now_us=node.host.clock.wall_us(), now=0.0)
    node.expirer.note(partition)
    await feed.put(b"a", b"new")
    await feed.put(b"c", b"1", ttl=1)
    await gone(feed, b"c")
    assert (await feed.get(b"a")).value == b"new"
    assert node.expirer.expired_rows == 1


async def test_overdue_seconds_tell_how_late_keys_are(node, client):
    feed = await client.create_feed("sessions", partitions=1)
    assert node.expirer.overdue_s() == 0
    await feed.put(b"a", b"1", ttl=1)
    node.leaderships.system.pause_writes()
    await until(lambda: node.expirer.overdue_s() > 0.1)
    node.leaderships.system.resume_writes()
    await gone(feed, b"a")
    assert node.expirer.overdue_s() == 0


async def test_partitions_at_rest_are_left_alone_until_a_row_is_written_or_the_ttl_changes(node, client, monkeypatch):
    feed = await client.create_feed("sessions", partitions=4, ttl_s=1_000)
    covered, sweeps = [], [0]
    cover, to_tend = node.expirer._cover, node.expirer._to_tend

    async def count_cover(partition, state, turns):
        covered.append(partition.id)
        await cover(partition, state, turns)

    async def count_sweep(noted, turns):
        sweeps[0] += 1
        return await to_tend(noted, turns)

    monkeypatch.setattr(node.expirer, "_cover", count_cover)
    monkeypatch.setattr(node.expirer, "_to_tend", count_sweep)

    async def swept():
        begun = sweeps[0]
        await until(lambda: sweeps[0] > begun + 3)

    await swept()
    covered.clear()
    await swept()
    assert covered == []
    version = await feed.put(b"a", b"1")
    await swept()
    assert set(covered) == {version.partition}
    covered.clear()
    await swept()
    assert covered == []
    await client.set_feed("sessions", ttl_s=1)
    await gone(feed, b"a")


@pytest.mark.parametrize("ttl_s", [None, 1_000])
async def test_partitions_of_a_dropped_feed_are_forgotten_before_their_rows_are_due(node, client, ttl_s):
    feed = await client.create_feed("sessions", partitions=2, ttl_s=ttl_s)
    await feed.write([Put(b"%d" % number, b"1", 1_000) for number in range(10)])
    await until(lambda: len(node.expirer._expiring) == 2)
    await client.drop_feed("sessions")
    await until(lambda: not node.expirer._expiring)
