"""A set of processes that fails over by itself: whatever ends the leader, no row that was at quorum is lost."""

from __future__ import annotations

import signal

import pytest
import trio

import tailrace

from .group import Group, start
from .program import Orders

pytestmark = pytest.mark.slow

SECONDS_MAX = 120.0
ROWS = {b"key %d" % number: b"value %d" % number for number in range(50)}


@pytest.fixture
async def group(tmp_path, nursery):
    group = Group(tmp_path, 3, Orders(may_hang=True), failover="auto")
    await group.connect(nursery)
    await group.start(group.nodes)
    yield group
    group.network.heal()
    group.end_at_once()


async def kill(group, leader):
    await group.kill(leader)


async def pause(group, leader):
    leader.pause()


async def cut_off(group, leader):
    group.network.cut_off(leader)


async def freeze(group, leader):
    group.network.freeze(leader)


async def hang(group, leader):
    leader.signal(signal.SIGUSR1)


async def come_back(group, leader):
    """Ends what ended the leadership."""
    group.network.heal()
    if leader.is_paused:
        leader.proceed()
    elif not leader.is_running:
        await start(leader)


async def another_leader(group, former):
    while True:
        leader = await group.leader()
        if leader is not None and leader is not former:
            return leader
        await trio.sleep(0.1)


@pytest.mark.parametrize("end", [kill, pause, cut_off, freeze, hang])
async def test_another_one_leads_and_has_every_row_at_quorum(group, end):
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(group.url, retry_for=100) as client:
            feed = await client.create_feed("orders", partitions=2)
            for key, value in ROWS.items():
                await feed.put(key, value, level="quorum")
            leader = await another_leader(group, None)
            await end(group, leader)
            await feed.put(b"after", b"v", level="quorum")
            successor = await another_leader(group, leader)
        async with tailrace.connect(f"tailrace://127.0.0.1:{successor.port}") as client:
            found = {item.key: item.value async for item in client.feed("orders").items()}
        assert found == {**ROWS, b"after": b"v"}
        if end is hang:
            leader.end_at_once()
            return
        await come_back(group, leader)
        while True:  # the former leader follows
            seen = await leader.ask()
            if seen is not None and seen["role"] == "follower" and seen["leader"]:
                return
            await trio.sleep(0.1)
