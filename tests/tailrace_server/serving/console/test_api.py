"""The console's questions over real sockets."""

import dataclasses
import json
from contextlib import asynccontextmanager

import pytest
import trio
from tests.tailrace_server.serving.test_bearers import get

import tailrace
from tailrace_server.serving.console import http_listener

PATHS = ["/api/console", "/api/feeds", "/api/feeds/orders", "/api/feeds/orders/partitions/0", "/api/consumers"]


class Asked:
    """The HTTP listener of a node."""

    def __init__(self, address):
        self.address = address

    async def __call__(self, path, token=None):
        code, body = await get(self.address, path, token)
        return code, json.loads(body)

    async def told(self, path, token=None):
        code, value = await self(path, token)
        assert code == 200, value
        return value

    async def until(self, path, wanted):
        """The answer, once ``wanted`` of it is true."""
        while True:
            value = await self.told(path)
            if wanted(value):
                return value
            await trio.sleep(0.01)


@asynccontextmanager
async def asking(node):
    async with http_listener(node, ("127.0.0.1", 0)) as address:
        yield Asked(address)


@pytest.fixture
def node_config(node_config):
    """A consumer counts as stuck soon."""
    return dataclasses.replace(node_config, limits=dataclasses.replace(node_config.limits, slow_after_s=0.2))


@pytest.fixture
async def ask(running):
    async with asking(running.node) as asked:
        yield asked


@pytest.fixture(autouse=True)
def always_fresh(monkeypatch):
    """Each answer has a sample of its own."""
    monkeypatch.setattr("tailrace_server.serving.board.board.INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr("tailrace_server.serving.board.board.SHARE_MAX", 1e9)


async def write(client, name="orders", partitions=4, rows=20, **options):
    feed = await client.create_feed(name, partitions=partitions, **options)
    async with feed.writer() as writer:
        for number in range(rows):
            await writer.put(b"key %d" % number, b"value %d" % number)
    return feed


async def test_the_overview_of_a_quiet_node(ask, client, running):
    await write(client)
    told = await ask.told("/api/console")
    assert told["state"] == "moving"
    assert told["problems"] == []
    assert told["node_id"] == running.node.identity.node_id.hex()
    assert told["role"] == "leader"
    assert told["members"] == []
    assert told["principal"]["role"] == "open"
    assert told["totals"]["feeds"] == 1
    assert told["totals"]["partitions"] == 4
    assert told["totals"]["mutations"] == 20
    again = await ask.told("/api/console")
    assert again["totals"]["mutations_rate"] == 0.0


async def test_a_feed_and_its_partitions(ask, client):
    await write(client)
    [row] = (await ask.told("/api/feeds"))["feeds"]
    assert row["name"] == "orders"
    assert row["mutations"] == 20
    assert row["state"] == "idle"
    told = await ask.told("/api/feeds/orders?from=1&limit=2")
    assert [state["id"] for state in told["states"]] == [1, 2]
    assert told["more"] is True
    assert told["settings"]["partitions"] == 4
    assert told["sinks"] == []
    whole = await ask.told("/api/feeds/orders")
    assert sum(state["high"] for state in whole["states"]) == 20
    assert whole["more"] is False


async def test_feeds_come_in_pages_and_can_be_looked_for(ask, client):
    for name in ("a1", "b1", "b2", "c1"):
        await client.create_feed(name, partitions=1)
    first = await ask.told("/api/feeds?limit=2")
    assert [row["name"] for row in first["feeds"]] == ["a1", "b1"]
    assert (first["more"], first["total"]) == (True, 4)
    rest = await ask.told("/api/feeds?limit=2&after=b1")
    assert [row["name"] for row in rest["feeds"]] == ["b2", "c1"]
    assert rest["more"] is False
    found = await ask.told("/api/feeds?find=b")
    assert [row["name"] for row in found["feeds"]] == ["b1", "b2"]


async def test_a_partition_has_its_segments_and_its_queue(ask, client, running):
    await write(client, partitions=1)
    partition = running.node.feeds.named("orders").partitions[0]
    await running.node.storage.flusher.flush_all(partition)
    feed = client.feed("orders")
    await feed.put(b"late", b"1")
    told = await ask.told("/api/feeds/orders/partitions/0")
    [segment] = told["segment_list"]
    assert (segment["after"], segment["last"], segment["rows"], segment["lost"]) == (0, 20, 20, False)
    assert segment["oldest_us"] <= segment["newest_us"]
    assert (segment["compacting"], segment["planned"]) == (False, False)
    assert told["compaction"] == {"running": None, "planned": None, "pause_s": None, "failure": ""}
    assert told["queue"]["after"] == 20
    assert told["queue"]["last"] == 21
    assert told["levels"]["disk"] == partition.high_seq
    [branch] = told["branches_list"]
    assert (branch["base"], branch["end"]) == (0, None)
    assert branch["branch"] == partition.log.branch.hex()


async def test_a_consumer_that_has_all_is_current(ask, client):
    feed = await write(client)
    async with feed.consume() as stream:
        seen = 0
        while seen < 20:
            event = await anext(stream)
            seen += len(event) if isinstance(event, tailrace.Mutations) else 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, stream)  # credits what was handled
            told = await ask.until("/api/consumers", lambda value: value["consumers"][0]["state"] == "current")
            nursery.cancel_scope.cancel()
    [row] = told["consumers"]
    assert (row["feed"], row["streams"], row["lag_mutations"], row["lag_s"]) == ("orders", 4, 0, 0.0)
    assert (row["kind"], row["reason"]) == ("consumer", "")
    assert row["sent"] == row["high"] == 20


