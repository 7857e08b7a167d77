"""Writes that name no level: the node decides, by its set and by the feed's replication mode."""

import pytest
import trio
from tests.tailrace_server.replication.made_set import numbered

import tailrace
from tailrace import Put
from tailrace.errors import Unreachable
from tailrace.wire.messages import HelloOk
from tailrace_server.serving.status import status_of

pytestmark = pytest.mark.slow

# How long a client waits that is to give up. The others wait for as long as a busy machine needs.
IMPATIENT_S, PATIENT_S = 2.0, 60.0
WRITES = {
    "put": lambda feed: feed.put(b"k", b"v"),
    "delete": lambda feed: feed.delete(b"k"),
    "delete_if_present": lambda feed: feed.delete_if_present(b"0"),
    "write": lambda feed: feed.write([Put(b"k", b"v")]),
}


def connected(node, retry_for):
    """A client of this node, as a context."""
    return tailrace.connect(node.url, retry_for=retry_for)


async def leave_alone(members):
    """Stops all but the leader, and returns it."""
    leader = await members.settled()
    for node in members:
        if node is not leader:
            await node.kill()
    return leader


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
async def test_in_a_set_a_write_waits_for_a_majority(members, write):
    async with members.client() as client:
        await members.filled(client, numbered(0, 1))
        leader = await leave_alone(members)
        async with connected(leader, PATIENT_S) as patient:
            await patient.feed("orders").put(b"l", b"w", level="disk")
        async with connected(leader, IMPATIENT_S) as impatient:
            feed = impatient.feed("orders")
            with pytest.raises(Unreachable) as caught:
                await write(feed)
            assert caught.value.outcome == "unknown"


async def test_in_a_set_a_writer_waits_for_a_majority(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 1))
        leader = await leave_alone(members)
        async with connected(leader, PATIENT_S) as patient, patient.feed("orders").writer(level="disk") as writer:
            await writer.put(b"l", b"w")
        async with connected(leader, IMPATIENT_S) as impatient:
            feed = impatient.feed("orders")
            with pytest.raises(Unreachable):
                async with feed.writer() as writer:
                    await writer.put(b"k", b"v")


async def test_what_was_put_in_a_set_survives_its_leader(members):
    async with members.client() as client:
        feed = await members.filled(client, {})
        leader = await members.settled()
        for key, value in numbered(0, 10).items():
            await feed.put(key, value)
        await leader.kill()
        await next(node for node in members if node is not leader).promote()
        assert {item.key: item.value async for item in feed.items()} == numbered(0, 10)


async def test_a_leader_of_plain_replicas_answers_at_disk(source_and_replica):
    source, replica = source_and_replica
    async with tailrace.connect(source.url) as client:
        feed = await client.create_feed("orders", partitions=1)
        await replica.kill()
        await feed.put(b"k", b"v")
    assert status_of(source.node.services)["replication"]["default_level"] == "disk"


async def test_the_level_follows_the_mode_of_the_feed(members):
    """One writer goes on while its feed's mode changes: the level is that of the mode in which a block arrives."""
    async with members.client() as client:
        await client.create_feed("orders", partitions=1, replication="segment")
        await members.level("orders")
        leader = await leave_alone(members)
        async with connected(leader, IMPATIENT_S) as impatient:
            await impatient.feed("orders").put(b"k", b"v")  # a majority has it some seconds later
            told = status_of(leader.node.services)
            assert told["replication"]["default_level"] == "quorum"
            assert [feed["default_level"] for feed in told["feeds"] if feed["name"] == "orders"] == ["disk"]
            leader.node.feeds.named("orders").replicate("stream")
            with pytest.raises(Unreachable):
                await impatient.feed("orders").put(b"k", b"w")


async def test_a_node_of_an_older_version_is_asked_for_disk(members, monkeypatch):
    """It tells no default, and refuses a write without a level."""
    encode = HelloOk.encode
    monkeypatch.setattr(HelloOk, "encode", lambda hello: encode(hello._replace(default_level="")))
    async with members.client() as client:
        await members.filled(client, numbered(0, 1))
        leader = await leave_alone(members)
        async with tailrace.connect(leader.url) as older:
            with trio.fail_after(60):
                await older.feed("orders").put(b"k", b"v")
