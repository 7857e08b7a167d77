"""A feed's own level: writes that name none get it, on each node that leads, until it is changed."""

from __future__ import annotations

import contextlib

import pytest
import trio
from tests.tailrace_server.replication.made_set import numbered, put, until

import tailrace
from tailrace import Put, blocking
from tailrace.errors import Forbidden, TailraceError
from tailrace.model import Level
from tailrace_server.feeds.feed_settings import LEVELS
from tailrace_server.serving.status import status_of

pytestmark = pytest.mark.slow

WRITES = {
    "put": lambda feed: feed.put(b"k", b"v"),
    "delete": lambda feed: feed.delete(b"k"),
    "delete_if_present": lambda feed: feed.delete_if_present(b"0"),
    "write": lambda feed: feed.write([Put(b"k", b"v")]),
    "put_if_absent": lambda feed: feed.put(b"new", b"v", if_absent=True),
}


async def write_by_writer(feed):
    async with feed.writer() as writer:
        await writer.put(b"k", b"v")


def answered_at(node):
    """How many writes the node has answered at each level."""
    return {level.name.lower(): node.node.services.traffic.write_durations[level].counts()[-1][1] for level in Level}


@contextlib.asynccontextmanager
async def writes_at(node, level):
    """Checks that the writes of the body are answered at this level, and at least one is."""
    before = answered_at(node)
    yield
    changed = [name for name, count in answered_at(node).items() if count > before[name]]
    assert changed == [level]


@pytest.mark.parametrize("write", [*WRITES.values(), write_by_writer], ids=[*WRITES, "writer"])
async def test_a_write_that_names_no_level_gets_that_of_the_feed(members, write):
    async with members.client() as client:
        for level in LEVELS:
            feed = await client.create_feed(f"of-{level}", partitions=1, level=level)
            await feed.put(b"0", b"there", level="quorum")
            async with writes_at(members.leader, level):
                await write(feed)


async def test_a_write_that_names_a_level_gets_that_one(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, level="memory")
        async with writes_at(members.leader, "quorum"):
            await feed.put(b"k", b"v", level="quorum")


async def test_the_blocking_client_sets_and_gets_it(members):
    def work():
        with blocking.connect(members.url) as client:
            client.create_feed("orders", partitions=1, level="quorum")
            assert client.set_feed("orders", level="memory").level == "memory"
            client.feed("orders").put(b"k", b"v")

    leader = await members.settled()
    async with writes_at(leader, "memory"):
        await trio.to_thread.run_sync(work)


async def test_a_running_writer_gets_the_new_level_with_its_next_block(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        async with feed.writer() as writer:
            for level, expected in (("disk", "disk"), ("memory", "memory"), ("default", "quorum")):
                await client.set_feed("orders", level=level)
                async with writes_at(members.leader, expected):
                    await writer.put(b"k", b"v")
                    await writer.flush()


async def test_the_next_leader_applies_it(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1)
        await client.set_feed("orders", level="disk")
        leader = await members.settled()
        others = [member for member in members if member is not leader]
        await leader.kill()
        await others[0].promote()
        await put(feed, numbered(0, 1))
        async with writes_at(others[0], "disk"):
            await feed.put(b"k", b"v")


async def test_status_tells_it(members):
    async with members.client() as client:
        await client.create_feed("orders", partitions=1, level="memory")
        await client.create_feed("other", partitions=1)
        leader = await members.settled()
        told = {feed["name"]: feed for feed in status_of(leader.node.services)["feeds"]}
        assert (told["orders"]["level"], told["orders"]["default_level"]) == ("memory", "memory")
        assert (told["other"]["level"], told["other"]["default_level"]) == (None, "quorum")


async def test_quorum_and_replication_by_segments_exclude_each_other(members):
    async with members.client() as client:
        with pytest.raises(Forbidden, match=r"cannot have level quorum and replication mode segment"):
            await client.create_feed("orders", partitions=1, level="quorum", replication="segment")
        await client.create_feed("orders", partitions=1, level="quorum")
        with pytest.raises(Forbidden, match=r"Set its level to disk or default"):
            await client.set_feed("orders", replication="segment")
        info = await client.set_feed("orders", replication="segment", level="default")
        assert (info.replication, info.level) == ("segment", None)
        with pytest.raises(Forbidden, match=r"or its replication to stream"):
            await client.set_feed("orders", level="quorum")
        assert (await client.set_feed("orders", replication="stream", level="quorum")).level == "quorum"


async def test_a_node_in_no_set_refuses_quorum_as_the_level_of_a_feed(source_and_replica):
    source, replica = source_and_replica
    async with tailrace.connect(source.url) as client:
        with pytest.raises(match=r"feed 'orders' cannot have level quorum: .* this node is in none"):
            await client.create_feed("orders", partitions=1, level="quorum")
        feed = await client.create_feed("orders", partitions=1, level="memory")
        with pytest.raises(Forbidden):
            await client.set_feed("orders", level="quorum")
        async with writes_at(source, "memory"):
            await feed.put(b"k", b"v")
        await until(lambda: [feed.info.level for feed in replica.node.feeds] == ["memory"])


async def test_a_node_that_has_left_its_set_refuses_writes_that_name_no_level(source_and_replica):
    """A replica of a set that was promoted, or a backup of a member, has feeds of level quorum."""
    source, _ = source_and_replica
    async with tailrace.connect(source.url) as client:
        feed = await client.create_feed("orders", partitions=1)
        made = source.node.feeds.named("orders")
        made.set(made.info._replace(level="quorum"), made.floors)
        with pytest.raises(match=r"has level quorum, .* Name level disk, or `tailrace feed set orders --level"):
            await feed.put(b"k", b"v")
        with pytest.raises(Forbidden):
            async with feed.writer() as writer:
                await writer.put(b"k", b"v")
        await feed.put(b"k", b"v", level="disk")
        assert (await client.set_feed("orders", tombstone_age_s=5)).level == "quorum", "other settings can be changed"
        await client.set_feed("orders", level="default")
        async with writes_at(source, "disk"):
            await feed.put(b"k", b"v")


async def test_an_existing_feed_has_to_have_the_level_that_is_asked_for(members):
    async with members.client() as client:
        await client.create_feed("orders", partitions=1, level="disk")
        await client.create_feed("orders")
        await client.create_feed("orders", level="disk")
        for other in ("memory", "default"):
            with pytest.raises(TailraceError, match=r"other settings: level disk \(asked"):
                await client.create_feed("orders", level=other)
