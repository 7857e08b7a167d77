"""The live channel of the console over real sockets."""

import json
from contextlib import asynccontextmanager

import pytest
import trio
from tests.tailrace_server.serving.console.test_api import asking, write
from tests.tailrace_server.serving.test_bearers import UPGRADE
from trio_websocket import ConnectionClosed, wrap_client_stream

import tailrace
from tailrace_server.serving.console import live
from tailrace_server.serving.console.live import SUBPROTOCOL


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.board.board.INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr("tailrace_server.serving.board.board.SHARE_MAX", 1e9)
    monkeypatch.setattr(live, "INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(live, "BEAT_SECONDS", 0.2)


class Channel:
    def __init__(self, socket):
        self.socket = socket

    async def watch(self, *topics):
        await self.socket.send_message(json.dumps({"watch": topics}))

    async def next(self, kind):
        """The next message of a kind."""
        while True:
            message = json.loads(await self.socket.get_message())
            if message["type"] == kind:
                return message

    async def end(self):
        """The code of the close that comes."""
        try:
            while True:
                await self.socket.get_message()
        except ConnectionClosed as closed:
            return closed.reason.code


@asynccontextmanager
async def opened(address, path="/api/live", subprotocols=(SUBPROTOCOL,), headers=()):
    """A channel, as a page has it. The stream is closed here: the library leaves it open if the node closes first."""
    stream = await trio.open_tcp_stream(*address)
    async with stream, trio.open_nursery() as nursery:
        yield Channel(
            await wrap_client_stream(
                nursery, stream, address[0], path, subprotocols=list(subprotocols), extra_headers=list(headers)
            )
        )
        nursery.cancel_scope.cancel()


@pytest.fixture
async def address(running):
    async with asking(running.node) as asked:
        yield asked.address


async def test_a_page_is_greeted_and_hears_a_beat(address, running):
    async with opened(address) as channel:
        hello = await channel.next("hello")
        assert hello["node_id"] == running.node.identity.node_id.hex()
        assert channel.socket.subprotocol == SUBPROTOCOL
        assert (await channel.next("beat"))["at_s"] > 0


async def test_a_value_comes_once_and_then_changes_only(address, client):
    feed = await write(client)
    async with opened(address) as channel:
        await channel.watch({"topic": "feeds"}, {"topic": "overview"})
        value = await channel.next("value")
        assert (value["watch"], value["index"], value["topic"]) == (1, 0, "feeds")
        assert value["value"]["feeds"][0]["mutations"] == 20
        assert (await channel.next("value"))["topic"] == "overview"
        await channel.next("beat")  # nothing changes any more
        await feed.put(b"one more", b"1")
        changes = await channel.next("changes")
        while changes["topic"] != "feeds":
            changes = await channel.next("changes")
        assert [row["mutations"] for row in changes["rows"]] == [21]
        assert "gone" not in changes
        assert "order" not in changes
        await client.create_feed("another", partitions=1)
        while "order" not in changes:
            changes = await channel.next("changes")
        assert changes["order"] == ["another", "orders"]
        assert "another" in [row["name"] for row in changes["rows"]]
        assert changes["set"]["total"] == 2
        await client.drop_feed("another")
        while "gone" not in changes:
            changes = await channel.next("changes")
        assert changes["gone"] == ["another"]


async def test_another_watch_takes_the_place_of_the_first(address, client):
    await write(client)
    async with opened(address) as channel:
        await channel.watch({"topic": "overview"})
        await channel.next("value")
        await channel.watch({"topic": "partition", "feed": "orders", "partition": 1})
        value = await channel.next("value")
        assert (value["watch"], value["topic"], value["value"]["id"]) == (2, "partition", 1)


async def test_a_topic_without_a_value_is_told_once_and_comes_back(address, client):
    async with opened(address) as channel:
        await channel.watch({"topic": "feed", "feed": "orders"})
        failed = await channel.next("failed")
        assert (failed["error"], failed["index"]) == ("UnknownFeed", 0)
        assert json.loads(await channel.socket.get_message())["type"] == "beat"
        await client.create_feed("orders", partitions=2)
        value = await channel.next("value")
        assert [state["id"] for state in value["value"]["states"]] == [0, 1]


WRONG = {
    "no JSON": "{",
    "a list": "[]",
    "a number": '{"watch": 1}',
    "numbers": '{"watch": [1]}',
    "an unknown topic": '{"watch": [{"topic": "odd"}]}',
    "a list as a topic": '{"watch": [{"topic": []}]}',
    "too many topics": json.dumps({"watch": [{"topic": "overview"}] * 9}),
    "too long": " " * 20_000,
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
async def test_a_wrong_message_ends_the_channel(address, message):
    async with opened(address) as channel:
        await channel.socket.send_message(message)
        assert (await channel.next("error"))["error"] == "BadRequest"
        assert await channel.end() == 4400


async def refused(address, path, subprotocol=SUBPROTOCOL, headers=""):
    """The code with which a handshake is refused."""
    host = "" if "Host:" in headers else f"Host: {address[0]}\r\n"
    head = f"GET {path} HTTP/1.1\r\n{host}{UPGRADE}Sec-WebSocket-Protocol: {subprotocol}\r\n{headers}\r\n"
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(head.encode())
        return int((await stream.receive_some()).split()[1])


async def test_only_the_nodes_own_pages_may_open_one(address):
    host, port = address
    for path in ("/api/live", "/api/feeds/orders/tail"):
        for origin in ("http://evil.example", f"http://{host}:{port + 1}", "null", "http://[x"):
            assert await refused(address, path, headers=f"Origin: {origin}\r\n") == 403
    assert await refused(address, "/api/live", headers="Host: evil.example\r\n") == 421
    async with opened(address, headers=[(b"origin", f"http://{host}".encode())]) as channel:
        await channel.next("hello")


async def test_nothing_is_compressed(address):
    """A few KiB of a client without a token would become many MiB in the node."""
    host, _ = address
    offered = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"
    head = f"GET /api/live HTTP/1.1\r\nHost: {host}\r\n{UPGRADE}Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n{offered}\r\n"
    async with await trio.open_tcp_stream(*address) as stream:
        await stream.send_all(head.encode())
        answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 101")
        assert b"extensions" not in answer.lower()


async def test_a_consumer_with_an_odd_name_does_not_end_the_channel(address, running):
    async with tailrace.connect(running.url, name="\ud800 <b>") as client:
        feed = await write(client)
        async with feed.consume(), opened(address) as channel:
            await channel.watch({"topic": "consumers"})
            value = (await channel.next("value"))["value"]
            while not value["consumers"]:
                value["consumers"] = (await channel.next("changes")).get("rows", [])
            assert value["consumers"][0]["name"] == "\ud800 <b>"


async def test_a_bug_ends_its_own_channel_and_is_logged(address, monkeypatch, caplog):
    def broken(*_):
        raise LookupError("a bug")

    monkeypatch.setattr("tailrace_server.serving.board.views.overview", broken)
    async with opened(address) as channel:
        await channel.watch({"topic": "overview"})
        assert await channel.end() == 1011
    assert [record.exc_info is not None for record in caplog.records] == [True]
    async with opened(address) as channel:
        await channel.next("hello")


async def test_another_subprotocol_is_refused(address):
    assert await refused(address, "/api/live", "other") == 400
    assert await refused(address, "/api/feeds/orders/tail", "other") == 400


async def test_too_many_are_refused(address, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.console.sockets.LIVE_MAX", 1)
    async with opened(address) as channel:
        await channel.next("hello")
        assert await refused(address, "/api/live") == 503


async def test_a_stop_of_the_listener_is_told(running):
    stopping = trio.Event()

    async def serve(task_status=trio.TASK_STATUS_IGNORED):
        async with asking(running.node) as asked:
            task_status.started(asked.address)
            await stopping.wait()

    async with trio.open_nursery() as nursery, opened(await nursery.start(serve)) as channel:
        await channel.next("hello")
        stopping.set()
        assert await channel.end() == 1001


@pytest.fixture
async def secured_address(secured):
    async with asking(secured.running.node) as asked:
        yield asked.address


async def test_a_wrong_token_is_told_by_the_code(secured_address):
    for subprotocols in ([SUBPROTOCOL], [SUBPROTOCOL, "tailrace.token.tr1_wrong"]):
        async with opened(secured_address, subprotocols=subprotocols) as channel:
            assert (await channel.next("error"))["error"] == "Unauthorized"
            assert await channel.end() == 4401


async def test_a_revoked_token_ends_the_channel(secured, secured_address):
    token = await secured.token("reader", "read")
    async with opened(secured_address, subprotocols=[SUBPROTOCOL, f"tailrace.token.{token}"]) as channel:
        await channel.watch({"topic": "overview"})
        assert (await channel.next("value"))["value"]["principal"]["name"] == "reader"
        async with secured.connect(secured.admin) as client:
            await client.revoke_token("reader")
        assert (await channel.next("error"))["error"] == "Unauthorized"
        assert await channel.end() == 4401


async def test_a_token_sees_its_own_feeds(secured, secured_address):
    token = await secured.token("shop", "read", feeds=["orders"])
    async with opened(secured_address, subprotocols=[SUBPROTOCOL, f"tailrace.token.{token}"]) as channel:
        await channel.watch({"topic": "feeds"}, {"topic": "feed", "feed": "payments"})
        assert [row["name"] for row in (await channel.next("value"))["value"]["feeds"]] == ["orders"]
        assert (await channel.next("failed"))["error"] == "Forbidden"


async def test_a_tail_comes_from_the_same_port(address, client):
    feed = await write(client, rows=3)
    async with opened(
        address, "/api/feeds/orders/tail?since=beginning&key_prefix=key%201", ["tailrace.json.v1"]
    ) as tail:
        assert (await tail.next("open"))["feed"] == "orders"
        assert [row["key"] for row in (await tail.next("mutations"))["rows"]] == ["key 1"]
        await feed.put(b"key 12", b"new")
        assert [row["value"] for row in (await tail.next("mutations"))["rows"]] == ["new"]
        positions = (await tail.next("positions"))["positions"]
    await feed.put(b"key 13", b"while it was paused")
    async with opened(address, "/api/feeds/orders/tail?since=message", ["tailrace.json.v1"]) as tail:
        await tail.socket.send_message(json.dumps({"since": positions}))
        assert [row["key"] for row in (await tail.next("mutations"))["rows"]] == ["key 13"]


async def test_a_tail_is_checked_as_frames_are(secured, secured_address):
    token = await secured.token("shop", "read", feeds=["orders"], key_prefix=b"eu/")
    subprotocols = ["tailrace.json.v1", f"tailrace.token.{token}"]
    async with opened(secured_address, "/api/feeds/payments/tail", subprotocols) as tail:
        assert (await tail.next("error"))["error"] == "Forbidden"
        assert await tail.end() == 4403
    async with opened(secured_address, "/api/feeds/orders/tail", subprotocols) as tail:
        assert (await tail.next("error"))["error"] == "Forbidden"
        assert await tail.end() == 4403
    async with opened(secured_address, "/api/feeds/orders/tail?key_prefix=eu/", subprotocols) as tail:
        await tail.next("open")
    async with opened(secured_address, "/api/feeds/orders/tail", ["tailrace.json.v1"]) as tail:
        assert await tail.end() == 4401


async def test_a_tail_of_nothing_says_so(address):
    async with opened(address, "/api/feeds/nothing/tail", ["tailrace.json.v1"]) as tail:
        assert (await tail.next("error"))["error"] == "UnknownFeed"
        assert await tail.end() == 4404
