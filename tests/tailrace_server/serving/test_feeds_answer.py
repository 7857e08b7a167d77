"""Answers that tell of all feeds: no step of the loop tells of more than a few, if there are many."""

import json

import pytest
from tests.visits import Visits

from tailrace.wire.bodies import decode_json
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica, ReplicaAck
from tailrace_server.replication import in_turns
from tailrace_server.replication.replicas import Peer
from tailrace_server.serving import feed_requests, status
from tailrace_server.serving.feeds_answer import Told, encode_with_feeds

FEEDS = 20
TOGETHER = 4


@pytest.fixture
def node(running, monkeypatch):
    """A node with many feeds, of which one turn tells few."""
    for number in range(FEEDS):
        running.node.feed_changes.create({"name": f"feed-{number:02}", "feed_id": f"{number + 32:02x}" * 16})
    monkeypatch.setattr(in_turns, "LOOKS_AT_ONCE", TOGETHER)
    return running.node


async def asked(greeted, opcode):
    return decode_json((await greeted.ask(opcode, b"{}", id=9)).body, "RESULT")


async def test_status_is_told_in_many_steps(greeted, node, monkeypatch):
    with Visits().of(monkeypatch, status, "_feed_status") as told:
        found = await asked(greeted, Opcode.STATUS)
    assert told.most <= TOGETHER
    assert found["feeds"] == json.loads(json.dumps(node.status()["feeds"]))
    assert found.keys() == node.status().keys()


async def test_feeds_are_listed_in_many_steps(greeted, node, monkeypatch):
    with Visits().of(monkeypatch, feed_requests, "info_to_json") as told:
        found = await asked(greeted, Opcode.LIST_FEEDS)
    assert told.most <= TOGETHER
    assert [feed["name"] for feed in found["feeds"]] == [feed.info.name for feed in node.feeds]


async def test_the_body_of_http_is_made_in_many_steps(node, monkeypatch):
    with Visits().of(monkeypatch, status, "_feed_status") as told:
        body = await node.status_body()
    assert told.most <= TOGETHER
    assert json.loads(body).keys() == node.status().keys()


async def test_a_feed_that_is_dropped_meanwhile_is_left_out(node):
    first, *_, last = node.feeds

    def tell(feed):
        if feed is first:
            node.feed_changes.drop(last.info.feed_id)
        return Told({"name": feed.info.name})

    told = json.loads(await encode_with_feeds(node.feeds, {}, tell))
    assert [feed["name"] for feed in told["feeds"]] == [f"feed-{number:02}" for number in range(FEEDS - 1)]


@pytest.fixture
def wide(node):
    """The node, with a feed of many partitions."""
    node.feed_changes.create({"name": "wide", "feed_id": "ee" * 16, "partitions": FEEDS})
    return node


async def test_a_feed_of_many_partitions_is_told_in_many_steps(greeted, wide, monkeypatch):
    with Visits().of(monkeypatch, status, "_partition_status") as told:
        found = await asked(greeted, Opcode.STATUS)
    assert told.most <= TOGETHER
    [feed] = [feed for feed in found["feeds"] if feed["name"] == "wide"]
    assert [state["id"] for state in feed["states"]] == list(range(FEEDS))


async def test_what_followers_lack_is_counted_in_many_steps(greeted, node, monkeypatch):
    """One follower has acknowledged nothing, and another one the list of the feeds."""
    partitions = list(node.leaderships.unnamed.group)
    [system] = node.feeds.system.partitions
    replicas = node.leaderships.unnamed.replicas
    for number in range(2):
        replica = Replica(bytes([number]) * 16, 0, f"127.0.0.1:{number + 1}", False, bytes(16))
        for each in partitions:
            replicas.opened(replica, each)
    replicas.acknowledged(bytes([1]) * 16, system, ReplicaAck(0, system.log.branch, system.high_seq), 0.0)
    with Visits().of(monkeypatch, Peer, "lag") as looks, Visits().of(monkeypatch, Peer, "missing") as missing:
        found = await asked(greeted, Opcode.STATUS)
    assert looks.total >= 2 * len(partitions)
    assert max(looks.most, missing.most) <= 2 * TOGETHER  # of each of them
    assert [each["lag"] for each in found["replication"]["replicas"]] == [system.high_seq, 0]
    assert found["replication"]["promotion"] == node.status()["replication"]["promotion"]
    assert f"127.0.0.1:1 lacks about {system.high_seq} mutations" in found["replication"]["promotion"]
