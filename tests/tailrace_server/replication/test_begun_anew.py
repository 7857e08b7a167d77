"""A follower that was away while its leader trimmed or purged: it begins the partition anew, and says so."""

from __future__ import annotations

import dataclasses
import os

import pytest
import trio
from tests.tailrace_server.replication.made_set import REPLICATION, make_set, numbered, put, until

from tailrace_server.config import StorageConfig
from tailrace_server.upkeep import compactor

pytestmark = pytest.mark.slow

STORAGE = StorageConfig(flush_age_s=0.1, pushed_age_s=0.1, reserve_bytes=0)
# A follower copies segments from the first byte on, or takes rows only.
CATCH_UP = {"segments": 0, "rows": None}


@pytest.fixture
def new_members(tmp_path, nursery, monkeypatch):
    """Makes a set of three whose members look at the age of their segments all the time."""
    monkeypatch.setattr(compactor, "SWEEP_SECONDS", 0.1)

    async def make(catch_up):
        replication = dataclasses.replace(REPLICATION, catch_up_bytes_min=CATCH_UP[catch_up])
        members = make_set(tmp_path, nursery, replication=replication, storage=STORAGE)
        await members.start()
        await members.settled()
        return members

    return make


def partition_of(member):
    [partition] = member.node.feeds.named("orders").partitions
    return partition


def begun_anew(member):
    return member.node.status()["replication"]["begun_anew"]


@pytest.mark.parametrize("replication", ["stream", "segment"])
@pytest.mark.parametrize("catch_up", ["segments", "rows"])
@pytest.mark.parametrize("bound", [{"history_bytes": 100_000}, {"history_age_s": 1.0}], ids=["bytes", "age"])
async def test_a_follower_that_was_away_while_the_leader_trimmed(new_members, bound, catch_up, replication, caplog):
    level = "disk" if replication == "segment" else "quorum"
    members = await new_members(catch_up)
    leader = members.leader
    away, third = [member for member in members if member is not leader]
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history", replication=replication, **bound)
        await put(feed, numbered(0, 5), level)
        await until(lambda: away.seqs("orders") == third.seqs("orders") == [5])
        await away.kill()
        number = 0
        while partition_of(leader).trim_seq <= 5:
            number += 1
            await feed.put(b"%d" % number, os.urandom(20_000), level=level)
            await trio.sleep(0.02)
        await away.start()
        await feed.put(b"newest", b"v", level=level)
        await until(lambda: away.seqs("orders") == leader.seqs("orders"))
        assert partition_of(away).trim_seq > 5
        [told] = begun_anew(away)
        assert (told["feed"], told["partition"], told["stood_at"], told["why"]) == ("orders", 0, 5, "trimmed")
        assert told["kept_from"] > 6
        assert "partition 0 of feed orders is begun anew: it stood at seq 5" in caplog.text
        assert not begun_anew(leader)
        assert not begun_anew(third)
        away.node.check()
        # A copy that was begun anew may lead, and the others follow it.
        await away.promote()
        after = await feed.put(b"after", b"v", level=level)
        while third.seqs("orders")[0] < after.seq:
            await feed.put(b"more", b"v", level=level)  # or the rows may be trimmed before they are shipped
            await trio.sleep(0.02)
        if "history_bytes" in bound:
            assert away.rows("orders")[b"newest"] == third.rows("orders")[b"after"] == b"v"


@pytest.mark.parametrize("catch_up", ["segments", "rows"])
async def test_a_follower_below_a_purge_seq_keeps_no_key_that_was_deleted_meanwhile(new_members, catch_up):
    """The deletions are gone, so a stream of what follows would leave the deleted keys on the follower for ever."""
    members = await new_members(catch_up)
    leader, away = members.leader, next(member for member in members if not member.leads)
    keys = list(numbered(0, 20))
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, tombstone_age_s=0.5)
        await put(feed, numbered(0, 20))
        await members.level("orders")
        await away.kill()
        await put(feed, dict.fromkeys(keys[:15]))
        while partition_of(leader).purge_seq <= 20:
            await feed.put(b"other", os.urandom(100), level="quorum")
            await trio.sleep(0.02)
        await away.start()
        await feed.put(b"newest", b"v", level="quorum")
        await members.level("orders")
        assert partition_of(away).purge_seq > 20
        assert away.rows("orders") == leader.rows("orders")
        assert set(away.rows("orders")) == {*keys[15:], b"other", b"newest"}
        [told] = begun_anew(away)
        assert (told["stood_at"], told["why"]) == (20, "purged")
        away.node.check()
        await away.promote()
        await feed.put(b"after", b"v", level="quorum")
        found = {item.key: item.value async for item in feed.items()}
        assert set(found) == {*keys[15:], b"other", b"newest", b"after"}