async def test_a_consumer_that_takes_nothing_is_stuck_and_told_first(ask, client, running):
    feed = await write(client, rows=200)
    async with feed.consume(window_bytes=1_000):
        told = await ask.until(
            "/api/consumers", lambda value: value["consumers"] and value["consumers"][0]["state"] == "stuck"
        )
        [row] = told["consumers"]
        assert row["lag_mutations"] > 0
        assert row["lag_s"] > 0
        assert row["since_s"] >= running.node.config.limits.slow_after_s
        assert "takes nothing" in row["reason"]
        overview = await ask.told("/api/console")
        assert overview["state"] == "stuck"
        [problem] = overview["problems"]
        assert (problem["subject"], problem["name"]) == ("consumer", row["id"])
        assert (problem["severity"], problem["state"]) == ("warning", "stuck")
        assert overview["totals"]["slowest_consumer"]["id"] == row["id"]
        [feed_row] = (await ask.told("/api/feeds"))["feeds"]
        assert (feed_row["state"], feed_row["consumers"]) == ("stuck", 1)
        detail = await ask.told(f"/api/consumers/{row['id']}")
        assert [each["id"] for each in detail["partitions"]] == [0, 1, 2, 3]
        assert sum(each["sent"] for each in detail["partitions"]) == row["sent"]
        assert (await ask.told("/api/consumers?state=current"))["consumers"] == []
        assert (await ask.told("/api/consumers?feed=others"))["consumers"] == []
        assert len((await ask.told("/api/consumers?find=ORD"))["consumers"]) == 1


async def test_a_named_consumer_that_has_gone_is_away(ask, client, running):
    feed = await write(client)
    async with tailrace.connect(running.url, name="index") as other, other.feed("orders").consume() as stream:
        while sum(stream.latest_positions.seqs().values()) < 20:
            await anext(stream)
    await feed.put(b"later", b"1")
    told = await ask.until("/api/consumers?state=away", lambda value: value["consumers"])
    [row] = told["consumers"]
    assert (row["id"], row["name"], row["streams"], row["peer"]) == ("gone.orders.index", "index", 0, "")
    assert row["lag_mutations"] >= 1  # and what it was handed last, which it had not credited
    assert row["lag_s"] > 0
    assert row["reason"] == "it is not connected any more, and mutations wait for it"
    [problem] = (await ask.told("/api/console"))["problems"]
    assert (problem["subject"], problem["name"]) == ("consumer", row["id"])
    assert problem["since_s"] > 0
    assert (await ask.told(f"/api/consumers/{row['id']}"))["partitions"] == []
    async with tailrace.connect(running.url, name="index") as other, other.feed("orders").consume():
        told = await ask.until("/api/consumers", lambda value: value["consumers"])
        assert "away" not in [each["state"] for each in told["consumers"]]


@pytest.mark.parametrize(
    ("path", "code", "error"),
    [
        ("/api/feeds/nothing", 404, "UnknownFeed"),
        ("/api/feeds/orders/partitions/4", 404, "NotFound"),
        ("/api/feeds/orders/partitions/x", 400, "BadRequest"),
        ("/api/consumers/9.orders", 404, "NotFound"),
        ("/api/feeds?limit=0", 400, "BadRequest"),
        ("/api/feeds?limit=201", 400, "BadRequest"),
        ("/api/feeds?limit=1&limit=2", 400, "BadRequest"),
        ("/api/feeds/orders?from=-1", 400, "BadRequest"),
        ("/api/consumers?state=odd", 400, "BadRequest"),
        ("/api/feeds?find=" + "x" * 300, 400, "BadRequest"),
    ],
)
async def test_wrong_questions(ask, client, path, code, error):
    await client.create_feed("orders", partitions=4)
    found, value = await ask(path)
    assert (found, value["error"]) == (code, error)
    assert value["message"]


@pytest.fixture
async def ask_secured(secured):
    async with asking(secured.running.node) as asked:
        yield asked


@pytest.mark.parametrize("path", PATHS)
async def test_every_question_needs_a_token(secured, ask_secured, path):
    code, value = await ask_secured(path)
    assert (code, value["error"]) == (401, "Unauthorized")
    assert (await ask_secured(path, "tr1_wrong"))[0] == 401
    assert (await ask_secured(path, await secured.token("reader", "read")))[0] == 200


async def test_a_token_sees_its_own_feeds_and_connections(secured, ask_secured):
    token = await secured.token("shop", "read", feeds=["orders"])
    listed = await ask_secured.told("/api/feeds", token)
    assert [row["name"] for row in listed["feeds"]] == ["orders"]
    other = next(feed.info.name for feed in secured.running.node.feeds if feed.info.name != "orders")
    for path in (f"/api/feeds/{other}", f"/api/feeds/{other}/partitions/0", "/api/feeds/_feeds"):
        code, value = await ask_secured(path, token)
        assert (code, value["error"]) == (403, "Forbidden")
    async with secured.connect(secured.admin) as client, client.feed("orders").consume():
        assert (await ask_secured.told("/api/consumers", token))["consumers"] == []
        [row] = (await ask_secured.told("/api/consumers", secured.admin))["consumers"]
        assert (await ask_secured(f"/api/consumers/{row['id']}", token))[0] == 404
        assert (await ask_secured.told("/api/console", token))["totals"]["consumers"] == 0


async def test_only_an_admin_sees_the_feed_of_feeds(secured, ask_secured):
    reader = await secured.token("reader", "read")
    assert (await ask_secured("/api/feeds/_feeds", reader))[0] == 403
    assert (await ask_secured("/api/feeds/_feeds", secured.admin))[0] == 200
