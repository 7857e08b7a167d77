"""A rolling update of a set of three processes under load: one member after the other is stopped, and is newer then."""

from __future__ import annotations

import dataclasses
import inspect
import json
import urllib.request
from functools import partial

import pytest
import trio

import tailrace
from tailrace.testing.ports import free_port

from .group import Group, run_command
from .group import start as start_node
from .node import HOST
from .program import Orders

pytestmark = pytest.mark.long

SECONDS_MAX = 240.0
POLL_S = 0.05
# So many writes are acknowledged between two steps: the set serves meanwhile.
WRITES_BETWEEN = 20
OLD, NEW = f"tailrace {tailrace.__version__}", "tailrace 9.8.7"
# What makes a process say that it is of another release.
NEWER = "from tailrace import _version\n_version.__version__ = '9.8.7'\n"


@pytest.fixture
async def group(tmp_path):
    made = Group(tmp_path, 3, Orders(), failover="auto")
    made.nodes[0].http = f"{HOST}:{free_port()}"
    try:
        await made.start(made.nodes)
        yield made
        await made.stop()
        for node in made.nodes:
            node.check_log()
    finally:
        made.end_at_once()


class Writer:
    """Writes numbers to one history, each after the one before is acknowledged by a majority."""

    def __init__(self, feed):
        self._feed = feed
        self.acknowledged = 0
        self.stops = False

    async def run(self):
        while not self.stops:
            await self._feed.put(b"key %d" % (self.acknowledged % 7), b"%d" % self.acknowledged, level="quorum")
            self.acknowledged += 1

    async def goes_on(self):
        """Waits until some more writes are acknowledged."""
        wanted = self.acknowledged + WRITES_BETWEEN
        await until(lambda: self.acknowledged >= wanted)


class Consumer:
    """Reads the history from its beginning."""

    def __init__(self, feed):
        self._feed = feed
        self.numbers = []
        self.rollbacks = []

    async def run(self):
        async with self._feed.consume() as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    self.numbers += [int(row.value) for row in event]
                elif isinstance(event, tailrace.Rollback):
                    self.rollbacks.append(event)


async def until(holds):
    """Returns once ``holds``, a function or a coroutine function, returns true."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await trio.sleep(POLL_S)


async def software_of(node):
    """What the status of a node tells of each member; None for one that does not answer it."""
    async with tailrace.connect(node.url, state="any", retry_for=SECONDS_MAX) as client:
        return members_of(node, (await client.status()).details)


def members_of(node, details):
    others = {other["address"]: other.get("software") for other in details["replication"]["others"]}
    return {node.address: details["software"], **others}


async def is_voter_without_lag(group, node):
    """Whether the leader has the member as a voter that holds all rows, as the guide on upgrades asks for."""
    leader = await group.leader()
    if leader is None:
        return False
    if leader is node:
        return True
    async with tailrace.connect(leader.url, state="any", retry_for=SECONDS_MAX) as client:
        replicas = (await client.status()).details["replication"]["replicas"]
    found = [each for each in replicas if each["address"] == node.address]
    return bool(found) and all(each["votes"] and each["connected"] and not each["lag"] for each in found)


async def update(group, node, writer):
    """Stops a member with SIGTERM and starts it as the newer release; writes go on while it is away."""
    await trio.to_thread.run_sync(node.stop)
    await writer.goes_on()
    node.orders = dataclasses.replace(node.orders, planted=NEWER)
    await start_node(node)
    await until(partial(is_voter_without_lag, group, node))
    await writer.goes_on()


async def knows(node, software):
    """Waits until the status of a node tells this of each member."""

    async def is_told():
        return await software_of(node) == software

    await until(is_told)


def told(software):
    """What ``tailrace status`` prints of the members."""
    if set(software.values()) == {NEW}:
        return f"all members: {NEW}"
    return "members: " + ", ".join(f"{address} {version}" for address, version in software.items())


async def printed(node):
    """What ``tailrace status`` prints, as one line."""
    code, said = await run_command("status", "--node", node.address)
    assert code == 0, said
    return " ".join(said.split())


async def over_http(node):
    """What ``/api/status`` tells of each member."""
    with await trio.to_thread.run_sync(urllib.request.urlopen, f"http://{node.http}/api/status") as answer:
        return members_of(node, json.load(answer))


async def test_no_write_is_lost_and_the_status_shows_how_far_the_update_has_come(group):
    software = dict.fromkeys([node.address for node in group.nodes], OLD)
    async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client, trio.open_nursery() as nursery:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        writer, consumer = Writer(feed), Consumer(feed)
        nursery.start_soon(writer.run)
        nursery.start_soon(consumer.run)
        await writer.goes_on()
        leader = await group.leader()
        # Followers first, then the leader, which hands over when it is stopped.
        for node in sorted(group.nodes, key=lambda each: each is leader):
            await update(group, node, writer)
            software[node.address] = NEW
            for each in group.nodes:
                await knows(each, software)
            assert told(software) in await printed(group.nodes[0])
            assert await over_http(group.nodes[0]) == software
        writer.stops = True
        await until(lambda: len(consumer.numbers) >= writer.acknowledged)
        nursery.cancel_scope.cancel()
    assert consumer.rollbacks == []
    assert consumer.numbers == list(range(len(consumer.numbers)))
    assert len(consumer.numbers) >= writer.acknowledged
