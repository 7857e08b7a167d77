"""Versions of a key, explanations of positions and previews of a reset, over real sockets."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from tests.tailrace_server.serving.console.test_api import asking, write

from tailrace.block import KEY_BYTES_MAX
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position, Positions
from tailrace_server.partition.branching import with_branch


class Posting:
    """Asks with and without a body."""

    def __init__(self, asked):
        self.told = asked.told
        self.get = asked
        self.address = asked.address

    async def post(self, path, body, token=None, content_type="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        authorization = "" if token is None else f"Authorization: Bearer {token}\r\n"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n"
            f"{authorization}Content-Length: {len(data)}\r\n\r\n"
        )
        async with await trio.open_tcp_stream(*self.address) as stream:
            await stream.send_all(head.encode() + data)
            answer = b""
            while part := await stream.receive_some():
                answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


@asynccontextmanager
async def posting(node):
    async with asking(node) as asked:
        yield Posting(asked)


@pytest.fixture
async def ask(running):
    async with posting(running.node) as asked:
        yield asked


@pytest.fixture
async def history(client):
    return await client.create_feed("orders", partitions=1, retention="history")


async def flush(running):
    partition = running.node.feeds.named("orders").partitions[0]
    await running.node.storage.flusher.flush_all(partition)


async def test_all_versions_of_a_key_come_newest_first(ask, history, running):
    """Two in one segment, one in another, and two in memory, with other keys between them."""
    await history.put(b"key", b"1")
    await history.put(b"other", b"x")
    await history.put(b"key", b"2")
    await flush(running)
    await history.delete(b"key")
    await flush(running)
    await history.put(b"key", b"4")
    await history.put(b"key", b"\xff")
    told = await ask.told("/api/feeds/orders/key?key=key")
    assert [version["seq"] for version in told["versions"]] == [6, 5, 4, 3, 1]
    assert [version["value"] for version in told["versions"]] == ["/w==", "4", None, "2", "1"]
    assert told["versions"][0]["value_encoding"] == "base64"
    assert [version["deleted"] for version in told["versions"]] == [False, False, True, False, False]
    assert [version["is_newest"] for version in told["versions"]] == [True, False, False, False, False]
    assert (told["found"], told["deleted"], told["more"], told["is_history"]) == (True, False, False, True)
    bounded = await ask.told("/api/feeds/orders/key?key=key&versions=2")
    assert [version["seq"] for version in bounded["versions"]] == [6, 5]
    assert bounded["more"] is True


async def test_versions_below_their_level_only(ask, history, running):
    await history.put(b"key", b"1")
    partition = running.node.feeds.named("orders").partitions[0]
    shown = type(partition).visible_seq
    try:
        type(partition).visible_seq = lambda self, level: 0
        assert (await ask.told("/api/feeds/orders/key?key=key"))["versions"] == []
    finally:
        type(partition).visible_seq = shown


async def test_long_values_are_told_by_their_size(ask, history):
    for _ in range(20):
        await history.put(b"key", b"v" * 64 * 1024)
    await history.put(b"key", b"v" * (64 * 1024 + 1))
    told = await ask.told("/api/feeds/orders/key?key=key")
    assert told["versions"][0]["value"] is None
    assert told["versions"][0]["value_bytes"] == 64 * 1024 + 1
    assert told["versions"][1]["value_bytes"] == 64 * 1024
    assert told["more"] is True
    assert 10 < len(told["versions"]) < 21


async def test_keys_that_are_not_there_and_deleted_ones(ask, history):
    told = await ask.told("/api/feeds/orders/key?key=a%20%ff")
    assert (told["found"], told["deleted"], told["versions"]) == (False, False, [])
    assert (told["key"], told["key_encoding"]) == ("YSD/", "base64")
    await history.put(b"key", b"1")
    await history.delete(b"key")
    told = await ask.told("/api/feeds/orders/key?key=key")
    assert (told["found"], told["deleted"]) == (False, True)
    for query in ("", "?key=", "?key=k&versions=0", "?key=k&versions=1001", "?key=" + "k" * (KEY_BYTES_MAX + 1)):
        code, value = await ask.get(f"/api/feeds/orders/key{query}")
        assert (code, value["error"]) == (400, "BadRequest")


async def test_positions_are_explained_without_a_stream(ask, client, running):
    feed = await write(client, partitions=2)
    async with feed.consume() as stream:
        while sum(stream.latest_positions.seqs().values()) < 20:
            await anext(stream)
        positions = str(stream.latest_positions)
    code, told = await ask.post("/api/feeds/orders/explain", {"positions": positions})
    assert code == 200
    assert [each["outcome"] for each in told["partitions"]] == ["goes on", "goes on"]
    assert told["summary"] == "Of 2 partitions: 2 goes on."
    parsed = Positions.parse(positions)
    log = with_branch(FailoverLog(), b"x" * 16, 0)
    lost = parsed.with_position(1, Position.at(log, 5)).without(0)
    code, told = await ask.post("/api/feeds/orders/explain", {"positions": str(lost), "level": "memory"})
    assert [(each["partition"], each["outcome"]) for each in told["partitions"]] == [(1, "starts over")]
    assert told["summary"].endswith("1 partitions are not in the positions, and begin at the beginning.")
    for body, error in (
        ({"positions": "trp1.x"}, "BadPosition"),
        ({"positions": ""}, "BadPosition"),
        ({"positions": positions, "level": "odd"}, "BadRequest"),
        ({"positions": 1}, "BadRequest"),
        ({"other": ""}, "BadRequest"),
        ([], "BadRequest"),
        (b"{", "BadRequest"),
    ):
        code, value = await ask.post("/api/feeds/orders/explain", body)
        assert (code, value["error"]) == (400, error)
    code, value = await ask.post("/api/feeds/orders/explain", {}, content_type="text/plain")
    assert (code, value["error"]) == (400, "BadRequest")
    code, value = await ask.post("/api/feeds/orders/explain", b"x" * (1024 * 1024 + 1))
    assert (code, value["error"]) == (413, "TooLarge")
    assert not any(connection.rounds.slots for connection in running.node.connections)


async def test_a_reset_is_a_preview_whose_positions_hold(ask, client, running):
    feed = await write(client, partitions=2)
    _, beginning = await ask.post("/api/feeds/orders/reset", {"to": "beginning"})
    assert (beginning["mutations"], beginning["again"], beginning["applied"]) == (20, None, False)
    assert beginning["oldest_us"] > 0
    _, now = await ask.post("/api/feeds/orders/reset", {"to": "now", "from": beginning["positions"]})
    assert (now["mutations"], now["skipped"], now["again"], now["oldest_us"]) == (0, 20, 0, None)
    await feed.put(b"late", b"1")
    async with feed.consume(Positions.parse(now["positions"])) as stream:
        event = await anext(stream)
        while not hasattr(event, "one_by_one"):
            event = await anext(stream)
        assert [mutation.key for mutation in event.one_by_one()] == [b"late"]
    _, back = await ask.post("/api/feeds/orders/reset", {"to": beginning["positions"], "from": now["positions"]})
    assert (back["mutations"], back["again"], back["skipped"]) == (21, 20, 0)


async def test_a_reset_to_a_time(ask, client, running):
    feed = await write(client, partitions=1)
    partition = running.node.feeds.named("orders").partitions[0]
    await running.node.storage.flusher.flush_all(partition)
    code, told = await ask.post("/api/feeds/orders/reset", {"to": "-1h"})
    assert (code, told["mutations"]) == (200, 20)
    assert told["partitions"] == [{"id": 0, "seq": 0, "high": 20, "mutations": 20, "again": None, "skipped": None}]
    _, told = await ask.post("/api/feeds/orders/reset", {"to": "2999-01-01T00:00:00Z"})
    assert told["mutations"] == 0
    for to in ("", "yesterday", "2026-01-01T00:00:00", "-1y"):
        code, value = await ask.post("/api/feeds/orders/reset", {"to": to})
        assert (code, value["error"]) in ((400, "BadRequest"), (400, "BadPosition"))
    assert feed is not None


@pytest.fixture
async def ask_secured(secured):
    async with posting(secured.running.node) as asked:
        yield asked


async def test_keys_and_positions_are_checked_as_frames_are(secured, ask_secured):
    token = await secured.token("shop", "read", feeds=["orders"], key_prefix=b"eu/")
    assert (await ask_secured.get("/api/feeds/orders/key?key=eu/1", token))[0] == 200
    for path in ("/api/feeds/orders/key?key=us/1", "/api/feeds/payments/key?key=eu/1"):
        code, value = await ask_secured.get(path, token)
        assert (code, value["error"]) == (403, "Forbidden")
    for path, body in (("explain", {"positions": "x"}), ("reset", {"to": "now"})):
        assert (await ask_secured.post(f"/api/feeds/payments/{path}", body, token))[0] == 403
        assert (await ask_secured.post(f"/api/feeds/orders/{path}", body))[0] == 401
        code, value = await ask_secured.post(f"/api/feeds/orders/{path}", body, token)
        assert (code, value["error"]) == (403, "Forbidden")
        assert "ask for b'eu/'" in value["message"]
        for given in ({"key_prefix": "eu/de"}, {"key_prefix": "ZXUv/w==", "key_prefix_encoding": "base64"}):
            assert (await ask_secured.post(f"/api/feeds/orders/{path}", body | given, token))[0] in (200, 400)


async def test_the_key_prefix_of_a_question_is_checked(ask, client):
    await write(client, partitions=1)
    for prefix in ({"key_prefix": "%", "key_prefix_encoding": "base64"}, {"key_prefix": "k" * (KEY_BYTES_MAX + 1)}):
        code, value = await ask.post("/api/feeds/orders/reset", {"to": "now"} | prefix)
        assert (code, value["error"]) == (400, "BadRequest")
        assert "key_prefix" in value["message"]
