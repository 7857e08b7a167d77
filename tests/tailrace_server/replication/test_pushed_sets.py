"""Sets of three nodes with feeds in replication mode ``segment``: pushed, compacted, killed, promoted, handed over."""

import contextlib
import dataclasses
import os

import pytest
import trio
from tests.tailrace_server.replication.made_set import REPLICATION, numbered, until

import tailrace
from tailrace.errors import Forbidden
from tailrace.wire.push_messages import SegmentAccept
from tailrace_server.config import StorageConfig
from tailrace_server.replication.pushed_segments import PushedSegments

pytestmark = pytest.mark.slow

STORAGE = StorageConfig(pushed_age_s=0.05)


async def put(feed, rows, level="disk"):
    for key, value in rows.items():
        await feed.put(key, value, level=level)


def segment_ids(node, feed):
    """The ids of the segments of each partition."""
    partitions = node.node.feeds.named(feed).partitions
    return [[segment.identity.segment_id for segment in partition.chain.segments] for partition in partitions]


def tree_rows(node, feed):
    return sum(p.high_seq - p.flushed_seq for p in node.node.feeds.named(feed).partitions)


async def same_segments(made, feed):
    """All nodes that are up have the leader's segments, and nothing else."""
    leader = await made.settled()

    def are_same():
        up = [node for node in made if node.is_up]
        return all(
            node.seqs(feed) == leader.seqs(feed)
            and not tree_rows(node, feed)
            and segment_ids(node, feed) == segment_ids(leader, feed)
            for node in up
        )

    await until(are_same)
    return leader


def taken_by(monkeypatch, made_node):
    """The offers that a node accepts from now on, as a list that grows."""
    taken = []
    offered = PushedSegments.offered

    async def noted(self, partition, offer, leaders_log):
        answer = await offered(self, partition, offer, leaders_log)
        if isinstance(answer, SegmentAccept) and self._node is made_node.node.services:
            taken.append(offer)
        return answer

    monkeypatch.setattr(PushedSegments, "offered", noted)
    return taken


@pytest.fixture
def new_pushed_set(new_set):
    """A function that makes a set whose nodes flush pushed feeds soon."""

    def make(**changes):
        return new_set(storage=STORAGE, **changes)

    return make


async def test_followers_get_the_leaders_segments(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    await made.settled()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=3, replication="segment")
        rows = numbered(0, 100)
        await put(feed, rows)
        await same_segments(made, "orders")
        await put(feed, numbered(50, 100))
        await same_segments(made, "orders")
        assert [info.replication for info in await client.feeds()] == ["segment"]
    for node in made:
        assert node.rows("orders") == numbered(0, 150)


async def put_until_compacted(made, feed, first):
    """Puts rows until the leader has compacted segments; gives the rows."""
    leader = await made.settled()
    before, rows = leader.node.storage.compactor.statistics().compactions, {}
    while leader.node.storage.compactor.statistics().compactions == before:
        more = numbered(first + len(rows) // 2, 4)  # half of them again
        await put(feed, more)
        rows |= more
        await same_segments(made, "orders")
    return rows


@contextlib.asynccontextmanager
async def compacted_feed(made):
    """Starts a set with a pushed feed of one partition, whose leader has compacted; yields the feed and its rows."""
    await made.start()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        yield feed, await put_until_compacted(made, feed, 0)


@pytest.mark.long
async def test_compacted_segments_take_the_place_of_their_inputs(new_pushed_set):
    made = new_pushed_set()
    async with compacted_feed(made) as (feed, rows):
        leader = await same_segments(made, "orders")
        rows |= numbered(1_000, 3)
        await put(feed, numbered(1_000, 3))
        await same_segments(made, "orders")
    for node in made:
        assert node.rows("orders") == rows
        node.node.check()
        assert node is leader or not node.node.storage.compactor.statistics().compactions


@pytest.mark.long
async def test_a_member_that_joins_begins_with_the_most_recent_major_segment(new_pushed_set, monkeypatch):
    made = new_pushed_set()
    async with compacted_feed(made) as (feed, rows):
        leader = await same_segments(made, "orders")
        joiner = next(node for node in made if node is not leader)
        await joiner.kill()
        joiner.replace_disk()
        rows |= await put_until_compacted(made, feed, 1_000)
        taken = taken_by(monkeypatch, joiner)
        await joiner.start()
        await until(lambda: joiner.member.local.votes)
        await same_segments(made, "orders")
    assert joiner.rows("orders") == leader.rows("orders") == rows
    assert taken[0].is_major
    assert [one.id for one in taken] == segment_ids(leader, "orders")[0]


async def test_a_failover_loses_what_was_not_flushed_and_the_old_leader_rolls_it_back(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=2, replication="segment")
        await put(feed, numbered(0, 30))
        old = await same_segments(made, "orders")
        for node in made:
            if node is not old:
                await node.kill()
        async with tailrace.connect(old.url, retry_for=60) as alone:
            await put(alone.feed("orders"), numbered(100, 10))
        await until(lambda: not tree_rows(old, "orders"))  # its segment reaches above what the others have
        await old.kill()
        others = [node for node in made if node is not old]
        for node in others:
            await node.start()
        await others[0].promote()
        await put(feed, numbered(200, 10))
        await old.start()
        await same_segments(made, "orders")
    for node in made:
        assert node.rows("orders") == numbered(0, 30) | numbered(200, 10)


async def test_a_handover_flushes_and_ships_first(new_set):
    made = new_set(storage=StorageConfig(pushed_age_s=3_600.0))
    await made.start()
    old = await made.settled()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=2, replication="segment")
        await put(feed, numbered(0, 30))
        assert tree_rows(old, "orders")
        to = next(node for node in made if node is not old)
        await old.hand_over(to)
        assert await made.settled() is to
        await put(feed, numbered(30, 5))
        assert (await feed.get(b"3")) is not None
    assert to.rows("orders") == numbered(0, 35)


