"""Programs that were released before there were ttls: rows with ttls are refused to them by name, and never misread."""

from __future__ import annotations

import pytest
from tests.tailrace_server.partition.test_expiring import gone
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import Put
from tailrace.errors import Forbidden, TailraceError
from tailrace.wire.messages import Hello, HelloOk
from tailrace_server.replication import expirer

pytestmark = pytest.mark.slow


@pytest.fixture
def earlier(monkeypatch):
    """A context in which clients and replicas of this process say nothing of ttls."""
    encode = Hello.encode
    with monkeypatch.context() as patch:
        patch.setattr(Hello, "encode", lambda self: encode(self._replace(takes_ttls=False)))
        yield patch


async def flush(running):
    """Writes all rows of the feed into segments."""
    for partition in running.node.feeds.named("orders").partitions:
        await running.node.storage.flusher.flush_all(partition)


async def read_all(feed):
    """The keys that a consumer gets, and the error that ends it."""
    keys = []
    try:
        async with feed.consume(until="now") as stream:
            async for event in stream:
                keys += [row.key for row in event] if isinstance(event, tailrace.Mutations) else []
    except TailraceError as error:
        return keys, error
    return keys, None


async def test_a_client_gets_all_before_the_first_ttl_and_then_a_sentence(client, earlier):
    feed = await client.create_feed("orders", partitions=1)
    await feed.put(b"plain", b"1")
    keys = []

    async def follow():
        async with feed.consume() as stream:
            async for event in stream:
                if isinstance(event, tailrace.Mutations):
                    keys.extend(row.key for row in event)
                    await feed.put(b"of an hour", b"1", ttl=3_600)

    with pytest.raises(Forbidden, match=r"partition 0 of feed 'orders' has rows with ttls.*from seq 2 on.*update"):
        await follow()
    assert keys == [b"plain"]
    assert await feed.get(b"of an hour") is not None, "look-ups have no ttls"


async def test_segments_with_ttls_are_refused_too(client, running, earlier):
    feed = await client.create_feed("orders", partitions=1)
    await feed.put(b"plain", b"1")
    await flush(running)
    await feed.write([Put(b"of an hour", b"1", 3_600), Put(b"for good", b"1")])
    await flush(running)
    keys, error = await read_all(feed)
    assert keys in ([], [b"plain"])
    assert isinstance(error, Forbidden)


async def test_without_ttls_nothing_is_refused(client, earlier):
    feed = await client.create_feed("orders", partitions=2)
    await feed.write([Put(b"%d" % number, b"1") for number in range(100)])
    keys, error = await read_all(feed)
    assert (len(keys), error) == (100, None)


async def test_a_node_that_knows_no_ttls_is_not_sent_any(client, running, monkeypatch):
    await client.create_feed("orders", partitions=1)
    decode = HelloOk.decode
    monkeypatch.setattr(HelloOk, "decode", lambda body: decode(body)._replace(takes_ttls=False))
    async with tailrace.connect(running.url) as connected:
        feed = connected.feed("orders")
        await feed.put(b"plain", b"1")
        with pytest.raises(TailraceError, match="too old to know ttls"):
            await feed.put(b"of an hour", b"1", ttl=3_600)
        await feed.put(b"plain", b"2")


async def reconnected(nodes, how):
    """Returns once the followers have greeted the leader anew, and `how` holds for each of them."""
    for connection in list(nodes.leader.node.connections):
        connection.transport.close()
    peers = nodes.leader.node.leaderships.system.replicas.peers
    await until(lambda: sum(how(peer) and peer.is_connected for peer in peers.values()) == 2)


@pytest.mark.parametrize("replication", ["stream", "segment"])
async def test_a_set_takes_ttls_once_all_members_are_updated(new_set, earlier, replication):
    nodes = new_set()
    await nodes.start()
    await nodes.settled()
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2, replication=replication)
        await reconnected(nodes, lambda peer: not peer.takes_ttls)
        await feed.put(b"plain", b"1")
        for write in (
            lambda: feed.put(b"of an hour", b"1", ttl=3_600),
            lambda: client.set_feed("orders", ttl_s=60),
            lambda: client.create_feed("sessions", partitions=1, ttl_s=60),
        ):
            with pytest.raises(Forbidden, match=r"127\.0\.0\.1:\d+, 127\.0\.0\.1:\d+ run.*not know ttls"):
                await write()
        await feed.put(b"plain", b"2")
        earlier.undo()
        await reconnected(nodes, lambda peer: peer.takes_ttls)
        await feed.put(b"of an hour", b"1", ttl=3_600)
        await client.set_feed("orders", ttl_s=600)
        if replication == "segment":
            await nodes.leader.flush()
        await nodes.level("orders")
        assert [node.rows("orders") for node in nodes] == [{b"plain": b"2", b"of an hour": b"1"}] * 3


async def test_keys_stay_while_a_member_could_not_follow_their_expiry(new_set, monkeypatch):
    monkeypatch.setattr(expirer, "SWEEP_SECONDS", 0.05)
    nodes = new_set()
    await nodes.start()
    await nodes.settled()
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=1, ttl_s=1)
        with monkeypatch.context() as patch:
            encode = Hello.encode
            patch.setattr(Hello, "encode", lambda self: encode(self._replace(takes_ttls=False)))
            await reconnected(nodes, lambda peer: not peer.takes_ttls)
        await feed.put(b"key", b"1", level="quorum")
        looks = []
        require = nodes.leader.node.leaderships.system.replicas.require_ttls
        replicas = nodes.leader.node.leaderships.system.replicas

        def noted():
            looks.append(1)
            require()

        monkeypatch.setattr(replicas, "require_ttls", noted)
        await until(lambda: len(looks) >= 2)
        assert await feed.get(b"key") is not None
        await reconnected(nodes, lambda peer: peer.takes_ttls)
        await gone(feed, b"key")


@pytest.mark.parametrize("replication", ["stream", "segment"])
async def test_a_member_of_before_ttls_stands_where_the_first_ttl_is_and_goes_on_when_updated(
    new_set, monkeypatch, caplog, replication
):
    nodes = new_set()
    await nodes.start()
    await nodes.settled()
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=1, replication=replication)
        await nodes.level("orders")
        earlier = next(node for node in nodes if node is not nodes.leader)
        await earlier.stop()
        await feed.put(b"of an hour", b"1", ttl=3_600)
        await nodes.leader.flush()
        with monkeypatch.context() as patch:
            encode = Hello.encode
            patch.setattr(Hello, "encode", lambda self: encode(self._replace(takes_ttls=False)))
            await earlier.start()
            await until(lambda: "has rows with ttls, or expired keys, from seq 1 on" in caplog.text)
            assert earlier.rows("orders") == {}
        for connection in list(nodes.leader.node.connections):
            connection.transport.close()
        await nodes.level("orders")
        assert earlier.rows("orders") == {b"of an hour": b"1"}
