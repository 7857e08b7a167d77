"""What the nodes of a set tell Prometheus."""

from __future__ import annotations

import time

import pytest
from tests.tailrace_server.replication.made_set import make_set, publish_one, put, until
from tests.tailrace_server.serving.metrics.conftest import scrape

pytestmark = pytest.mark.slow


def sinks(node):
    return [found for partition in node.node.feeds.named("orders").partitions for found in partition.sinks.published()]


@pytest.fixture
async def nodes(tmp_path, nursery):
    made = make_set(tmp_path, nursery)
    await made.start()
    await made.settled()
    return made


async def test_the_leader_tells_of_its_followers_and_they_of_their_leader(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, {b"a": b"1"})
        leader = await nodes.level("orders")
        found = await scrape(leader.node)
        others = {str(node.address) for node in nodes if node is not leader}
        assert found.value("tailrace_leader") == 1
        assert found.value("tailrace_members") == 3
        assert found.value("tailrace_term") == found.value("tailrace_promised_term") >= 1
        assert found.value("tailrace_quorum_lag_mutations") == 0
        assert found.by("tailrace_replica_connected", "replica") == dict.fromkeys(others, 1)
        assert found.by("tailrace_replica_lag_mutations", "replica").keys() == others
        assert found.value("tailrace_write_seconds_count", level="quorum") == 1
        for node in nodes:
            if node is not leader:
                partitions = list(node.node.feeds.partitions())
                await until(lambda them=partitions: all(p.durable_seq >= p.leader_durable_seq for p in them))
                told = await scrape(node.node)
                assert told.value("tailrace_leader") == told.value("tailrace_leader_lag_mutations") == 0
                assert told.value("tailrace_feed_mutations", feed="orders") == 1
                assert told.by("tailrace_replica_connected", "replica") == {}

        began_at = time.time()
        await publish_one(feed)
        found = await scrape(leader.node)
        assert found.value("tailrace_sink_last_batch", feed="orders", sink="job") == 1
        published_at = found.value("tailrace_sink_last_batch_timestamp_seconds", feed="orders", sink="job")
        assert began_at - 0.001 <= published_at <= time.time()
        for node in nodes:  # a follower has the batch, and the leader's time of it
            label = {"feed": "orders", "sink": "job"}
            await until(lambda them=node: dict(sinks(them)).get("job") is not None)
            told = await scrape(node.node)
            assert told.value("tailrace_sink_last_batch_timestamp_seconds", **label) == published_at
        assert found.value("tailrace_published_batches_total") == 1


async def test_a_follower_that_is_away_falls_behind_in_the_leaders_metrics(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, {b"a": b"1"})
        leader = await nodes.level("orders")
        away = next(node for node in nodes if node is not leader)
        peers = leader.node.leaderships.system.replicas.peers.values()
        await until(lambda: not any(peer.lag(p) for peer in peers for p in leader.node.feeds.partitions()))
        await away.stop()
        await put(feed, {b"%d" % number: b"v" for number in range(5)})
        await until(lambda: not all(peer.is_connected for peer in peers))
        staying = next(peer for peer in peers if peer.is_connected)
        await until(lambda: not any(staying.lag(p) for p in leader.node.feeds.partitions()))
        found = await scrape(leader.node)
        assert found.value("tailrace_replica_connected", replica=str(away.address)) == 0
        assert found.value("tailrace_replica_lag_mutations", replica=str(away.address)) == 5
        assert found.value("tailrace_quorum_lag_mutations") == 0
        await until(lambda: None in leader.member.peers.states.values())
        assert (await scrape(leader.node)).value("tailrace_members_answering") == 2
