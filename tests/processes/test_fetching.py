"""Fetches beside kills and handovers of leaders: each has every row that was acknowledged before it began."""

from __future__ import annotations

import random

import pytest
import trio

import tailrace
from tailrace import SegmentReader

from .group import Group, run_command, start
from .program import Orders

PARTITIONS = 3
ROUNDS = 12
ROUND_SECONDS_MAX = 60.0
# A round ends the leader this many seconds after its fetch has begun, at most.
DELAY_SECONDS_MAX = 1.5


@pytest.fixture
async def group(tmp_path, nursery):
    made = Group(tmp_path, 3, Orders(), failover="auto")
    await made.connect(nursery)
    yield made
    made.end_at_once()


class Acknowledged:
    """Writes at level quorum for ever, and knows the version of the last acknowledged write of each key."""

    def __init__(self, feed, rnd):
        self._feed = feed
        self._random = rnd
        self.versions = {}
        self.rows = 0

    async def write(self):
        number = 0
        while True:
            number += 1
            key = b"%d" % self._random.randrange(200)
            version = await self._feed.put(key, b"%d" % number, level="quorum")
            self.versions[key] = version.seq
            self.rows += 1


async def end_leader(group, rnd):
    """Kills the leader, or hands over, some time after a fetch has begun. Returns what was done."""
    await trio.sleep(rnd.random() * DELAY_SECONDS_MAX)
    leader = await group.leader()
    if leader is None:
        return "no leader"
    if rnd.random() < 0.6:
        await group.kill(leader)
        await trio.sleep(rnd.random())
        await start(leader)
        return "kill"
    other = rnd.choice([node for node in group.nodes if node is not leader])
    code, _ = await run_command("handover", "--to", f"127.0.0.1:{other.port}", "--node", leader.address)
    return "handover" if code == 0 else "handover refused"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2))
async def test_each_fetch_has_what_was_acknowledged_before_it_began(group, tmp_path, seed):
    await fetch_in_rounds(group, tmp_path, random.Random(seed), ROUNDS)


async def fetch_in_rounds(group, folder, rnd, rounds):
    """Fetches beside a writer and the ends of leaders, and returns the counts of what happened."""
    counts = {"rows": 0, "fetches": 0, "compared": 0}
    await group.start(group.nodes)
    async with tailrace.connect(group.url, retry_for=ROUND_SECONDS_MAX) as client, trio.open_nursery() as nursery:
        feed = await client.create_feed("orders", partitions=PARTITIONS)
        writer = Acknowledged(feed, rnd)
        nursery.start_soon(writer.write)
        for _ in range(rounds):
            with trio.fail_after(ROUND_SECONDS_MAX):
                async with trio.open_nursery() as ending:

                    async def end():
                        done = await end_leader(group, rnd)
                        counts[done] = counts.get(done, 0) + 1

                    ending.start_soon(end)
                    while True:
                        await fetch_and_compare(feed, folder / "copy", writer, counts)
                        if not ending.child_tasks:
                            break
        counts["rows"] = writer.rows
        nursery.cancel_scope.cancel()
    await group.stop()
    await group.verify()
    return counts


async def fetch_and_compare(feed, path, writer, counts):
    """Fetches the feed, and checks that the copy has each acknowledged write, or a later one of its key."""
    before = dict(writer.versions)
    await feed.fetch(path, visibility="quorum")
    counts["fetches"] += 1
    reader = SegmentReader(path)
    for key, seq in before.items():
        item = reader.get(key)
        assert item is not None, f"{key!r} of seq {seq} is missing"
        assert item.version.seq >= seq, f"{key!r} is of seq {item.version.seq}, not {seq}"
        counts["compared"] += 1
