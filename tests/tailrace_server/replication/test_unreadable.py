"""Partitions that a member cannot read: it is promoted by force only, and another one goes on with a readable copy."""

import os

import pytest
from tests.tailrace_server.replication.made_set import numbered, until

import tailrace
from tailrace.errors import NotLeader, TailraceError
from tailrace_server.replication.far_partitions import FarPartitions


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


@pytest.fixture
def no_good_copy(monkeypatch):
    """No member gets a good copy of a damaged partition. Otherwise it soon would."""
    monkeypatch.setattr(FarPartitions, "is_due_anew", lambda far, partition: False)
    monkeypatch.setattr(FarPartitions, "begin", lambda far, partition: None)


@pytest.mark.parametrize("restart", [True, False], ids=["found at the start", "found by a read"])
async def test_who_cannot_read_a_partition_is_promoted_by_force_only(members, restart, no_good_copy):
    async with members.client() as client:
        await with_damage(members, client, members[1], 100, restart=restart)
        told = r"partition 0 of feed orders cannot be read here.*promote .*, which can read all its partitions.*--force"
        with pytest.raises(NotLeader, match=told):
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
        told = "this leader cannot read 1 partition: it is to hand over to"
        await until(lambda: told in members[0].node.health()["failure"])
        assert "`tailrace handover --to 127.0.0.1:" in members[0].node.health()["failure"]
        answer = await members[1].promote()
        assert any(f"passes over the copy of {members[0].address}" in step for step in answer["steps"])


async def with_a_late_one(members, client, *, restart, ends=(0,), partitions=2, damaged=2):
    """The second member has 20 rows, the others 40; ``damaged`` has lost the end of each segment in ``ends``.

    Gives the seqs that the second has, and those of the others.
    """
    feed = await members.filled(client, numbered(0, 20), partitions=partitions)
    few = members[1].seqs("orders")
    await members[1].stop()
    for key, value in numbered(20, 20).items():
        await feed.put(key, value, level="quorum")
    await members.level("orders")
    many = members[0].seqs("orders")
    found = members[damaged].node.feeds.named("orders").partitions
    for partition in found:
        await members[damaged].node.storage.flusher.flush_all(partition)
    await members[damaged].node.storage.flusher.write_feeds()
    paths = [found[number].chain.segments[-1].path for number in ends]
    if restart:
        await members[damaged].stop()
    for path in paths:
        os.truncate(path, 100)
    if restart:
        await members[damaged].start()
        await members.settled()
    return few, many


FOUND = pytest.mark.parametrize("restart", [True, False], ids=["found at the start", "found by the promotion"])


@FOUND
@pytest.mark.usefixtures("no_good_copy")
async def test_force_goes_on_with_the_best_copy_that_can_be_read_and_says_what_is_lost(members, restart):
    async with members.client() as client:
        few, many = await with_a_late_one(members, client, restart=restart)
        await members[0].stop()
        await members[1].start()
        with pytest.raises(NotLeader, match=rf"partition 0 of feed orders.*up to seq {many[0]}.*cannot read.*--force"):
            await members[1].promote()
        assert not members[1].leads
        answer = await members[1].promote(force=True)
        assert f"partition 0 of feed orders: {members[2].address} has it up to seq {many[0]}" in answer["may_be_lost"]
        assert f"goes on from seq {few[0]}" in answer["may_be_lost"]
        assert members[1].leads
        assert members[1].seqs("orders") == [few[0], many[1]]
        assert len(members[1].rows("orders")) == few[0] + many[1]


@FOUND
@pytest.mark.usefixtures("no_good_copy")
async def test_many_partitions_that_cannot_be_read_are_told_in_one_go(members, restart):
    async with members.client() as client:
        few, many = await with_a_late_one(members, client, restart=restart, ends=range(1, 6), partitions=6)
        await members[0].stop()
        await members[1].start()
        answer = await members[1].promote(force=True)
        behind = [number for number in range(1, 6) if few[number] < many[number]]
        assert len(behind) > 3
        assert f"and {len(behind) - 3} more" in answer["may_be_lost"]
        assert sum("fetches" in step for step in answer["steps"]) == 1
        assert members[1].seqs("orders") == [many[0], *few[1:]]


async def test_another_copy_that_is_as_good_loses_nothing_and_needs_no_force(members):
    """The member that is asked first of the two has the damaged copy."""
    first = min((0, 2), key=lambda number: str(members[number].address))
    async with members.client() as client:
        _, many = await with_a_late_one(members, client, restart=False, damaged=first)
        await members[0].stop()
        await members[1].start()
        await members[0].start()
        answer = await members[1].promote()
        assert any("cannot read partition 0" in step for step in answer["steps"])
        assert not answer["may_be_lost"]
        assert members[1].seqs("orders") == many


async def test_force_leads_though_another_one_has_more_of_what_this_node_cannot_read(members):
    """What cannot be read here takes nothing: it stays as it is, and is told."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 20), partitions=2)
        found = members[1].node.feeds.named("orders").partitions
        for partition in found:
            await members[1].node.storage.flusher.flush_all(partition)
        await members[1].node.storage.flusher.write_feeds()
        few = members[1].seqs("orders")
        await members[1].stop()
        for key, value in numbered(20, 20).items():
            await feed.put(key, value, level="quorum")
        many = members[0].seqs("orders")
        os.truncate(found[0].chain.segments[0].path, 100)
        await members[1].start()
        answer = await members[1].promote(force=True)
        assert f"has it up to seq {many[0]}, and this node" in answer["may_be_lost"]
        assert members[1].leads
        assert members[1].seqs("orders") == [few[0], many[1]]


@pytest.mark.parametrize("restart", [True, False], ids=["found at the start", "found by a read"])
async def test_the_forecast_tells_it_on_the_node_and_on_its_leader(members, restart, no_good_copy):
    async with members.client() as client:
        await with_damage(members, client, members[1], 100, restart=restart)
        status = members[1].node.status()["replication"]
        assert (status["promotion_case"], status["promotion_succeeds"]) == ("unreadable", False)
        assert "partition 0 of feed orders cannot be read here" in status["promotion"]
        name = str(members[1].address)
        await until(lambda: f"{name} cannot read 1 partition" in members[0].node.status()["replication"]["promotion"])