async def put_on(feed, lane, written, ended):
    """Puts rows without a pause until ``ended``."""
    number = 0
    while not ended.is_set():
        key = b"%d-%d" % (lane, number)
        await feed.put(key, b"v")
        written[key] = b"v"
        number += 1


async def test_a_handover_beside_writers_that_never_pause_loses_nothing(new_set):
    made = new_set(
        storage=StorageConfig(pushed_age_s=3_600.0), replication=dataclasses.replace(REPLICATION, step_timeout_s=5.0)
    )
    await made.start()
    await made.settled()
    written, ended = {}, trio.Event()
    async with made.client() as client, trio.open_nursery() as nursery:
        feed = await client.create_feed("orders", partitions=4, replication="segment")
        for lane in range(8):
            nursery.start_soon(put_on, feed, lane, written, ended)
        for _ in range(3):
            old = await made.settled()
            await until(lambda old=old: tree_rows(old, "orders") >= 50)
            to = next(node for node in made if node is not old)
            await old.hand_over(to)
            assert await made.settled() is to
        ended.set()
    assert to.rows("orders") == written
    assert not old.node.storage.compactor._holds


async def test_no_pushed_partition_is_compacted_while_a_handover_ships(new_set):
    """The successor would get all rows of the result before the newest ones."""
    made = new_set(storage=StorageConfig(pushed_age_s=3_600.0))
    await made.start()
    leader = await made.settled()
    compactor = leader.node.storage.compactor
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        [partition] = leader.node.feeds.named("orders").partitions
        with compactor.holding_pushed():
            for first in range(12):
                await put(feed, numbered(first, 2))
                await leader.node.storage.flusher.flush_all(partition)
            await until(lambda: partition in compactor._held)
            assert len(partition.chain.segments) == 12
        await until(lambda: len(partition.chain.segments) < 12)


