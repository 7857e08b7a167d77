"""A set of three processes with a feed in replication mode ``segment``; nodes are killed while segments are pushed."""

from __future__ import annotations

import os
import random

import pytest
import trio

import tailrace

from .acts import STORAGE
from .group import Group, run_command, start
from .program import Orders

SECONDS_MAX = 240.0
PARTITIONS = 2


@pytest.fixture
async def group(tmp_path, nursery):
    made = Group(tmp_path, 3, Orders(storage={**STORAGE, "pushed_age_s": 0.2}))
    await made.connect(nursery)
    yield made
    made.end_at_once()


async def led(group):
    """The node that leads."""
    while (leader := await group.leader()) is None:  # noqa: ASYNC110 - it is another process
        await trio.sleep(0.05)
    return leader


async def same_files(group):
    """Returns the rows' seqs when all nodes have all rows of the feed, in the same segments."""
    while True:
        found = [await node.ask(seqs=True) for node in group.nodes]
        names = [
            sorted(
                path.relative_to(node.data)
                for path in node.data.rglob("*.seg")
                if "lost" not in path.parts and path.parts[-3] != "0" * 31 + "1"
            )
            for node in group.nodes
        ]
        is_level = None not in found and all(answer["seqs"] == found[0]["seqs"] for answer in found)
        if is_level and names[0] == names[1] == names[2]:
            return
        await trio.sleep(0.1)


async def rows(url, state):
    """Keys and values of the feed as a node shows them."""
    async with tailrace.connect(url, state=state, retry_for=SECONDS_MAX) as client:
        return {item.key: item.value async for item in client.feed("orders").items()}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
async def test_nodes_that_are_killed_while_segments_are_pushed_come_to_the_same_files(group, seed):
    rnd = random.Random(seed)
    await group.start(group.nodes)
    written = {}
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=PARTITIONS, replication="segment")

            async def put(first):
                for number in range(first, first + 30):
                    key, value = b"%d" % number, os.urandom(20_000)
                    await feed.put(key, value)
                    written[key] = value

            for number in range(2):
                leader = await led(group)
                victim = rnd.choice([node for node in group.nodes if node is not leader])
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(put, 100 * number)
                    await trio.sleep(rnd.uniform(0.05, 0.6))
                    await group.kill(victim)
                    await start(victim)
            await same_files(group)

            # The leader dies while it pushes: rows that it did not flush and push are lost.
            shipped = dict(written)
            old = await led(group)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(put, 1_000)
                await trio.sleep(rnd.uniform(0.05, 0.6))
                await group.kill(old)
                new = next(node for node in group.nodes if node is not old)
                code, said = await run_command("promote", "--node", new.address)
                assert code == 0, said
            await start(old)
            await put(2_000)
            await same_files(group)
            found = await rows(new.url, "leader")
            assert found.items() <= written.items()
            assert shipped.items() <= found.items()
            assert {b"%d" % number for number in range(2_000, 2_030)} <= found.keys()
            for node in group.nodes:
                if node is not new:
                    assert await rows(node.url, "follower") == found
    await group.stop()
    await group.verify()
