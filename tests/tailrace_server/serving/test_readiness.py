"""A node is ready while it serves clients, and healthy while nothing is wrong with it."""

from __future__ import annotations

import json

import pytest
import trio
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of
from tests.tailrace_server.replication.made_set import POLL_SECONDS, make_set
from tests.tailrace_server.serving.console.test_app import get

from tailrace.errors import NotDurable
from tailrace_server.journal import JournalFailed
from tailrace_server.partition.writing import append_block
from tailrace_server.segment import SegmentDamaged
from tailrace_server.serving import readiness

FAR_LONGER_S = 60.0  # than a follower takes on a busy machine


async def probe(node, path):
    """The code, and the JSON."""
    code, _, body = await get(node, path)
    return code, json.loads(body)


@pytest.fixture
async def nodes(tmp_path, nursery):
    made = make_set(tmp_path, nursery)
    await made.start()
    await made.settled()
    return made


async def test_a_node_that_is_alone_is_ready_at_once(running):
    assert await probe(running.node, "/readyz") == (200, {"ready": True, "role": "leader", "failure": None})
    assert await probe(running.node, "/healthz") == (200, {"healthy": True, "failure": None})


async def test_a_failed_disk(running, feed):
    def fail():
        raise JournalFailed("fsync: input/output error")

    node = running.node
    node.storage.journal.sync = fail
    partition = node.feeds.named("orders").partitions[PARTITION]
    append_block(partition, block_of(KEY), node.storage.journal, now_us=1, now=0.0)
    with pytest.raises(NotDurable):
        await node.storage.all_durable()
    for path, name in (("/healthz", "healthy"), ("/readyz", "ready")):
        code, told = await probe(running.node, path)
        assert (code, told[name]) == (503, False)
        assert "fsync: input/output error" in told["failure"]


async def test_a_damaged_segment_is_unhealthy_and_others_are_served(running):
    running.node.storage.found_damage(SegmentDamaged("/some/segment", 7, "a test has damaged it"))
    code, told = await probe(running.node, "/healthz")
    assert (code, told["healthy"]) == (503, False)
    assert "/some/segment" in told["failure"]
    assert (await probe(running.node, "/readyz"))[0] == 200


@pytest.mark.slow
async def test_all_nodes_of_a_set_are_ready_and_without_a_majority_none_is(nodes):
    leader = nodes.leader
    for node in nodes:
        await _until_code(node, "/readyz", 200)
        await _until_code(node, "/healthz", 200)
        assert (await probe(node.node, "/readyz"))[1]["role"] == ("leader" if node is leader else "follower")
    others = [node for node in nodes if node is not leader]
    for node in others:
        await node.kill()
    for path in ("/healthz", "/readyz"):
        told = await _until_code(leader, path, 503)
        assert told["failure"]
    await others[0].start()
    for node in (leader, others[0]):
        await _until_code(node, "/readyz", 200)
        await _until_code(node, "/healthz", 200)
    await leader.kill()
    told = await _until_code(others[0], "/readyz", 503)
    assert told["failure"]


@pytest.mark.slow
async def test_a_follower_of_a_feed_without_rows_becomes_ready_again(nodes):
    async with nodes.client() as client:
        await client.create_feed("empty", partitions=2)
    follower = next(node for node in nodes if not node.leads)
    await follower.stop()
    await follower.start()
    with trio.fail_after(FAR_LONGER_S):
        await _until_code(follower, "/readyz", 200)
    assert follower.node.feeds.named("empty")


@pytest.mark.slow
async def test_a_follower_that_is_far_behind_is_not_ready(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, {b"a": b"1"})
    leader = await nodes.level("orders")
    follower = next(node for node in nodes if node is not leader)
    await _until_code(follower, "/readyz", 200)
    [partition] = follower.node.feeds.named("orders").partitions
    partition.set_leader_seqs(partition.durable_seq + readiness.BEHIND_MAX, 0)
    assert (await probe(follower.node, "/readyz"))[0] == 200
    partition.set_leader_seqs(partition.durable_seq + readiness.BEHIND_MAX + 1, 0)
    code, told = await probe(follower.node, "/readyz")
    assert (code, told["role"]) == (503, "follower")
    assert "10,000 mutations" in told["failure"]
    assert (await probe(follower.node, "/healthz"))[0] == 200


async def _until_code(node, path, code):
    """Asks until the answer has this code; gives what is told with it."""
    while True:
        found, told = await probe(node.node, path)
        if found == code:
            return told
        await trio.sleep(POLL_SECONDS)