async def test_a_live_feed_is_switched_there_and_back(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    async with made.client() as client:
        feed = await made.filled(client, numbered(0, 40), partitions=2)
        for number, mode in enumerate(("segment", "stream", "segment", "stream")):
            info = await client.set_feed("orders", replication=mode)
            assert info.replication == mode
            await put(feed, numbered(100 * number + 100, 10))
            if mode == "segment":
                leader = await same_segments(made, "orders")
            else:
                leader = await made.level("orders")
                await feed.put(b"q", b"q", level="quorum")
        await leader.kill()
        other = next(node for node in made if node is not leader)
        await other.promote()
        await leader.start()
        await made.level("orders")
        assert {info.replication for info in await client.feeds()} == {"stream"}
    rows = numbered(0, 40) | {b"q": b"q"}
    for number in range(4):
        rows |= numbered(100 * number + 100, 10)
    for node in made:
        assert node.rows("orders") == rows


async def test_the_mode_outlives_restarts(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    async with made.client() as client:
        feed = await made.filled(client, numbered(0, 10))
        await client.set_feed("orders", replication="segment")
        await put(feed, numbered(10, 10))
        await same_segments(made, "orders")
        for node in made:
            await node.stop()
        for node in made:
            await node.start()
        await put(feed, numbered(20, 10))
        await same_segments(made, "orders")
        for node in made:
            assert node.node.feeds.named("orders").info.replication == "segment"
            assert node.rows("orders") == numbered(0, 30)


async def stage_one(feed):
    async with feed.stage() as stage:
        await stage.put(b"k", b"v")
        await stage.seal()


async def test_level_quorum_is_refused_by_name(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        with pytest.raises(Forbidden, match=r"replication mode segment.*level quorum is refused.*tailrace feed set"):
            await feed.put(b"k", b"v", level="quorum")
        with pytest.raises(Forbidden, match="level quorum is refused"):
            await feed.get(b"k", level="quorum")
        with pytest.raises(Forbidden, match="level quorum is refused"):
            async with feed.consume(visibility="quorum") as stream:
                await anext(stream)
        with pytest.raises(Forbidden, match="level quorum is refused"):
            await stage_one(feed)
        await feed.put(b"k", b"v")
        assert (await feed.get(b"k")).value == b"v"


async def test_a_follower_inside_of_the_leaders_segment_merges_it(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    async with made.client() as client:
        feed = await made.filled(client, numbered(0, 5))
        leader = await made.settled()
        [partition] = leader.node.feeds.named("orders").partitions
        await leader.node.storage.flusher.flush_all(partition)
        await put(feed, numbered(5, 5), level="quorum")
        await made.level("orders")
        away = next(node for node in made if node is not leader)
        await away.kill()
        await put(feed, numbered(8, 7))
        await leader.node.storage.flusher.flush_all(partition)
        assert len(partition.chain.segments) == 2
        await client.set_feed("orders", replication="segment")
        await away.start()
        await until(lambda: away.seqs("orders") == leader.seqs("orders"))
        [merged] = away.node.feeds.named("orders").partitions
        newest = merged.chain.segments[-1].identity
        assert newest.after_seq == 10
        assert newest.included_ids == (partition.chain.segments[-1].identity.segment_id,)
        await put(feed, numbered(20, 3))
        await until(lambda: away.seqs("orders") == leader.seqs("orders"))
        assert merged.chain.segments[-1].identity == partition.chain.segments[-1].identity
        merged.check()
    assert away.rows("orders") == leader.rows("orders") == numbered(0, 15) | numbered(20, 3)


async def test_a_consumer_on_a_follower_sees_installed_segments_only(new_set):
    made = new_set(storage=StorageConfig(pushed_age_s=3_600.0))
    await made.start()
    leader = await made.settled()
    follower = next(node for node in made if node is not leader)
    async with made.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication="segment")
        [partition] = leader.node.feeds.named("orders").partitions
        for first in (0, 10):
            await put(feed, numbered(first, 10))
            await leader.node.storage.flusher.flush_all(partition)
        await put(feed, numbered(20, 10))
        await until(lambda: follower.seqs("orders") == [20])
    async with tailrace.connect(follower.url, state="follower", retry_for=60) as reader:
        feed = reader.feed("orders")
        async with feed.consume(until="now") as stream:
            seen = [key async for event in stream if isinstance(event, tailrace.Mutations) for key in event.keys()]  # noqa: SIM118
        assert seen == list(numbered(0, 20))
        assert await feed.get(b"25") is None


async def test_a_history_that_is_trimmed_is_pushed_from_its_first_segment_on(new_pushed_set):
    made = new_pushed_set()
    await made.start()
    leader = await made.settled()
    away = next(node for node in made if node is not leader)
    async with made.client() as client:
        feed = await client.create_feed(
            "orders", partitions=1, retention="history", history_bytes=100_000, replication="segment"
        )
        await put(feed, numbered(0, 5))
        await same_segments(made, "orders")
        await away.kill()
        [partition] = leader.node.feeds.named("orders").partitions
        number = 0
        while not partition.trim_seq:
            await feed.put(b"%d" % number, os.urandom(20_000))
            await leader.node.storage.flusher.flush_all(partition)
            leader.node.storage.compactor.consider(partition)
            number += 1
            await trio.sleep(0.01)
        await put(feed, numbered(0, 5))
        await away.start()
        await until(lambda: away.seqs("orders") == leader.seqs("orders"))
        [copy] = away.node.feeds.named("orders").partitions
        await until(lambda: copy.trim_seq >= partition.trim_seq > 0)
        copy.check()
    assert copy.chain.segments[0].identity.after_seq == copy.trim_seq
