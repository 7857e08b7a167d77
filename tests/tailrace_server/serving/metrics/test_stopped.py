"""The lag of named consumers that are gone: it grows, for a bounded time and for a bounded number of them."""

from __future__ import annotations

import pytest
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.metrics.test_lag import SECOND, consumer, lag, put_each_second, read, wall  # noqa: F401

import tailrace
from tailrace_server.serving import stopped_consumers


def streams(found, name="c", feed="orders"):
    return found.value("tailrace_consumer_streams", consumer=name, feed=feed)


async def gone(node):
    """Waits until the node knows that no client but the one of the test is there."""
    await until(lambda: not any(connection.rounds.slots for connection in node.connections))


async def test_the_lag_of_a_consumer_that_is_gone_is_0_until_something_is_written_and_grows_then(
    feed,
    running,
    node,
    wall,  # noqa: F811
    scraped,
):
    await put_each_second(feed, wall, 5)
    async with consumer(running) as stream:
        await read(stream, 5)
    await gone(node)
    wall.at_us += 100 * SECOND
    found = await scraped()
    assert (lag(found), streams(found)) == ((0, 0), 0)
    await feed.put(b"k", b"v")
    for seconds in (0, 10, 3_600):
        wall.at_us += seconds * SECOND
        found = await scraped()
    assert (lag(found), streams(found)) == ((3_610, 1), 0)


async def test_what_was_sent_and_not_handled_counts(feed, running, node, wall, scraped):  # noqa: F811
    await put_each_second(feed, wall, 5, key=b"same")
    async with consumer(running) as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                break
    await gone(node)
    assert lag(await scraped())[0] >= 1
    assert lag(await scraped())[1] >= 1


async def test_a_consumer_that_comes_back_is_no_longer_stopped(feed, running, node, wall, scraped):  # noqa: F811
    async with consumer(running) as stream:
        await feed.put(b"k", b"v")
        await read(stream, 1)
    await gone(node)
    assert streams(await scraped()) == 0
    async with consumer(running) as stream:
        await read(stream, 1)
        assert streams(await scraped()) == 4
        assert len(node.services.stopped) == 0


@pytest.mark.parametrize("name", ["", "tailrace tail", "spark source"])
async def test_a_name_that_no_program_has_chosen_is_not_kept(feed, running, node, name):
    async with consumer(running, name=name) as stream:
        await feed.put(b"k", b"v")
        await read(stream, 1)
    await gone(node)
    assert len(node.services.stopped) == 0


async def test_a_stream_that_has_an_end_is_not_kept(feed, running, node):
    await feed.put(b"k", b"v")
    async with consumer(running, until="now") as stream:
        async for _ in stream:
            break
    await gone(node)
    assert len(node.services.stopped) == 0


async def test_it_is_shown_for_a_bounded_time(feed, running, node, scraped):
    async with consumer(running) as stream:
        await feed.put(b"k", b"v")
        await read(stream, 1)
    await gone(node)
    assert streams(await scraped()) == 0
    node.config.limits.stopped_consumer_kept_s = 0
    assert streams(await scraped()) is None


async def test_a_bounded_number_is_kept(feed, running, node, monkeypatch):
    monkeypatch.setattr(stopped_consumers, "STOPPED_MAX", 3)
    await feed.put(b"k", b"v")
    for number in range(6):
        async with consumer(running, name=f"c{number}") as stream:
            await read(stream, 1)
        await gone(node)
    assert [name for name, _ in node.services.stopped._stopped] == ["c3", "c4", "c5"]


async def test_a_feed_that_was_dropped_has_no_stopped_consumers(feed, running, client, node, scraped):
    async with consumer(running) as stream:
        await feed.put(b"k", b"v")
        await read(stream, 1)
    await gone(node)
    await client.drop_feed("orders")
    await scraped()
    assert len(node.services.stopped) == 0
