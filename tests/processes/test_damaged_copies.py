"""Members whose copies are damaged, as processes: none is chosen to lead while there is a copy that can be read."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import trio

import tailrace
from tailrace.errors import BadSegment, NotLeader
from tailrace.link.address import Address
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import SYSTEM_FEED_ID

from .group import Group, start
from .program import Orders

pytestmark = pytest.mark.long

SECONDS_MAX = 240.0
ROWS = {b"key %d" % number: b"value %d" % number * 20 for number in range(2_000)}
# Segments are there soon; the free space of the machine is not what is tested.
STORAGE = {"flush_age_s": 0.2, "reserve_bytes": 0, "free_bytes_min": 0}
CHECKED = {"check_rate": 1 << 30, "check_pause_s": 0.1}


@pytest.fixture
def new_group(tmp_path, nursery):
    """Makes a set of three that fails over by itself: ``await new_group(**storage)``."""
    made = []

    async def make(**storage):
        group = Group(tmp_path, 3, Orders(storage=STORAGE | storage), failover="auto")
        made.append(group)
        await group.connect(nursery)
        await group.start(group.nodes)
        return group

    yield make
    for group in made:
        group.end_at_once()


def flip(path):
    """One bit of the first block."""
    with path.open("r+b") as file:
        file.seek(1_000)
        [byte] = file.read(1)
        file.seek(1_000)
        file.write(bytes([byte ^ 1]))


def cut(path):
    os.truncate(path, 1_000)


def remove(path):
    path.unlink()


def segments(node):
    """The files of the feed's first partition that has some."""
    found = [path for path in Path(node.data).glob("feeds/*/*/*.seg") if path.parts[-3] != SYSTEM_FEED_ID.hex()]
    return sorted(path for path in found if path.stat().st_size > 10_000)


async def filled(group):
    """All members have ROWS in segments, which no compaction replaces any more."""
    async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
        feed = await client.create_feed("orders", partitions=2)
        async with feed.writer(level="quorum") as writer:
            for key, value in ROWS.items():
                await writer.put(key, value)
    while True:
        await trio.sleep(0.1)
        feeds = [feed for node in group.nodes for feed in (await status(node))["feeds"]]
        if [(feed["flushed"], feed["segments"]) for feed in feeds] == [(len(ROWS), 2)] * 3:
            return await another_leader(group, None)


async def status(node):
    answer = await node.ask(Opcode.STATUS)
    assert answer is not None
    return answer


async def until(node, condition):
    while True:
        found = await status(node)
        if condition(found):
            return found
        await trio.sleep(0.05)


async def another_leader(group, former):
    while True:
        leader = await group.leader()
        if leader is not None and leader is not former:
            return leader
        await trio.sleep(0.05)


async def rows(url, **options):
    async with tailrace.connect(url, retry_for=SECONDS_MAX, **options) as client:
        return {item.key: item.value async for item in client.feed("orders").items()}


def first_to_stand(group, leader):
    """The follower whose name lets it ask first, among equally complete ones; and the other one."""
    return sorted((node for node in group.nodes if node is not leader), key=lambda node: node.address)


@pytest.mark.parametrize("damage", [flip, cut, remove])
async def test_a_member_that_cannot_read_its_copy_is_passed_over_when_the_leader_is_killed(new_group, damage):
    with trio.fail_after(SECONDS_MAX):
        group = await new_group(**CHECKED)
        leader = await filled(group)
        damaged, good = first_to_stand(group, leader)
        damage(segments(damaged)[0])
        if damage is flip:  # what no system call tells is found by a check of the bytes
            await until(damaged, lambda found: found["replication"]["unreadable"])
        await group.kill(leader)
        assert await another_leader(group, leader) is good
        found = await until(damaged, lambda found: found["replication"]["unreadable"])
        assert (found["replication"]["unreadable"][0]["feed"], found["healthy"]) == ("orders", False)
        assert await rows(good.url) == ROWS
        assert await rows(group.url) == ROWS
        if damage is flip:
            assert (
                f"passes over the copy of {damaged.address}, which cannot read 1 partition" in good.log_path.read_text()
            )
        # Whoever was first, the damaged one has looked at its files before it would have stood.
        assert "begins a promotion" not in damaged.log_path.read_text()
        await start(leader)
        await until(leader, lambda found: found["replication"]["leader"] == good.address)


async def test_a_leader_that_finds_damage_hands_over_to_a_member_that_can_read_its_copy(new_group):
    """The member that leads has not checked its bytes. A reader meets the damage, and goes on at the next leader."""
    with trio.fail_after(SECONDS_MAX):
        group = await new_group(check_rate=0)
        leader = await filled(group)
        flip(segments(leader)[0])
        with contextlib.suppress(BadSegment):  # or it has handed over before the third try
            assert await rows(leader.url) == ROWS
        successor = await another_leader(group, leader)
        assert await rows(group.url) == ROWS
        assert f"this leader hands over to {successor.address}" in leader.log_path.read_text()
        await until(leader, lambda found: found["replication"]["role"] == "follower")
        found = await until(leader, lambda found: found["healthy"])
        assert not found["replication"]["unreadable"]
        assert [anew["why"] for anew in found["replication"]["begun_anew"]] == ["damaged"]
        assert await rows(leader.url, state="follower") == ROWS


async def promote(node, *, force):
    address = Address(*node.address.split(":"))._replace(port=node.port)
    return await request.ask(address, Opcode.PROMOTE, {"force": force}, timeout_s=60)


@pytest.mark.parametrize("comes_back", [False, True], ids=["by force", "the leader comes back"])
async def test_nothing_leads_by_itself_if_no_copy_can_be_read_and_status_says_what_to_do(new_group, comes_back):
    with trio.fail_after(SECONDS_MAX):
        group = await new_group(**CHECKED)
        leader = await filled(group)
        followers = first_to_stand(group, leader)
        cut(segments(followers[0])[0])
        for path in segments(followers[1]):
            cut(path)
        await group.kill(leader)
        best = followers[0].address  # it lacks one partition, the other one both
        for node in followers:
            found = await until(node, lambda found: "no voter that answers" in (found["failure"] or ""))
            assert f"Start {leader.address} again, whose copy may be good" in found["failure"]
            assert f"`tailrace promote --force --node {best}`" in found["failure"]
            assert found["replication"]["promotion_case"] == "unreadable"
            found = await until(node, lambda found: "does not stand" in found["replication"]["failover"]["why"])
            assert "copied anew from the next leader" in found["replication"]["failover"]["why"]
        with pytest.raises(NotLeader, match="no other voter that answers can read all its partitions"):
            await promote(followers[0], force=False)
        assert await group.leader() is None
        if comes_back:
            await start(leader)
            await until(followers[0], lambda found: found["replication"]["leader"] == leader.address)
            assert await rows(group.url) == ROWS
            return
        answer = await promote(followers[0], force=True)
        assert "cannot be read here" in answer["may_be_lost"]
        assert await another_leader(group, leader) is followers[0]
        found = await status(followers[0])
        assert "this leader cannot read 1 partition, and no other voter that can" in found["failure"]
