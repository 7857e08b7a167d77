"""The requests by which a driver plans."""

from __future__ import annotations

import pytest
import trio
from tests.pyspark_tailrace.reading.test_stream_reader import trimmed

from pyspark_tailrace.reading.feed_client import FeedClient
from tailrace import Put, blocking
from tailrace.wire.opcodes import Opcode

call = blocking.Client.call


@pytest.fixture
def asked(monkeypatch):
    """The opcodes of all requests, in their order."""
    opcodes = []

    def noted(self, opcode, value, deadline):
        opcodes.append(opcode)
        return call(self, opcode, value, deadline)

    monkeypatch.setattr(blocking.Client, "call", noted)
    return opcodes


@pytest.fixture
def older_node(monkeypatch, asked):
    """Nodes do not tell of their segments."""

    def without_segments(self, opcode, value, deadline):
        answer = blocking.Client.noted(self, opcode, value, deadline)
        for partition in answer.get("partitions", []):
            for name in ("flushed_seq", "trim_seq", "segment_bytes"):
                del partition[name]
        return answer

    monkeypatch.setattr(blocking.Client, "noted", blocking.Client.call, raising=False)
    monkeypatch.setattr(blocking.Client, "call", without_segments)


async def kept_since(options):
    def ask():
        node = FeedClient(options)
        try:
            return node.kept_since(node.feed())
        finally:
            node.close()

    return await trio.to_thread.run_sync(ask)


async def test_a_batch_is_planned_by_one_request(client, job, asked):
    feed = await client.create_feed("h", partitions=4, retention="history")
    await feed.write([Put(b"%d" % n, b"v") for n in range(20)])
    assert sum(part.rows for task in await job("h", read="mutations").tasks() for part in task.parts) == 20
    assert asked == [Opcode.PARTITIONS]


async def test_what_was_trimmed_is_known_from_the_partitions(running, client, job, asked):
    feed = await client.create_feed("h", partitions=1, retention="history", history_bytes=1500)
    trim_seq = await trimmed(running, feed)
    assert (await kept_since(job("h").options))[0] >= trim_seq > 0
    assert Opcode.EXPLAIN_RESUME not in asked


@pytest.mark.usefixtures("older_node")
async def test_an_older_node_is_asked_what_was_trimmed_of_each_partition(running, client, job, asked):
    feed = await client.create_feed("h", partitions=1, retention="history", history_bytes=1500)
    trim_seq = await trimmed(running, feed)
    assert (await kept_since(job("h").options))[0] >= trim_seq > 0
    assert asked == [Opcode.PARTITIONS, Opcode.EXPLAIN_RESUME]


@pytest.mark.usefixtures("older_node")
async def test_an_older_node_gives_all_rows_of_a_batch(client, job):
    feed = await client.create_feed("h", partitions=4, retention="history")
    await feed.write([Put(b"%d" % n, b"v") for n in range(20)])
    assert len(await job("h", read="mutations").rows()) == 20


async def test_nothing_is_trimmed_of_a_compact_feed(client, job, asked):
    await client.create_feed("f", partitions=2)
    assert await kept_since(job("f").options) == {0: 0, 1: 0}
    assert asked == [Opcode.PARTITIONS]
