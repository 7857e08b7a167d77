"""A feed as server-sent events."""

import dataclasses
import json
from contextlib import asynccontextmanager
from typing import NamedTuple

import h11
import pytest
import trio
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.serving.secured import Secured
from tests.tailrace_server.serving.web.conftest import opened_web

import tailrace
from tailrace_server.serving.console import listener
from tailrace_server.serving.web import events

PATH = "/feeds/orders/events"


class Told(NamedTuple):
    name: str
    id: str
    data: dict


class Events:
    """The events of an answer, as a browser takes them: the last id stays."""

    def __init__(self, reader):
        self._reader = reader
        self.last_id = ""
        self.comments = []
        self._bytes = b""

    async def next(self, name=None):
        """The next event, of this name; None at the end."""
        while True:
            while b"\n\n" not in self._bytes:
                part = await self._reader.part()
                if not part:
                    return None
                self._bytes += part
            block, _, self._bytes = self._bytes.partition(b"\n\n")
            event = self._event(block.decode())
            if event is not None and name in (None, event.name):
                return event

    def _event(self, block):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[:1] not in ("", ":"))
        self.last_id = fields.get("id", self.last_id)
        if "data" in fields:
            return Told(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
        self.comments.append(block)
        return None

    async def rows(self, count):
        """So many rows, as keys and values."""
        found = []
        while len(found) < count:
            event = await self.next("mutations")
            assert event is not None
            found += [(row["key"], row["value"]) for row in event.data["rows"]]
        return found

    async def id_at(self, seqs):
        """The first id that covers these seqs."""
        while not self.last_id or tailrace.Positions.parse(self.last_id).seqs() != seqs:
            assert await self.next() is not None
        return self.last_id

    async def rest(self):
        found = []
        while event := await self.next():
            found.append(event)
        return found


@asynccontextmanager
async def following(web, query="", **headers):
    async with web.opened("GET", PATH + query, **headers) as reader:
        head = await reader.head()
        assert head.code == 200, await reader.answer()
        assert head.headers["content-type"].startswith("text/event-stream")
        yield Events(reader)


async def test_a_snapshot_comes_first_and_then_what_changes(web, orders):
    await orders.put(b"a", b"1")
    async with following(web) as told:
        opened = await told.next()
        assert (opened.name, opened.data) == ("open", {"type": "open", "feed": "orders", "partitions": 2})
        assert await told.rows(1) == [("a", "1")]
        await orders.put(b"b", b"2")
        await orders.delete(b"a")
        assert sorted(await told.rows(2), key=str) == [("a", None), ("b", "2")]


async def test_a_client_goes_on_from_its_last_id(web, orders):
    for number in range(20):
        await orders.put(b"%d" % number, b"v")
    async with following(web) as told:
        assert len(await told.rows(20)) == 20
        id = await told.id_at(await seqs_of(orders))
    await orders.put(b"new", b"w")
    async with following(web, last_event_id=id) as told:
        assert await told.rows(1) == [("new", "w")]
    async with following(web, f"?since={id}") as told:
        assert await told.rows(1) == [("new", "w")]


async def seqs_of(feed):
    return {each.id: each.high_seq for each in await feed.partitions() if each.high_seq}


async def test_each_id_covers_all_rows_before_it(web, orders):
    """From any id the rest comes: no row is missing, whatever is there twice."""
    async with orders.writer(batch_rows=7) as writer:
        for number in range(300):
            await writer.put(b"%03d" % number, b"v")
    seen, ids = [], []
    async with following(web) as told:
        while len(seen) < 300:
            event = await told.next()
            seen += [row["key"] for row in event.data.get("rows", ())]
            if event.id:
                ids.append((event.id, len(seen)))
    for id, count in (ids[0], ids[len(ids) // 2], ids[-1]):
        async with following(web, last_event_id=id) as told:
            if count < 300:
                later = [key for key, _ in await told.rows(300 - count)]
                assert set(later) | set(seen[:count]) == set(seen)


async def test_the_id_counts_in_place_of_since(web, orders):
    await orders.put(b"a", b"1")
    async with following(web, "?since=now") as told:
        id = (await told.next("open")).id
    await orders.put(b"b", b"2")
    async with following(web, "?since=beginning", last_event_id=id) as told:
        assert await told.rows(1) == [("b", "2")]


async def test_a_stream_with_an_end(web, orders):
    for number in range(20):
        await orders.put(b"%d" % number, b"v")
    async with following(web, "?until=now") as told:
        assert len(await told.rows(20)) == 20
        end = (await told.rest())[-1]
    assert (end.name, end.data) == ("end", {"type": "end"})
    assert tailrace.Positions.parse(end.id).seqs() == await seqs_of(orders)
    async with following(web, f"?until=now&since={end.id}") as told:
        assert [event.name for event in await told.rest()] == ["open", "end"]


async def test_the_last_rows(web, orders):
    for number in range(20):
        await orders.put(b"%d" % number, b"v")
    seqs = await seqs_of(orders)
    async with following(web, "?since=last:2&until=now&partitions=0") as told:
        found = [row["seq"] for event in await told.rest() for row in event.data.get("rows", ())]
    assert found == [seqs[0] - 1, seqs[0]]


async def test_filters(web, orders):
    for key in (b"eu/1", b"us/1", b"eu/2"):
        await orders.put(key, b"v")
    async with following(web, "?key_prefix=eu%2F&keys_only=true") as told:
        assert sorted(await told.rows(2)) == [("eu/1", None), ("eu/2", None)]


async def test_some_partitions(web, orders):
    for number in range(20):
        await orders.put(b"%d" % number, b"v")
    seqs = await seqs_of(orders)
    async with following(web, "?partitions=1") as told:
        assert (await told.next("open")).data["partitions"] == 1
        assert len(await told.rows(seqs[1])) == seqs[1]
        assert list(tailrace.Positions.parse(await told.id_at({1: seqs[1]}))) == [1]


async def test_a_rollback_is_an_event(running, client, orders, lose):
    await orders.put(b"a", b"1")
    async with opened_web(running.node) as web, following(web) as told:
        id = await told.id_at(await seqs_of(orders))
    async with lose():
        await orders.put(b"a", b"2")
        async with opened_web(running.node) as web, following(web, last_event_id=id) as told:
            assert await told.rows(1) == [("a", "2")]
            id = await told.id_at(await seqs_of(orders))
    async with opened_web(running.node) as web, following(web, last_event_id=id) as told:
        rolled = await told.next("rollback")
        assert (rolled.data["keys"], rolled.data["seq"]) == (None, 0)
        assert await told.rows(1) == [("a", "1")]


@pytest.mark.parametrize(
    ("query", "headers", "code", "error"),
    [
        ("?since=yesterday", {}, 400, "BadPosition"),
        ("?since=last:x", {}, 400, "BadPosition"),
        ("", {"last_event_id": "nonsense"}, 400, "BadPosition"),
        ("?nonsense=1", {}, 400, "BadRequest"),
        ("?until=later", {}, 400, "BadRequest"),
        ("?partitions=a", {}, 400, "BadRequest"),
        ("?partitions=", {}, 400, "BadRequest"),
        ("?partitions=7", {}, 404, "UnknownFeed"),
        ("?key_prefix=%zz", {}, 400, "BadRequest"),
        ("?token=secret", {}, 400, "BadRequest"),
        ("", {"origin": "https://evil.example"}, 403, "Forbidden"),
    ],
)
async def test_errors_before_the_first_event_have_codes(web, orders, query, headers, code, error):
    answer = await web("GET", PATH + query, **headers)
    assert (answer.code, answer.json["error"]) == (code, error), answer.json


async def test_a_feed_that_does_not_exist(web):
    answer = await web("GET", "/feeds/none/events")
    assert (answer.code, answer.json["error"]) == (404, "UnknownFeed")


async def test_the_id_of_another_feed(web, client, orders):
    other = await client.create_feed("other", partitions=2)
    await other.put(b"a", b"1")
    async with other.consume(until="now") as stream:
        positions = [event async for event in stream] and stream.latest_positions
    answer = await web("GET", PATH, last_event_id=str(positions))
    assert (answer.code, answer.json["error"]) == (400, "BadPosition")


async def test_a_dropped_feed_ends_the_stream(web, client, orders):
    await orders.put(b"a", b"1")
    async with following(web) as told:
        await told.rows(1)
        await client.drop_feed("orders")
        last = (await told.rest())[-1]
        assert (last.name, last.data["error"]) == ("failure", "UnknownFeed")


async def test_a_silent_stream_has_heartbeats_and_outlives_the_time_for_requests(web, orders, monkeypatch):
    monkeypatch.setattr(listener, "READ_SECONDS_MAX", 0.05)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.02)
    async with following(web) as told:
        await told.next("open")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(told.rows, 1)
            await until(lambda: told.comments.count(":") >= 10)
            await orders.put(b"a", b"1")


async def test_streams_are_bounded(web, orders, monkeypatch):
    monkeypatch.setattr(events, "EVENTS_MAX", 1)
    async with following(web) as told:
        await told.next("open")
        answer = await web("GET", PATH)
        assert (answer.code, answer.json["error"], answer.headers["retry-after"]) == (503, "Overloaded", "1")


async def test_head_has_an_end(web, orders):
    """As a probe asks. It kept a place among the streams, and its connection, for ever."""
    stream = await trio.open_tcp_stream(*web.address)
    async with stream:
        await stream.send_all(b"HEAD /feeds/orders/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with trio.fail_after(10):
            answer = b"".join([part async for part in stream])
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\n")
    assert (await web("HEAD", "/feeds/other/events")).code == 404


async def test_a_client_that_has_gone_leaves_nothing(web, running, orders):
    async with following(web) as told:
        await told.next("open")
        assert len(_names(running.node)) == 1
    await until(lambda: not _names(running.node))


def _names(node):
    return [each["name"] for each in node.status()["connections"] if each["name"].startswith("events ")]


async def test_a_client_that_does_not_read_costs_a_bounded_number_of_bytes(web, running, orders, monkeypatch):
    monkeypatch.setattr(listener, "SEND_SECONDS_MAX", 0.5)
    async with orders.writer() as writer:
        for number in range(300):
            await writer.put(b"%d" % number, bytes(100_000))
    async with web.opened("GET", PATH) as reader:
        assert (await reader.head()).code == 200
        sent = 0
        while _names(running.node):
            windows = [c.rounds.window for c in running.node.connections if c.name.startswith("events")]
            sent = max([sent, *(window.sent_bytes for window in windows)])
            await trio.sleep(0.01)
    assert sent < 15_000_000


async def test_a_stop_ends_streams_with_a_word(running, orders):
    async with opened_web(running.node) as web:
        closing = trio.Event()

        async def follow():
            async with following(web) as told:
                await told.next("open")
                closing.set()
                assert await told.rest() == []
                assert told.comments[-1] == ": the node is stopping"
            done.set()

        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await closing.wait()
            web.stop()
            await done.wait()


async def test_a_token_of_a_prefix_follows_that_alone(run_node, node_config):
    secured = Secured(await run_node(dataclasses.replace(node_config, auth=True)))
    async with secured.connect(secured.admin) as client, opened_web(secured.running.node) as web:
        feed = await client.create_feed("orders", partitions=2)
        await feed.write([tailrace.Put(b"eu/1", b"v"), tailrace.Put(b"us/1", b"v")])
        bearer = {"authorization": f"Bearer {await secured.token('eu', 'read', key_prefix=b'eu/')}"}
        refused = await web("GET", PATH, **bearer)
        assert (refused.code, refused.json["error"]) == (403, "Forbidden")
        assert (await web("GET", PATH)).code == 401
        async with following(web, "?key_prefix=eu/", **bearer) as told:
            assert await told.rows(1) == [("eu/1", "v")]
            await client.revoke_token("eu")
            assert (await told.rest())[-1].data["error"] == "Forbidden"


async def test_a_bug_ends_the_stream_and_is_logged(web, orders, monkeypatch, caplog):
    monkeypatch.setattr(events, "type_of", lambda _: 1 / 0)
    await orders.put(b"a", b"1")
    with pytest.raises(h11.RemoteProtocolError):  # the answer has no end
        await web("GET", PATH)
    assert "division by zero" in caplog.text
