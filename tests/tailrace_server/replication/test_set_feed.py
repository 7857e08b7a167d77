"""Settings of a feed that are changed in a set: followers take them over, and a failover keeps them."""

from __future__ import annotations

import math

import pytest
from tests.tailrace_server.replication.made_set import make_set, numbered, put, until

from tailrace_server.config import StorageConfig
from tailrace_server.upkeep import compactor

pytestmark = pytest.mark.slow

STORAGE = StorageConfig(flush_age_s=0.1, pushed_age_s=0.1, reserve_bytes=0)


@pytest.fixture
async def members(tmp_path, nursery, monkeypatch):
    """A set of three that leads, follows, and looks at the age of its segments all the time."""
    monkeypatch.setattr(compactor, "SWEEP_SECONDS", 0.1)
    made = make_set(tmp_path, nursery, storage=STORAGE)
    await made.start()
    await made.settled()
    return made


def settings_of(member):
    info = member.node.feeds.named("orders").info
    return info.history_age_s, info.history_bytes, info.tombstone_age_s, info.replication, info.level


async def test_members_take_over_settings_and_keep_them_across_a_failover_and_a_restart(members):
    async with members.client() as client:
        await client.create_feed("orders", partitions=1, retention="history", level="memory")
        info = await client.set_feed(
            "orders", history_age_s=3600, history_bytes=1_000_000, tombstone_age_s=5, level="disk"
        )
        changed = (3600.0, 1_000_000, 5.0, "stream", "disk")
        assert info[5:10] == changed
        await until(lambda: all(settings_of(member) == changed for member in members))
        leader = members.leader
        other = next(member for member in members if member is not leader)
        await leader.kill()
        await other.promote()
        assert settings_of(other) == changed
        # One setting alone, and one that has no bound any more; the others stay.
        info = await client.set_feed("orders", history_bytes=math.inf)
        changed = (3600.0, None, 5.0, "stream", "disk")
        await leader.start()
        await until(lambda: leader.is_up and settings_of(leader) == changed)
        await other.kill()
        await other.start()
        assert settings_of(other) == changed


async def test_retention_goes_by_the_new_age(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await put(feed, numbered(0, 20))
        partitions = [member.node.feeds.named("orders").partitions[0] for member in members]
        await until(lambda: all(partition.flushed_seq == 20 for partition in partitions))
        assert not any(partition.trim_seq for partition in partitions)
        await client.set_feed("orders", history_age_s=0.2)
        await until(lambda: all(partition.trim_seq == 20 for partition in partitions))
