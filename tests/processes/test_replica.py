"""A leader and a plain replica of it, as processes: promoted by force, and the old leader comes back as its replica."""

from __future__ import annotations

import json

import pytest
import trio

import tailrace
from tailrace import Mutations
from tailrace.indexes import MemoryIndex
from tailrace.testing.ports import free_ports

from .acts import STORAGE
from .group import run_command, start
from .node import HOST, NodeProcess
from .program import Orders
from .proxy import Proxy

SECONDS_MAX = 240.0


@pytest.fixture
async def pair(tmp_path, nursery):
    """The leader and its replica, with a network between them that can be cut."""
    first, second = free_ports(2)
    link = Proxy((HOST, first))
    await nursery.start(link.run)
    routes = tmp_path / "routes"
    routes.write_text(json.dumps({first: link.port}))
    leader = NodeProcess(tmp_path / "leader", Orders(storage=STORAGE), port=first, log_path=tmp_path / "leader.log")
    replica = NodeProcess(
        tmp_path / "replica",
        Orders(storage=STORAGE, routes=str(routes)),
        port=second,
        options=["--replica-of", f"{HOST}:{first}"],
        log_path=tmp_path / "replica.log",
    )
    yield leader, replica, link
    leader.end_at_once()
    replica.end_at_once()


async def equal(node, other):
    """Returns when both have the same seqs."""
    while True:
        found = [await one.ask(seqs=True) for one in (node, other)]
        if None not in found and found[0]["seqs"] == found[1]["seqs"]:
            return
        await trio.sleep(0.05)


async def rows(url, state="leader"):
    """Keys and values of the feed as a node shows it, in the order of the only partition."""
    found = []
    async with tailrace.connect(url, state=state) as client, client.feed("orders").consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found += [(mutation.key, mutation.value) for mutation in event]
    return found


@pytest.mark.long
async def test_a_replica_is_promoted_by_force_and_the_old_leader_follows_it(pair):
    leader, replica, link = pair
    await start(leader)
    await start(replica)
    index = MemoryIndex()
    both = f"tailrace://{leader.address},{replica.address}"
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(both, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=1, retention="history")
            for number in range(20):
                await feed.put(b"k%d" % number, b"shared")
            await equal(leader, replica)
            async with feed.follow(index) as follower:
                link.cut()
                for number in range(5):
                    await feed.put(b"k%d" % number, b"lost")
                await follower.barrier()
                assert index.snapshot()[b"k0"] == b"lost"

                code, said = await run_command("promote", "--node", replica.address)
                assert (code, "--force" in said) == (1, True), said
                await trio.to_thread.run_sync(leader.kill)
                code, said = await run_command("promote", "--node", replica.address, "--force", "--json")
                assert code == 0, said
                assert json.loads(said)["may_be_lost"]

                await feed.put(b"new", b"here")
                await follower.barrier()
                expected = {b"k%d" % number: b"shared" for number in range(20)} | {b"new": b"here"}
                assert index.snapshot() == expected

        leader.options = ["--replica-of", replica.address]
        await start(leader)
        await equal(leader, replica)
        assert await rows(leader.url, "follower") == await rows(replica.url)
        lost = list((leader.data / "lost").iterdir())
        assert lost, "the rows that the old leader alone had are kept"

        await trio.to_thread.run_sync(replica.stop)
        await trio.to_thread.run_sync(leader.stop)
        for node in (leader, replica):
            code, said = await run_command("verify", str(node.data))
            assert code == 0, said
            node.check_log()
