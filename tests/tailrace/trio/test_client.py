import dataclasses

import pytest
import trio

import tailrace
from tailrace.errors import ProtocolError
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.tcp import connect_tcp


async def test_feeds(client):
    assert await client.feeds() == []
    await client.create_feed("b", partitions=3)
    await client.create_feed("a", retention="history", history_age_s=60.0, history_bytes=1000)
    infos = await client.feeds()
    assert [info.name for info in infos] == ["a", "b"]
    assert [info.partitions for info in infos] == [16, 3]
    assert (infos[0].retention, infos[0].history_age_s, infos[0].history_bytes) == ("history", 60.0, 1000)
    assert len({info.feed_id for info in infos}) == 2
    await client.drop_feed("a")
    assert [info.name for info in await client.feeds()] == ["b"]
    with pytest.raises(tailrace.UnknownFeed, match="'a'"):
        await client.drop_feed("a")


async def test_a_feed_that_exists(client):
    await client.create_feed("a", partitions=3)
    await client.create_feed("a", partitions=3, exist_ok=True)
    await client.create_feed("a")
    await client.create_feed("a", retention="compact")
    with pytest.raises(
        tailrace.FeedExists, match=r"already, with other settings: partitions 3 \(asked for: 4\)\. Leave"
    ):
        await client.create_feed("a", partitions=4, exist_ok=True)
    with pytest.raises(tailrace.FeedExists, match="there is a feed 'a' already"):
        await client.create_feed("a", partitions=3, exist_ok=False)
    assert len(await client.feeds()) == 1


@pytest.mark.parametrize(
    "options", [{"name": "No Good"}, {"name": "a", "partitions": 0}, {"name": "a", "keyspace": "x"}]
)
async def test_a_feed_that_cannot_be_had(client, options):
    with pytest.raises(tailrace.TailraceError):
        await client.create_feed(**options)
    assert await client.feeds() == []


async def test_status(client, node):
    status = await client.status()
    assert status.node_id == node.identity.node_id
    assert status.cluster_id == node.identity.cluster_id
    assert status.healthy
    assert status.details["connections"][0]["name"] == ""


async def test_its_name_is_shown(running):
    async with tailrace.connect(running.url, name="a dashboard") as client:
        names = [connection["name"] for connection in (await client.status()).details["connections"]]
    assert names == ["a dashboard"]


async def test_a_token_is_refused(run_node, node_config):
    running = await run_node(dataclasses.replace(node_config, auth=True))
    with pytest.raises(tailrace.Forbidden, match="the token is unknown here"):
        async with tailrace.connect(running.url, token="secret"):
            raise AssertionError("it was let in")


async def test_an_address_that_does_not_answer_is_passed_over(running):
    url = running.url.replace("tailrace://", "tailrace://127.0.0.1:1,")
    async with tailrace.connect(url) as client:
        assert await client.feeds() == []


def test_bad_urls():
    for url in ("http://localhost", "localhost:4700", "tailrace://", "tailrace://a:b"):
        with pytest.raises(ValueError, match=r"tailrace://HOST:PORT|HOST:PORT"):
            tailrace.connect(url)


async def test_whatever_waits_is_told_when_the_client_leaves(running):
    """A task outside of the body does not hang."""
    errors = []
    async with trio.open_nursery() as nursery:
        async with tailrace.connect(running.url) as client:
            feed = await client.create_feed("a")
            await running.stop()

            async def put():
                with pytest.raises(tailrace.Unreachable) as caught:
                    await feed.put(b"k", b"v")
                errors.append(caught.value)

            nursery.start_soon(put)
            await trio.testing.wait_all_tasks_blocked()
        await trio.testing.wait_all_tasks_blocked()
    (error,) = errors
    assert "closed" in str(error)


async def test_notes_of_batches_that_a_close_ends_are_of_one_batch_each(running):
    """All requests that a close ends get the same reason."""
    notes = []
    async with trio.open_nursery() as nursery:
        async with tailrace.connect(running.url) as client:
            feed = await client.create_feed("a", partitions=2)
            await feed.resolve()
            await running.stop()

            async def write():
                with pytest.raises(tailrace.Unreachable, match="closed") as caught:
                    await feed.write([tailrace.Put(b"%d" % number, b"v") for number in range(20)])
                notes.append(caught.value.__notes__)

            nursery.start_soon(write)
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
        await write()
    assert notes == [["of this batch, these partitions took their share: none"]] * 3


async def test_a_call_is_given_up_after_its_time(running):
    async with tailrace.connect(running.url) as patient, tailrace.connect(running.url, retry_for=0.1) as client:
        feed = client.feed("a")
        feed._core.resolved = await (await patient.create_feed("a")).resolve()
        await running.stop()
        while client._core.session.is_open:  # noqa: ASYNC110 - the client tells nobody that it has noticed it
            await trio.sleep(0.001)
        with pytest.raises(tailrace.Unreachable, match="given up") as caught:
            await feed.put(b"k", b"v")
        assert caught.value.outcome == "not sent"
        with pytest.raises(tailrace.Unreachable):
            await client.feeds()


