"""What a node tells Prometheus."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from tests.tailrace_server.serving.metrics.promtool import promtool

import tailrace
from tailrace_server.feeds.feed import SYSTEM_FEED_NAME
from tailrace_server.serving.metrics import scrape as scrape_module
from tailrace_server.serving.metrics.catalogue import CATALOGUE, FEEDS_MAX, OTHER, SUBJECTS


async def test_a_new_node_has_every_metric_without_labels(scraped):
    found = await scraped()
    bare = {name for name, metric in CATALOGUE.items() if not metric.labels}
    assert bare <= {name.removesuffix("_bucket") for name, _ in found.samples}
    assert found.value("tailrace_healthy") == found.value("tailrace_leader") == 1


async def test_writes_are_counted_by_block(feed, scraped):
    before = await scraped()
    await feed.put(b"a", b"1")
    async with feed.writer() as writer:
        for number in range(100):
            await writer.put(b"k%d" % number, b"v")
    after = await scraped()
    grown = {name: after.value(name) - before.value(name) for name in CATALOGUE if before.value(name) is not None}
    assert grown["tailrace_written_mutations_total"] == 101
    assert 2 <= grown["tailrace_written_blocks_total"] <= 101
    assert grown["tailrace_written_bytes_total"] > 101
    assert after.value("tailrace_feed_mutations", feed="orders") == 101
    assert after.value("tailrace_feed_durable_mutations", feed="orders") == 101
    assert after.value("tailrace_feed_partitions", feed="orders") == 4
    assert after.value("tailrace_requests_total", opcode="WRITE") == after.value("tailrace_written_blocks_total")
    assert after.value("tailrace_journal_fsyncs_total") > 0


async def test_a_resend_and_a_refusal_are_no_writes(feed, scraped):
    await feed.put(b"a", b"1")
    before = await scraped()
    with pytest.raises(tailrace.VersionConflict):
        await feed.put(b"a", b"2", if_absent=True)
    after = await scraped()
    assert after.value("tailrace_written_blocks_total") == before.value("tailrace_written_blocks_total")


async def test_errors_are_counted_by_type(client, scraped):
    with pytest.raises(tailrace.UnknownFeed):
        await client.feed("nothing").put(b"a", b"1")
    assert (await scraped()).value("tailrace_errors_total", type="UnknownFeed") >= 1


async def test_streams_and_what_was_sent(feed, scraped):
    await feed.put(b"a", b"1")
    async with feed.consume() as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                break
        found = await scraped()
        assert found.value("tailrace_streams", peer="consumer") == 4
    sent = await scraped()
    assert sent.value("tailrace_sent_blocks_total") == 1
    assert sent.value("tailrace_sent_bytes_total") > 0
    assert sent.value("tailrace_streams_opened_total") == 4


async def test_a_counter_keeps_what_ended_connections_have_sent(feed, scraped, running):
    await feed.put(b"a", b"1")
    for count in (1, 2, 3):
        async with feed.consume(until="now") as stream:
            async for _ in stream:
                pass
        await trio.testing.wait_all_tasks_blocked()
        assert (await scraped()).value("tailrace_sent_blocks_total") == count


async def test_partitions_have_series_on_request_only(client, feed, scraped):
    await client.create_feed("others", partitions=2)
    partitions = [metric.name for metric in SUBJECTS["Partitions, on request"]]
    assert not any(name in partitions for name, _ in (await scraped()).samples)
    found = await scraped("orders")
    for name in partitions:
        assert found.by(name, "partition").keys() == {"0", "1", "2", "3"}
        assert found.by(name, "feed").keys() == {"orders"}
    assert not any(name in partitions for name, _ in (await scraped("nothing")).samples)


@pytest.mark.slow
async def test_feeds_above_the_bound_share_a_series(client, scraped, monkeypatch):
    for number in range(FEEDS_MAX + 2):
        await client.create_feed(f"f{number:03}", partitions=3)
    found = (await scraped()).by("tailrace_feed_partitions", "feed")
    assert len(found) == FEEDS_MAX + 1
    assert found[OTHER] == 6
    assert SYSTEM_FEED_NAME not in found


async def test_others_have_the_loop_during_a_scrape(client, scraped, monkeypatch):
    """With no time for a slice, each step of a scrape gives way."""
    await client.create_feed("many", partitions=1_000)
    monkeypatch.setattr(scrape_module, "SLICE_SECONDS", 0.0)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        found = await scraped()
        nursery.cancel_scope.cancel()
    assert found.value("tailrace_partitions") == 1_000
    assert turns > 1_000 / 16 / 2


@pytest.mark.slow
async def test_a_feed_that_is_dropped_during_a_scrape_does_no_harm(client, feed, scraped, monkeypatch):
    monkeypatch.setattr(scrape_module, "SLICE_SECONDS", 0.0)
    for number in range(20):
        await client.create_feed(f"f{number}", partitions=20)

    async def drop():
        for number in range(20):
            await client.drop_feed(f"f{number}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drop)
        for _ in range(5):
            await scraped()
    assert (await scraped()).by("tailrace_feed_partitions", "feed") == {"orders": 4}


async def test_openmetrics_is_given_to_who_asks_for_it(running):
    body, content_type = await running.node.metrics("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.slow
async def test_promtool_finds_nothing_wrong(feed, scraped):
    await feed.put(b"a", b"1")
    await feed.get(b"a")
    async with feed.consume() as stream:
        await stream.__anext__()
        found = await scraped("orders")
    assert promtool("check", "metrics", text=found.text) == ""
