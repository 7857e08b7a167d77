"""Keys expire in sets: by the leader alone, and the next one goes on."""

from __future__ import annotations

import pytest
from tests.tailrace_server.partition.test_expiring import gone, mutations_of

from tailrace_server.replication import expirer

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _swift(monkeypatch):
    monkeypatch.setattr(expirer, "SWEEP_SECONDS", 0.05)


async def test_the_next_leader_goes_on_and_followers_delete_nothing(members):
    async with members.client() as client:
        feed = await client.create_feed("sessions", partitions=2)
        for number in range(20):
            await feed.put(b"%d" % number, b"1", ttl=3 if number % 2 else 1_000, level="quorum")
        before = members.leader
        await before.kill()
        leader = next(node for node in members if node is not before)
        await leader.promote(force=True)
        odd = [b"%d" % number for number in range(1, 20, 2)]
        await gone(feed, *odd)
        assert leader.node.expirer.expired_rows == 10
        await before.start()
        await members.level("sessions")
        rows = dict.fromkeys((b"%d" % number for number in range(0, 20, 2)), b"1")
        assert [node.rows("sessions") for node in members] == [rows] * 3
        followers = [node for node in members if node is not leader]
        assert [node.node.expirer.expired_rows for node in followers] == [0, 0]
        found = await mutations_of(feed)
        assert {key for key, values in found.items() if values[-1] is None} == set(odd)


async def test_a_handover_changes_who_deletes(members):
    async with members.client() as client:
        feed = await client.create_feed("sessions", partitions=1, ttl_s=1)
        await feed.put(b"first", b"1", level="quorum")
        await gone(feed, b"first")
        before = members.leader
        to = next(node for node in members if node is not before)
        await before.hand_over(to)
        await members.settled()
        await feed.put(b"second", b"1", level="quorum")
        await gone(feed, b"second")
        assert [node.node.expirer.expired_rows for node in (before, to)] == [1, 1]
        await members.level("sessions")
