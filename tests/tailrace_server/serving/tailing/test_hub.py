"""Pages that ask for the same share one stream of the node, and each still gets all of it."""

from __future__ import annotations

import contextlib
import math

import pytest
import trio
from tests.tailrace_server.serving.tailing.conftest import PageOpener

from tailrace.model.position import Positions
from tailrace_server.serving.tailing import hub as hub_module
from tailrace_server.serving.tailing import tail as tail_module
from tailrace_server.serving.tailing import ticks as ticks_module
from tailrace_server.serving.tailing import ws_listener
from tailrace_server.serving.tailing.hub import Hub

SHARED = "websocket tails of orders"


def names(node):
    return [connection.name for connection in node.connections if connection.name.startswith("websocket")]


@pytest.fixture
def shared(running, ended):
    """Waits until there are so many streams that pages share, and none of a page alone."""

    async def wait(hubs=1):
        await ended(lambda: names(running.node) == [SHARED] * hubs)

    return wait


@pytest.fixture
def cut():
    """Ends the connections of a node that was killed, as the system would if it were a process of its own."""

    def cut(connections):
        for connection in connections:
            connection.transport.close()

    return cut


@contextlib.asynccontextmanager
async def pages(open_page, *targets):
    async with contextlib.AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_page(target)) for target in targets]
        for page in opened:
            await page.of_type("open")
        yield opened


async def keys(page, count):
    return [row["key"] for row in await page.rows(count)]


async def test_pages_share_a_stream_and_each_gets_each_row_once(open_page, feed, shared):
    async with pages(open_page, *["/feeds/orders?since=now"] * 3) as opened:
        await shared()
        for number in range(20):
            await feed.put(b"%d" % number, b"v")
        for page in opened:
            assert sorted(map(int, await keys(page, 20))) == list(range(20))


async def test_a_page_that_comes_later_gets_the_past_first_and_then_shares(open_page, feed, shared):
    for number in range(10):
        await feed.put(b"%d" % number, b"v")
    async with pages(open_page, *["/feeds/orders?since=now"] * 2):
        await shared()
        async with pages(open_page, "/feeds/orders") as [late]:
            assert sorted(map(int, await keys(late, 10))) == list(range(10))
            await feed.put(b"10", b"v")  # by one stream or by the other
            assert await keys(late, 1) == ["10"]
            await shared()
            await feed.put(b"11", b"v")
            assert await keys(late, 1) == ["11"]


async def test_pages_that_have_begun_at_the_beginning_share_also_partitions_without_rows(open_page, feed, shared):
    await feed.put(b"k", b"v")
    async with pages(open_page, *["/feeds/orders"] * 2) as opened:
        for page in opened:
            assert await keys(page, 1) == ["k"]
        await shared()


async def test_the_stream_ends_with_the_last_page(open_page, feed, running, shared, ended):
    async with pages(open_page, *["/feeds/orders?since=now"] * 2):
        await shared()
    await ended(lambda: not names(running.node))


async def test_a_page_goes_on_when_the_others_have_left(open_page, feed, shared):
    async with pages(open_page, "/feeds/orders?since=now") as [page]:
        async with pages(open_page, "/feeds/orders?since=now"):
            await shared()
        await feed.put(b"k", b"v")
        assert await keys(page, 1) == ["k"]


async def test_positions_of_shared_ticks_lead_on(open_page, feed, shared):
    async with pages(open_page, *["/feeds/orders?since=now"] * 2) as [page, _]:
        await shared()
        await feed.put(b"a", b"1")
        await keys(page, 1)
        told = (await page.of_type("positions"))["positions"]
    assert sum(Positions.parse(told).seqs().values()) == 1
    await feed.put(b"b", b"2")
    async with pages(open_page, f"/feeds/orders?since={told}") as [page]:
        assert await keys(page, 1) == ["b"]


async def test_other_filters_do_not_share(open_page, feed, running, shared, ended):
    both = ["/feeds/orders?since=now", "/feeds/orders?since=now&key_prefix=a", "/feeds/orders?since=now&keys_only=true"]
    async with pages(open_page, *both, *both) as opened:
        await shared(3)
        await feed.put(b"b", b"v")
        await feed.put(b"a", b"v")
        for page in (opened[1], opened[4]):
            assert await keys(page, 1) == ["a"]
        for page in (opened[2], opened[5]):
            assert [row["value"] for row in await page.rows(2)] == [None, None]


