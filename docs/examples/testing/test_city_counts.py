"""Tests of a program that follows a feed: after a crash, a loss of writes, a network that is cut, and a failover."""

import pytest
from city_counts import CityCounts

import tailrace
import tailrace.testing

ROME, PARIS = b'{"city": "Rome"}', b'{"city": "Paris"}'


def read_until(kind, stream, counts):
    """Hands events over until one of this kind has come."""
    for event in stream:
        counts.take(event)
        if isinstance(event, kind):
            return


def test_orders_are_counted(tailrace_node):
    with tailrace.blocking.connect(tailrace_node.url) as client:
        shop = client.create_feed("shop", partitions=4)
        shop.put(b"o-1", ROME)
        tailrace_node.kill()
        tailrace_node.start()
        shop.put(b"o-2", PARIS)
        counts = CityCounts()
        with shop.consume(until="now") as stream:
            for event in stream:
                counts.take(event)
    assert counts.by_city() == {"Rome": 1, "Paris": 1}


def test_lost_orders_are_not_counted(tailrace_node):
    counts = CityCounts()
    with tailrace.blocking.connect(tailrace_node.url) as client:
        shop = client.create_feed("shop", partitions=1)
        shop.put(b"o-1", ROME)
        with shop.consume() as stream:
            read_until(tailrace.Mutations, stream, counts)
            with tailrace_node.lose_writes():
                shop.put(b"o-1", PARIS)
                read_until(tailrace.Mutations, stream, counts)
            read_until(tailrace.Rollback, stream, counts)
            read_until(tailrace.Mutations, stream, counts)
    assert counts.by_city() == {"Rome": 1}


def list_feeds(url, **options):
    with tailrace.blocking.connect(url, **options) as client:
        return client.feeds()


def test_a_node_that_cannot_be_reached(tailrace_shared_node):
    with tailrace_shared_node.cut(), pytest.raises(tailrace.Unreachable):
        list_feeds(tailrace_shared_node.url, connect_timeout=0.2)
    list_feeds(tailrace_shared_node.url)


@pytest.mark.trio
async def test_orders_survive_a_failover(tailrace_set):
    async with tailrace.connect(tailrace_set.url) as client:
        shop = await client.create_feed("shop", partitions=4)
        await shop.put(b"o-1", ROME, level="quorum")
        tailrace_set.failover()
        assert (await shop.get(b"o-1")).value == ROME
        tailrace_set.start()  # the former leader, too


def test_without_fixtures():
    with tailrace.testing.node() as node, tailrace.blocking.connect(node.url) as client:
        assert client.feeds() == []
