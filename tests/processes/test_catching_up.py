"""A member that is far behind copies segments, and dies at any call of its disk while it does."""

from __future__ import annotations

import dataclasses
import os
import random

import pytest
import trio

import tailrace

from .group import Group, start
from .lives import CALLS_IN_A_START
from .program import Orders

SECONDS_MAX = 200.0
PARTITIONS = 4
DEATHS = 6
# From the first byte on a follower copies segments.
BY_SEGMENTS = ("--set", "replication.catch_up_bytes_min=0")


@pytest.fixture
async def group(tmp_path, nursery):
    made = Group(tmp_path, 3, Orders(storage={"reserve_bytes": 256 * 1024}))
    for node in made.nodes:
        node.options += BY_SEGMENTS
    await made.connect(nursery)
    yield made
    made.end_at_once()


async def is_level(group):
    found = [await node.ask(seqs=True) for node in group.nodes]
    return None not in found and all(answer["seqs"] == found[0]["seqs"] for answer in found)


async def rows(url, state):
    async with tailrace.connect(url, state=state, retry_for=SECONDS_MAX) as client:
        return {item.key: item.value async for item in client.feed("orders").items()}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_a_member_that_dies_while_it_copies_segments_comes_to_the_same_rows(group, tmp_path, seed):
    rnd = random.Random(seed)
    await group.start(group.nodes)
    written = {}
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=PARTITIONS)

            async def put(first):
                async with feed.writer(level="quorum") as writer:
                    for number in range(first, first + 100):
                        written[b"%d" % number] = os.urandom(20_000)
                        await writer.put(b"%d" % number, written[b"%d" % number])

            await put(0)
            victim = rnd.choice([node for node in group.nodes if node is not await group.leader()])
            orders = victim.orders
            for number in range(DEATHS):
                if victim.is_running:
                    await group.kill(victim)
                await put(100 * number + 50)
                await feed.fetch(tmp_path / "copy")  # the leader flushes
                dies_at = rnd.randrange(CALLS_IN_A_START, CALLS_IN_A_START + 120)
                how = rnd.choice(("before", "after", "torn"))
                victim.orders = dataclasses.replace(orders, dies_at=dies_at, how=how, forgets=rnd.random() < 0.5)
                victim.launch()
                with trio.move_on_after(8.0):
                    while victim.is_running and not victim.died():  # noqa: ASYNC110 - it is another process
                        await trio.sleep(0.02)
            if victim.is_running:
                await group.kill(victim)
            victim.orders = orders
            await start(victim)
            while not await is_level(group):  # noqa: ASYNC110 - they are other processes
                await trio.sleep(0.05)
            for node in group.nodes:
                state = "leader" if node is await group.leader() else "follower"
                assert await rows(node.url, state) == written
    assert "has caught up to seq" in victim.log_path.read_text(), "it has copied no segment"
    await group.stop()
    await group.verify()
