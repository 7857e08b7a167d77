"""A leader that is cut off from the others, and does not know that it was deposed: what is read from it."""

from __future__ import annotations

from functools import partial

import pytest
import trio

import tailrace
from pyspark_tailrace.reading.feed_client import FeedClient
from pyspark_tailrace.reading.options import batch_options
from tailrace import Mutations, Retryable, Unreachable

from .group import Group
from .program import Orders

pytestmark = pytest.mark.slow

PARTITIONS = 2
ROWS = {b"%d" % number: b"new" for number in range(20)}
SECONDS_MAX = 60.0


@pytest.fixture
async def group(tmp_path, nursery):
    made = Group(tmp_path, 3, Orders(), failover="auto")
    await made.connect(nursery)
    await made.start(made.nodes)
    yield made
    made.end_at_once()


async def leader_but(group, other=None):
    """The leader, once there is one that is not ``other``."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            leader = await group.leader()
            if leader is not None and leader is not other:
                return leader
            await trio.sleep(0.1)


async def values(feed, **options):
    """The rows up to now."""
    found = {}
    async with feed.consume(until="now", **options) as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found |= dict(zip(event.keys(), event.values(), strict=True))
    return found


async def items(feed):
    return {item.key: item.value async for item in feed.items()}


async def planned(url, level):
    """The number of seqs that a batch of Spark would read."""
    options = batch_options({"url": url, "feed": "orders", "retry_for": "4", "visibility": level})

    def plan():
        client = FeedClient(options)
        try:
            return sum(partition.visible_seq for partition in client.confirmed_feed().partitions.values())
        finally:
            client.close()

    return await trio.to_thread.run_sync(plan)


async def is_refused(error, read, *arguments):
    with pytest.raises(error):
        await read(*arguments)


async def has_no_end(feed, level):
    with trio.move_on_after(4) as scope:
        await values(feed, visibility=level)
    assert scope.cancelled_caught


async def test_no_read_of_a_deposed_leader_leaves_acknowledged_rows_out(group):
    first = await leader_but(group)
    async with tailrace.connect(group.url, retry_for=SECONDS_MAX) as client:
        feed = await client.create_feed("orders", partitions=PARTITIONS)
        for key in ROWS:
            await feed.put(key, b"old", level="quorum")
    group.network.cut_off(first)
    second = await leader_but(group, first)
    async with tailrace.connect(second.url, retry_for=SECONDS_MAX) as client:
        versions = {key: await client.feed("orders").put(key, b"new", level="quorum") for key in ROWS}
    assert (await first.ask())["role"] == "leader", "it does not know that it was deposed"

    async with tailrace.connect(first.url, retry_for=4) as client, trio.open_nursery() as nursery:
        feed = client.feed("orders")
        for key in list(ROWS)[:2]:
            nursery.start_soon(is_refused, Unreachable, partial(feed.get, key, at_least=versions[key]))
        nursery.start_soon(is_refused, Unreachable, items, feed)
        for level in ("disk", "quorum"):
            nursery.start_soon(has_no_end, feed, level)
            nursery.start_soon(is_refused, Retryable, planned, first.url, level)

    url = f"tailrace://{first.address},{second.address}"
    async with tailrace.connect(url, retry_for=SECONDS_MAX) as client:
        feed = client.feed("orders")
        for key in ROWS:
            assert (await feed.get(key, at_least=versions[key])).value == b"new"
        with trio.fail_after(SECONDS_MAX):
            assert await values(feed) == ROWS
        assert await items(feed) == ROWS
    assert await planned(url, "quorum") == await planned(second.url, "disk") >= 2 * len(ROWS)

    async with tailrace.connect(first.url, state="any", retry_for=SECONDS_MAX) as client:
        found = await values(client.feed("orders"))
        assert set(found.values()) == {b"old"}, "any node was asked for"
    group.network.heal()
    async with tailrace.connect(first.url, retry_for=SECONDS_MAX) as client:
        for key in ROWS:
            assert (await client.feed("orders").get(key, at_least=versions[key])).value == b"new"
