"""A feed's own level in a set of processes: set by the command line, and kept by a failover."""

from __future__ import annotations

import json
import re
import urllib.request
from collections import Counter

import pytest
import trio

import tailrace
from tailrace.testing.ports import free_port

from .group import Group, run_command
from .node import HOST

pytestmark = pytest.mark.slow

SECONDS_MAX = 240.0


@pytest.fixture
async def group(tmp_path, nursery):
    group = Group(tmp_path, 3, failover="auto")
    for node in group.nodes:
        node.http = f"{HOST}:{free_port()}"
    await group.connect(nursery)
    await group.start(group.nodes)
    yield group
    group.end_at_once()


async def command(group, *arguments):
    """What a command of ``tailrace feed`` prints at any node that leads."""
    code, out = await run_command("feed", *arguments, "--url", group.url, "--json")
    assert code == 0, out
    return json.loads(out)


async def written_at(group):
    """How many writes the processes that run have answered at each level."""
    counts = Counter()
    for node in group.running():
        with await trio.to_thread.run_sync(urllib.request.urlopen, f"http://{node.http}/metrics") as response:
            text = response.read().decode()
        for level, count in re.findall(r'write_seconds_count{level="(\w+)"} (\S+)', text):
            counts[level] += float(count)
    return counts


async def leader_of(group):
    while True:
        leader = await group.leader()
        if leader is not None:
            return leader
        await trio.sleep(0.1)


async def test_a_failover_keeps_the_level_and_default_takes_it_away(group):
    with trio.fail_after(SECONDS_MAX):
        created = await command(group, "create", "orders", "--partitions", "1", "--level", "memory")
        assert created["level"] == "memory"
        assert (await command(group, "set", "orders", "--level", "disk"))["level"] == "disk"
        former = await leader_of(group)
        await group.kill(former)
        async with tailrace.connect(group.url, retry_for=100) as client:
            await client.feed("orders").put(b"k", b"v")
            counts = await written_at(group)
            assert counts["disk"] >= 1
            assert counts["quorum"] == counts["memory"] == 0
            assert (await command(group, "set", "orders", "--level", "default"))["level"] is None
            await client.feed("orders").put(b"k", b"w")
        assert (await written_at(group))["quorum"] >= 1
        await group.start([former])
        while True:  # it has the newest settings, once it has followed
            code, out = await run_command("status", "--json", "--url", former.url)
            assert code == 0, out
            if [feed["level"] for feed in json.loads(out)["feeds"]] == [None]:
                return
            await trio.sleep(0.1)