async def test_a_page_that_is_too_slow_goes_on_by_itself_and_misses_nothing(
    open_page, handshake, fill_feed, feed, running, shared, ended, monkeypatch
):
    monkeypatch.setattr(ticks_module, "RING_TICKS_MAX", 1)
    async with pages(open_page, "/feeds/orders?since=now") as [page], open_page("/feeds/orders?since=now") as slow:
        await slow.of_type("open")
        await shared()
        await fill_feed(feed, 400)  # more than the buffers of its socket
        assert len(await page.rows(400)) == 400
        assert sorted(await keys(slow, 400)) == [f"{number:06d}" for number in range(400)]
        await shared()
        await feed.put(b"more", b"v")
        assert await keys(slow, 1) == ["more"]


async def test_an_idle_page_that_found_no_place_asks_again(open_page, feed, shared, monkeypatch):
    place, refused = Hub.place, []

    def refuse(hub, held):
        if len(refused) == 5:
            return place(hub, held)
        refused.append(held)
        return None

    monkeypatch.setattr(Hub, "place", refuse)
    async with pages(open_page, *["/feeds/orders?since=now"] * 2):
        await shared()
    assert len(refused) == 5


async def test_a_page_that_reads_nothing_keeps_no_other_waiting(open_page, handshake, fill_feed, feed, shared):
    asked = handshake.replace(b"/feeds/orders", b"/feeds/orders?since=now")
    async with pages(open_page, "/feeds/orders?since=now") as [page], await open_page.raw(asked):
        await shared()
        await fill_feed(feed, 600)
        assert len(await page.rows(600)) == 600


async def test_a_dropped_feed_ends_all_that_share(open_page, client, feed, shared):
    async with pages(open_page, *["/feeds/orders?since=now"] * 3) as opened:
        await shared()
        await client.drop_feed("orders")
        for page in opened:
            assert (await page.failure())[::2] == ("UnknownFeed", 4404)


async def test_rows_that_the_node_has_lost_are_taken_back_from_all(open_page, feed, running, lose, shared, cut):
    await feed.put(b"kept", b"1", level="disk")
    async with pages(open_page, *["/feeds/orders?since=now"] * 2) as opened:
        await shared()
        async with lose():
            lost = await feed.put(b"kept", b"2", level="disk")
            for page in opened:
                assert await keys(page, 1) == ["kept"]
            before = list(running.node.connections)
        cut(before)
        for page in opened:
            rollback = await page.of_type("rollback")
            assert (rollback["partition"], rollback["seq"], rollback["keys"]) == (lost.partition, 1, [{"key": "kept"}])
            message = await page.of_type("mutations")
            assert (message["refetched"], [row["value"] for row in message["rows"]]) == (True, ["1"])
        await feed.put(b"kept", b"3")
        for page in opened:
            assert [row["value"] for row in await page.rows(1)] == ["3"]


async def read_up_to(page, value):
    """Reads rows up to one with this value. Older rows of its key may come before it, or not."""
    while value not in [row["value"] for row in await page.rows(1)]:
        pass


async def taken_back(page):
    """Returns the next rollback: its seq, and its keys; None if the page has to drop the whole partition."""
    rollback = await page.of_type("rollback")
    keys = rollback["keys"]
    return rollback["seq"], None if keys is None else [key["key"] for key in keys]


@pytest.mark.parametrize("is_level", [False, True])
async def test_a_loss_from_before_the_shared_stream_takes_back_only_what_was_lost(
    open_page, feed, running, lose, shared, cut, is_level
):
    await feed.put(b"kept", b"1", level="disk")
    async with contextlib.AsyncExitStack() as stack:
        async with lose():
            await feed.put(b"kept", b"2", level="disk")
            opened = await stack.enter_async_context(pages(open_page, *["/feeds/orders"] * 2))
            for page in opened:
                await read_up_to(page, "2")
            await shared()
            if is_level:
                await feed.put(b"kept", b"3", level="disk")
                for page in opened:
                    await read_up_to(page, "3")
            before = list(running.node.connections)
        cut(before)
        for page in opened:
            assert await taken_back(page) == (1, ["kept"])
            assert [row["value"] for row in await page.rows(1)] == ["1"]


