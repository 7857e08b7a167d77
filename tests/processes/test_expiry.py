"""Keys expire in a set of processes: if the leader is killed before their time, the next one deletes them."""

from __future__ import annotations

import pytest
import trio

import tailrace
from tailrace import Mutations

from .group import Group, start
from .program import Orders

pytestmark = pytest.mark.slow

SECONDS_MAX = 120.0
TTL_S = 3


@pytest.fixture
async def group(tmp_path, nursery):
    group = Group(tmp_path, 3, Orders(), failover="auto")
    await group.connect(nursery)
    await group.start(group.nodes)
    yield group
    group.network.heal()
    group.end_at_once()


async def rows_of(url):
    """Returns (key, value, seq, expired) of each mutation that a node has, by partition."""
    rows = {}
    async with tailrace.connect(url) as client, client.feed("sessions").consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found = [(row.key, row.value, row.seq, row.expired) for row in event]
                rows.setdefault(event.partition, []).extend(found)
    return rows


async def test_the_next_leader_deletes_what_is_due(group):
    short, long = [b"short %d" % n for n in range(30)], [b"long %d" % n for n in range(30)]
    with trio.fail_after(SECONDS_MAX):
        async with tailrace.connect(group.url, retry_for=100) as client:
            feed = await client.create_feed("sessions", partitions=2, retention="history")
            await feed.write([tailrace.Put(key, b"v", 1_000) for key in long], level="quorum")
            # In one write with the later value of its key: on a slow machine the first one would expire before.
            again = tailrace.Put(short[0], b"again", 1_000)
            await feed.write([*(tailrace.Put(key, b"v", TTL_S) for key in short), again], level="quorum")
            while (leader := await group.leader()) is None:  # noqa: ASYNC110 - another process
                await trio.sleep(0.1)
            await group.kill(leader)
            while any(await feed.get_many(short[1:])):  # noqa: ASYNC110 - the node tells of it to streams only
                await trio.sleep(0.1)
            items = {item.key async for item in feed.items()}
        assert items == {short[0], *long}
        await start(leader)
        while True:  # all nodes tell the same, the one that was killed, too
            first, *others = [await rows_of(f"tailrace://127.0.0.1:{node.port}") for node in group.nodes]
            if all(rows == first for rows in others):
                break
            await trio.sleep(0.1)
    expired = [key for rows in first.values() for key, _, _, is_expired in rows if is_expired]
    assert sorted(expired) == sorted(short[1:])
