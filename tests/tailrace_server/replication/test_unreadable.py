"""A member that cannot read a partition is promoted by force only, and says so before and afterwards."""

import os

import pytest
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace.errors import NotLeader, TailraceError


def numbered(first, count):
    return {b"%d" % number: b"v%d" % number for number in range(first, first + count)}


async def with_damage(members, client, node, nbytes, *, restart):
    """A feed of two partitions, of which ``node`` has lost the end of a segment of the first, from ``nbytes`` on."""
    await members.filled(client, numbered(0, 20), partitions=2)
    partitions = node.node.feeds.named("orders").partitions
    for partition in partitions:
        await node.node.storage.flusher.flush_all(partition)
    await (
        node.node.storage.flusher.write_feeds()
    )  # else a start takes the feed, and all that is in it, from the journal
    path = partitions[0].chain.segments[0].path
    if restart:
        await node.stop()
    os.truncate(path, nbytes)
    if restart:
        await node.start()
        await members.settled()
    else:
        async with tailrace.connect(node.url, state="follower") as reader:
            with pytest.raises(TailraceError, match="is damaged"):
                await reader.feed("orders").get_many(list(numbered(0, 20)), level="memory")


@pytest.mark.parametrize("restart", [True, False], ids=["found at the start", "found by a read"])
async def test_who_cannot_read_a_partition_is_promoted_by_force_only(members, restart):
    async with members.client() as client:
        await with_damage(members, client, members[1], 100, restart=restart)
        with pytest.raises(NotLeader, match=r"partition 0 of feed orders cannot be read here.*--force"):
            await members[1].promote()
        assert members[0].leads
        with pytest.raises(TailraceError, match="partition 0 of feed orders"):
            await members[0].hand_over(members[1])
        assert members[0].leads
        answer = await members[1].promote(force=True)
        assert "partition 0 of feed orders" in answer["may_be_lost"]
        await until(lambda: members[1].leads)


async def test_who_led_last_leads_again_though_it_cannot_read_a_partition(members):
    """The others are not to be without a leader for it; status says what is the matter."""
    async with members.client() as client:
        await with_damage(members, client, members[0], 100, restart=True)
        await members.settled()
        assert members[0].leads
        [told] = members[0].node.status()["replication"]["unreadable"]
        assert (told["feed"], told["partition"]) == ("orders", 0)


@pytest.mark.parametrize("restart", [True, False], ids=["found at the start", "found by a read"])
async def test_the_forecast_tells_it_on_the_node_and_on_its_leader(members, restart):
    async with members.client() as client:
        await with_damage(members, client, members[1], 100, restart=restart)
        status = members[1].node.status()["replication"]
        assert (status["promotion_case"], status["promotion_succeeds"]) == ("unreadable", False)
        assert "partition 0 of feed orders cannot be read here" in status["promotion"]
        name = str(members[1].address)
        await until(lambda: f"{name} cannot read 1 partition" in members[0].node.status()["replication"]["promotion"])
