"""The histograms of a node count each write, look-up, fsync, flush and compaction once."""

from __future__ import annotations

import pytest

import tailrace
from tailrace_server.serving.metrics.catalogue import CATALOGUE, Kind

HISTOGRAMS = [name for name, metric in CATALOGUE.items() if metric.kind is Kind.HISTOGRAM]


def counts(found):
    """The number of durations in each histogram that has any, by name and labels."""
    return {key: value for key, value in found.samples.items() if key[0].endswith("_seconds_count") and value}


async def test_each_histogram_is_there_from_the_start_with_its_greatest_bucket(scraped):
    found = await scraped()
    for name in HISTOGRAMS:
        assert found.types[name] == "histogram"
        assert {labels for of, labels in found.samples if of == f"{name}_bucket" and ("le", "+Inf") in labels}


@pytest.mark.parametrize("level", ["memory", "disk"])
async def test_a_write_counts_at_its_level(feed, scraped, level):
    for count in (1, 2):
        await feed.put(b"a", b"1", level=level)
        found = await scraped()
        written = {key: value for key, value in counts(found).items() if key[0].startswith("tailrace_write")}
        assert written == {("tailrace_write_seconds_count", (("level", level),)): count}
        assert found.value("tailrace_write_seconds_sum", level=level) > 0


async def test_a_refused_write_does_not_count(feed, scraped):
    await feed.put(b"a", b"1")
    with pytest.raises(tailrace.VersionConflict):
        await feed.put(b"a", b"2", if_absent=True)
    assert (await scraped()).value("tailrace_write_seconds_count", level="disk") == 1


async def test_a_look_up_counts_once(feed, scraped):
    await feed.put(b"a", b"1")
    await feed.get(b"a")
    await feed.get_many([b"a", b"b"])
    found = await scraped()
    assert found.value("tailrace_get_seconds_count") == found.value("tailrace_requests_total", opcode="GET")


async def test_fsyncs_and_flushes_count_as_often_as_they_happen(feed, scraped, running):
    await feed.put(b"a", b"1")
    storage = running.node.storage
    for partition in running.node.feeds.partitions():
        await storage.flusher.flush_all(partition)
    found = await scraped()
    assert found.value("tailrace_flush_seconds_count") == found.value("tailrace_flushes_total") > 0
    assert found.value("tailrace_journal_fsync_seconds_count") == found.value("tailrace_journal_fsyncs_total") > 0


async def test_buckets_rise_up_to_the_count(feed, scraped):
    for number in range(20):
        await feed.put(b"%d" % number, b"1")
    found = await scraped()
    buckets = [value for (name, _), value in found.samples.items() if name == "tailrace_journal_fsync_seconds_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found.value("tailrace_journal_fsync_seconds_count")
