"""Directories that must not vote: another node's, an older copy, a disk that was replaced. And leaders that are cut.

Whatever comes back, no row that was at quorum is lost, and each node says what it refuses and what to do.
"""

from __future__ import annotations

import shutil

import pytest
import trio

import tailrace
from tailrace.wire.opcodes import Opcode

from .group import Group, run_command, start
from .node import NodeFailed

pytestmark = pytest.mark.slow

SECONDS_MAX = 300.0
FIRST = {b"first %d" % number: b"v" for number in range(10)}
LATER = {b"later %d" % number: b"v" for number in range(10)}


@pytest.fixture
def make_group(tmp_path, nursery):
    made = []

    async def make(failover="auto"):
        group = Group(tmp_path, 3, failover=failover)
        made.append(group)
        await group.connect(nursery)
        await group.start(group.nodes)
        return group

    yield make
    for group in made:
        group.end_at_once()


async def answers(node, holds):
    """The node's answer to MEMBER once ``holds`` is true of it."""
    while True:
        seen = await node.ask()
        if seen is not None and holds(seen):
            return seen
        await trio.sleep(0.1)


async def ordered(group):
    """The leader, a follower, and another one."""
    while (leader := await group.leader()) is None:  # noqa: ASYNC110 - another process
        await trio.sleep(0.1)
    one, other = (node for node in group.nodes if node is not leader)
    for node in (one, other):
        await answers(node, lambda seen: seen["votes"] and seen["leader"] == leader.address)
    return leader, one, other


async def put(group, rows, partitions=0):
    async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
        if partitions:
            await client.create_feed("orders", partitions=partitions)
        feed = client.feed("orders")
        for key, value in rows.items():
            await feed.put(key, value, level="quorum")


async def require(group, rows):
    """Raises AssertionError unless the leader shows exactly ``rows``."""
    async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
        assert {item.key: item.value async for item in client.feed("orders").items()} == rows


async def doing(node, text):
    """Returns once the node's status says ``text``."""
    while True:
        _, said = await run_command("status", "--node", node.address)
        if text in said:
            return
        await trio.sleep(0.2)


def log(node):
    return node.log_path.read_text()


def moved(node, name):
    """The directory of a node that is down, moved away; it starts on an empty one."""
    away = node.data.with_name(name)
    node.data.rename(away)
    return away


def put_back(node, away):
    shutil.rmtree(node.data)
    away.rename(node.data)


async def test_a_disk_that_was_replaced_and_comes_back_has_no_vote(make_group):
    with trio.fail_after(SECONDS_MAX):
        group = await make_group()
        await put(group, FIRST, partitions=2)
        leader, other, third = await ordered(group)
        await group.kill(third)
        old = moved(third, "old")
        await start(third)
        new = await answers(third, lambda seen: seen["votes"])
        await answers(leader, lambda seen: new["placement_id"] in seen["voters"]["seats"])
        assert "votes from now on" in log(leader)
        await group.kill(other)
        await put(group, LATER)  # the leader has them, and the new disk
        await group.kill(third)
        put_back(third, old)
        await group.kill(leader)
        await group.start([other, third])
        seen = await answers(third, lambda seen: seen["voters"]["epoch"] >= 3)
        assert seen["placement_id"] != new["placement_id"]
        assert not seen["votes"]
        await doing(third, "is no voter by epoch")
        for node in (other, third):
            code, said = await run_command("promote", "--node", node.address)
            assert code, said
        assert await group.leader() is None
        assert "is no voter by epoch" in log(third)
        await start(leader)
        await require(group, FIRST | LATER)
        await answers(third, lambda seen: seen["votes"])
        await answers(leader, lambda seen: third_has_its_seat(seen, new))
        await group.kill(leader)
        await require(group, FIRST | LATER)


def third_has_its_seat(seen, new):
    """The disk that came back has caught up, and taken the place of the one that had replaced it."""
    return new["placement_id"] not in seen["voters"]["seats"] and all(seen["voters"]["seats"])


async def test_a_member_on_an_older_copy_of_its_directory_has_no_vote(make_group):
    with trio.fail_after(SECONDS_MAX):
        group = await make_group()
        await put(group, FIRST, partitions=2)
        leader, other, third = await ordered(group)
        await trio.to_thread.run_sync(third.stop)
        copy = third.data.with_name("copy")
        shutil.copytree(third.data, copy)
        await start(third)
        now = await answers(third, lambda seen: seen["votes"] and seen["leader"] == leader.address)

        def knows(seen):
            return seen["known"].get(now["placement_id"], [0])[0] >= now["line"]["start"][0]

        await answers(other, knows)
        await group.kill(other)
        await put(group, LATER)  # the leader has them, and the third member
        await group.kill(third)
        put_back(third, copy)
        await start(other)
        await answers(other, knows)
        await group.kill(leader)
        await start(third)
        await answers(third, lambda seen: not seen["votes"])
        await doing(third, "older copy")
        assert await group.leader() is None
        await start(leader)
        await require(group, FIRST | LATER)
        await answers(third, lambda seen: seen["votes"])


async def test_a_member_does_not_start_on_the_directory_of_another_one(make_group):
    with trio.fail_after(SECONDS_MAX):
        group = await make_group()
        await put(group, FIRST, partitions=2)
        _, other, third = await ordered(group)
        await group.kill(third)
        own = moved(third, "own")
        await group.kill(other)
        shutil.copytree(other.data, third.data)
        with pytest.raises(NodeFailed, match="of another member"):
            await start(third)
        third.end_at_once()
        put_back(third, own)
        await group.start([other, third])
        await put(group, LATER)
        await require(group, FIRST | LATER)


async def test_two_that_are_cut_from_each_other_do_not_depose_each_other_for_ever(make_group):
    with trio.fail_after(SECONDS_MAX):
        group = await make_group()
        await put(group, FIRST, partitions=2)
        leader, other, _ = await ordered(group)
        group.network.cut(leader, other)
        assert (await other.ask(Opcode.PROMOTE, force=False)) is not None
        await answers(leader, lambda seen: seen["role"] == "follower")
        term = (await answers(other, lambda seen: seen["role"] == "leader"))["term"]
        for _ in range(20):
            await put(group, LATER)
            await trio.sleep(0.1)
        seen = await other.ask()
        assert (seen["role"], seen["term"]) == ("leader", term)
        group.network.heal()
        await answers(leader, lambda seen: seen["leader"] == other.address)
        await require(group, FIRST | LATER)