async def test_what_was_sent_has_an_unknown_outcome(running):
    """The node takes the write, and the connection is cut before it answers."""
    async with tailrace.connect(running.url) as patient, tailrace.connect(running.url, retry_for=0.5) as client:
        feed = client.feed("a")
        feed._core.resolved = await (await patient.create_feed("a")).resolve()
        for connection in running.node.connections:
            connection.transport.send = lambda *buffers: None
        with pytest.raises(tailrace.Unreachable) as caught:
            await feed.put(b"k", b"v")
        assert caught.value.outcome == "unknown"


async def test_calls_survive_a_restart(running, client, feed):
    await feed.put(b"k", b"v")
    await running.stop()
    results = []

    async def ask():
        results.append((await feed.get(b"k")).value)
        results.append([info.name for info in await client.feeds()])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        await running.start()
    assert results == [b"v", ["orders"]]


async def test_a_node_that_speaks_another_version(running):
    """The greeting cannot be mended by trying again."""

    async def connect_garbled(address):
        transport = await connect_tcp(address)
        send = transport.send
        transport.send = lambda *buffers: send(
            *(bytes(b).replace(b'"versions":[1]', b'"versions":[9]') for b in buffers)
        )
        return transport

    with pytest.raises(ProtocolError):
        async with Client(running.url, host=Host(connect=connect_garbled)):
            raise AssertionError("it was let in")


async def test_a_write_that_is_cancelled_leaves_the_client_usable(feed):
    with trio.CancelScope() as scope:
        scope.cancel()
        await feed.put(b"k", b"cancelled")
    await feed.put(b"k", b"v")
    assert (await feed.get(b"k")).value == b"v"


async def test_a_call_that_is_cancelled_before_it_was_sent_is_never_sent(running, client, feed):
    """Calls of each kind, while the node is down; then it comes back."""
    await feed.put(b"k", b"before")
    await running.stop()
    calls = [
        lambda: feed.put(b"k", b"cancelled"),
        lambda: feed.delete(b"k"),
        lambda: feed.write([tailrace.Put(b"%d" % number, b"cancelled") for number in range(20)]),
        lambda: feed.get(b"k"),
        lambda: client.create_feed("cancelled"),
        lambda: client.drop_feed("orders"),
    ]
    for _ in range(50):
        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert client._core.session.idle, "what was cancelled is still queued"
    await running.start()
    await feed.put(b"other", b"after")
    assert {item.key: item.value async for item in feed.items()} == {b"k": b"before", b"other": b"after"}
    assert [info.name for info in await client.feeds()] == ["orders"]
    assert sum(partition.high_seq for partition in running.node.feeds.named("orders").partitions) == 2


async def test_a_call_within_a_cancelled_scope_is_never_sent(running, client, feed):
    """The connection is open, so that a call could send its request before its first checkpoint."""
    await feed.put(b"k", b"before")
    calls = [
        lambda: feed.put(b"k", b"cancelled"),
        lambda: feed.put(b"k", b"cancelled", if_absent=True),
        lambda: feed.delete(b"k"),
        lambda: feed.delete_if_present(b"k"),
        lambda: feed.write([tailrace.Put(b"k", b"cancelled"), tailrace.Delete(b"other")]),
        lambda: client.create_feed("cancelled"),
        lambda: client.drop_feed("orders"),
    ]
    for call in calls:
        with trio.move_on_after(0) as scope:
            await call()
        assert scope.cancelled_caught
    await feed.put(b"other", b"after")
    assert {item.key: item.value async for item in feed.items()} == {b"k": b"before", b"other": b"after"}
    assert [info.name for info in await client.feeds()] == ["orders"]
    assert sum(partition.high_seq for partition in running.node.feeds.named("orders").partitions) == 2


async def test_a_call_that_is_cancelled_after_it_was_sent_is_not_sent_again(running, client, feed):
    """Its frame is lost with the connection; the next call connects anew."""
    await feed.put(b"k", b"before")
    client._runner._link._transport.send = lambda *buffers: None
    with trio.move_on_after(0.1):
        await feed.put(b"k", b"cancelled")
    running.cut_connections()
    await feed.put(b"other", b"after")
    assert (await feed.get(b"k")).value == b"before"
    assert sum(partition.high_seq for partition in running.node.feeds.named("orders").partitions) == 2


async def test_a_writer_that_is_left_by_an_exception_sends_nothing_later(running, feed):
    """Its blocks were queued while the node was down."""
    await feed.put(b"k", b"before")
    await running.stop()

    async def write():
        async with feed.writer(batch_rows=1) as writer:
            await writer.put(b"k", b"of the writer")
            raise KeyError

    with pytest.raises(KeyError):
        await write()
    await running.start()
    await feed.put(b"other", b"after")
    assert (await feed.get(b"k")).value == b"before"