async def test_a_page_that_is_ahead_of_the_shared_stream_has_only_what_was_lost_taken_back(
    open_page, feed, running, lose, shared, cut, monkeypatch
):
    await feed.put(b"kept", b"1", level="disk")
    async with contextlib.AsyncExitStack() as stack:
        opened = await stack.enter_async_context(pages(open_page, *["/feeds/orders?since=now"] * 2))
        await shared()
        async with lose():
            for module in (hub_module, tail_module):
                monkeypatch.setattr(module, "POSITIONS_INTERVAL_SECONDS", math.inf)
            monkeypatch.setattr(hub_module, "TICK_SECONDS_PER_TAIL", math.inf)  # no tick is due after the next one
            await feed.put(b"first", b"1", level="disk")
            for page in opened:
                await read_up_to(page, "1")
            lost = await feed.put(b"kept", b"2", level="disk")
            opened += await stack.enter_async_context(pages(open_page, "/feeds/orders"))
            await read_up_to(opened[-1], "2")
            await shared()
            before = list(running.node.connections)
        monkeypatch.setattr(hub_module.Hub, "_is_due", lambda hub: bool(hub._events))  # with each event from now on
        cut(before)
        for page in opened:
            messages = {}
            while lost.partition not in messages:
                message = await page.of_type("rollback")
                messages[message["partition"]] = message
            assert messages[lost.partition]["keys"] == [{"key": "kept"}]


async def test_a_node_that_stops_tells_all_that_share(running, feed, nursery, shared):
    stopping = trio.Event()

    async def serve(task_status):
        async with ws_listener(running.node.handle, running.node, ("127.0.0.1", 0)) as address:
            task_status.started(address)
            await stopping.wait()

    address = await nursery.start(serve)
    async with pages(PageOpener(address), *["/feeds/orders?since=now"] * 3) as opened:
        await shared()
        stopping.set()
        for page in opened:
            await page.rest()
            assert page.ws.closed.code == 1001


@pytest.fixture
async def secured_page(secured):
    """Opens pages of a node that requires tokens, each with the token that it is given."""
    node = secured.running.node

    @contextlib.asynccontextmanager
    async def open_with(token, target="/feeds/orders?since=now"):
        async with opener(target, subprotocols=("tailrace.json.v1", f"tailrace.token.{token}")) as page:
            await page.of_type("open")
            yield page

    async with ws_listener(node.handle, node, ("127.0.0.1", 0)) as address:
        opener = PageOpener(address)
        yield open_with


async def test_a_revoked_token_ends_those_that_share_and_no_others(secured, secured_page, ended):
    node = secured.running.node
    one, other = await secured.token("one", "read"), await secured.token("other", "read")
    async with contextlib.AsyncExitStack() as stack:
        mine = [await stack.enter_async_context(secured_page(one)) for _ in range(3)]
        others = [await stack.enter_async_context(secured_page(other)) for _ in range(2)]
        await ended(lambda: names(node) == [SHARED] * 2)
        async with secured.connect(secured.admin) as client:
            await client.revoke_token("one")
            for page in mine:
                assert (await page.failure())[::2] == ("Forbidden", 4403)
            await client.feed("orders").put(b"k", b"v")
        for page in others:
            assert await keys(page, 1) == ["k"]


async def test_a_token_with_a_prefix_shares_with_none_that_sees_more(secured, secured_page, ended):
    node = secured.running.node
    narrow, wide = await secured.token("narrow", "read", key_prefix=b"a"), await secured.token("wide", "read")
    target = "/feeds/orders?since=now&key_prefix=a"
    async with contextlib.AsyncExitStack() as stack:
        for token in (narrow, narrow, wide, wide):
            await stack.enter_async_context(secured_page(token, target))
        await ended(lambda: names(node) == [SHARED] * 2)
