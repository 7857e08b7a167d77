"""A browser tails a feed: what it gets, how it resumes, what it is told when it cannot."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
import tracemalloc

import pytest
import trio
from trio_websocket import ConnectionClosed

from tailrace.model.json_rows import field_bytes
from tailrace.model.position import Positions
from tailrace_server.serving.tailing import session as session_module
from tailrace_server.serving.tailing.streams import WINDOW_BYTES


async def test_a_page_gets_what_there_is_and_what_comes(open_page, feed):
    await feed.put(b"k", b"1")
    await feed.delete(b"k")
    async with open_page("/feeds/orders") as page:
        assert page.ws.subprotocol == "tailrace.json.v1"
        hello = await page.message()
        assert hello.keys() == {"type", "feed", "partitions", "positions"}
        assert (hello["type"], hello["feed"], hello["partitions"]) == ("open", "orders", 4)
        put, deletion = await page.rows(2)
        assert (put["key"], put["value"], put["seq"], put["deleted"]) == ("k", "1", 1, False)
        assert (deletion["key"], deletion["value"], deletion["seq"], deletion["deleted"]) == ("k", None, 2, True)
        assert (await page.of_type("snapshot_end"))["seq"] == 2
        version = await feed.put(b"\xff", b"\xfe")
        message = await page.of_type("mutations")
        [row] = message["rows"]
        assert message["partition"] == version.partition
        assert (row["key_encoding"], row["value_encoding"]) == ("base64", "base64")
        assert (field_bytes(row, "key"), field_bytes(row, "value"), row["seq"]) == (b"\xff", b"\xfe", version.seq)


async def test_now_leaves_out_what_was_there(open_page, feed):
    await feed.put(b"old", b"")
    async with open_page("/feeds/orders?since=now") as page:
        await page.of_type("open")
        await feed.put(b"new", b"")
        assert [row["key"] for row in await page.rows(1)] == ["new"]


async def test_a_prefix_leaves_out_other_keys_and_their_snapshots(open_page, feed):
    await feed.put(b"b", b"")
    await feed.put(b"a\xff1", b"")
    async with open_page("/feeds/orders?key_prefix=a%FF") as page:
        await page.of_type("open")
        assert (await page.message())["type"] == "mutations"
        assert (await page.message())["type"] == "snapshot_end"
        assert (await page.message())["type"] == "positions"


async def test_keys_only_leaves_out_values_and_tells_deletions(open_page, feed):
    async with open_page("/feeds/orders?keys_only=true") as page:
        await page.of_type("open")
        await feed.put(b"k", b"value")
        await feed.delete(b"k")
        rows = await page.rows(2)
        assert [(row["key"], row["value"], row["deleted"]) for row in rows] == [("k", None, False), ("k", None, True)]


async def test_positions_move_on_where_nothing_has_the_prefix(open_page, feed):
    async with open_page("/feeds/orders?key_prefix=other") as page:
        await page.of_type("open")
        await feed.put(b"k", b"1")
        positions = Positions.parse((await page.of_type("positions"))["positions"])
        assert sum(positions.seqs().values()) == 1


async def test_positions_lead_on_from_where_they_were_given(open_page, feed):
    await feed.put(b"k", b"1")
    async with open_page("/feeds/orders") as page:
        await page.rows(1)
        positions = (await page.of_type("positions"))["positions"]
    assert sum(Positions.parse(positions).seqs().values()) == 1
    await feed.put(b"k", b"2")
    async with open_page(f"/feeds/orders?since={positions}") as page:
        assert [row["value"] for row in await page.rows(1)] == ["2"]
    async with open_page("/feeds/orders?since=message") as page:
        await page.ws.send_message(f'{{"since": "{positions}"}}')
        assert [row["value"] for row in await page.rows(1)] == ["2"]


async def test_positions_of_the_greeting_lead_on_as_well(open_page, feed):
    await feed.put(b"k", b"1")
    async with open_page("/feeds/orders?since=now") as page:
        positions = (await page.message())["positions"]
    await feed.put(b"k", b"2")
    async with open_page(f"/feeds/orders?since={positions}") as page:
        assert [row["value"] for row in await page.rows(1)] == ["2"]


async def seqs_told(page):
    """Returns the sum of the seqs in the next positions."""
    positions = (await page.of_type("positions"))["positions"]
    return sum(Positions.parse(positions).seqs().values())


async def test_positions_also_come_while_there_is_always_more(open_page, feed, nursery, monkeypatch):
    monkeypatch.setattr("tailrace_server.serving.tailing.tail.POSITIONS_INTERVAL_SECONDS", 0.02)

    async def write():
        for number in itertools.count():
            await feed.put(b"k", b"%d" % number)

    async with open_page("/feeds/orders") as page:
        nursery.start_soon(write)
        first = last = await seqs_told(page)
        while last <= first:  # on a busy machine a write may take longer than the interval
            last = await seqs_told(page)
        nursery.cancel_scope.cancel()


async def test_a_page_without_a_subprotocol_gets_json(open_page, feed):
    async with open_page("/feeds/orders", subprotocols=None) as page:
        assert page.ws.subprotocol is None
        assert (await page.message())["type"] == "open"


@pytest.mark.parametrize(
    ("target", "error", "says", "code"),
    [
        ("/nowhere", "BadRequest", "/feeds/NAME", 4400),
        ("/feeds/orders?form=now", "BadRequest", "no parameter 'form'", 4400),
        ("/feeds/other", "UnknownFeed", "'other'", 4404),
        ("/feeds/%00", "UnknownFeed", "no feed", 4404),
        ("/feeds/orders?since=trp1.nonsense", "BadPosition", "", 4409),
    ],
)
async def test_what_cannot_be_had_is_explained(open_page, feed, target, error, says, code):
    async with open_page(target) as page:
        found = await page.failure()
    assert (found[0], found[2]) == (error, code)
    assert says in found[1]


async def test_positions_of_another_feed_are_refused(open_page, client, feed):
    await client.create_feed("others", partitions=4)
    async with open_page("/feeds/others?since=now") as page:
        positions = (await page.message())["positions"]
    async with open_page(f"/feeds/orders?since={positions}") as page:
        assert (await page.failure())[0] == "BadPosition"


async def test_a_feed_that_is_dropped_ends_its_pages(open_page, client, feed):
    async with open_page("/feeds/orders") as page:
        await page.of_type("open")
        await client.drop_feed("orders")
        assert (await page.failure())[::2] == ("UnknownFeed", 4404)


async def test_a_message_that_nobody_expects(open_page, feed):
    async with open_page("/feeds/orders") as page:
        await page.of_type("open")
        await page.ws.send_message("hello?")
        assert (await page.failure())[::2] == ("BadRequest", 4400)


async def test_a_first_message_that_is_none(open_page, feed):
    async with open_page("/feeds/orders?since=message") as page:
        await page.ws.send_message("hello?")
        error, says, code = await page.failure()
        assert (error, code) == ("BadRequest", 4400)
        assert '{"since": "..."}' in says


async def test_a_first_message_that_does_not_come(open_page, feed, monkeypatch):
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_SECONDS_MAX", 0.05)
    async with open_page("/feeds/orders?since=message") as page:
        error, says, _ = await page.failure()
        assert (error, "none came within" in says) == ("BadRequest", True)


async def test_a_message_that_is_too_long(open_page, feed):
    async with open_page("/feeds/orders?since=message") as page:
        with contextlib.suppress(ConnectionClosed):
            await page.ws.send_message("x" * 2_000_000)
        await page.rest()
        assert page.ws.closed.code == 1009


async def test_a_page_that_leaves_frees_everything(open_page, feed, running, ended):
    before = len(running.node.connections)
    async with open_page("/feeds/orders") as page:
        await page.of_type("open")
        assert len(running.node.connections) == before + 1
        [status] = [c for c in running.node.status()["connections"] if c["name"].startswith("websocket 127.0.0.1:")]
        assert status["streams"] == 4
    await ended(lambda: len(running.node.connections) == before)


async def test_a_page_whose_socket_breaks_frees_everything(open_page, handshake, feed, running, ended):
    before = len(running.node.connections)
    async with await open_page.raw(handshake):
        await ended(lambda: len(running.node.connections) > before)
    await ended(lambda: len(running.node.connections) == before)


async def test_a_page_that_does_not_answer_pings_is_dropped(open_page, handshake, feed, running, ended, monkeypatch):
    monkeypatch.setattr(session_module, "PING_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(session_module, "PONG_SECONDS_MAX", 0.05)
    before = len(running.node.connections)
    async with await open_page.raw(handshake):
        await ended(lambda: len(running.node.connections) > before)
        await ended(lambda: len(running.node.connections) == before)


async def test_a_page_that_does_not_read_costs_a_window(open_page, handshake, fill_feed, feed, running, ended):
    await fill_feed(feed, 600)
    async with await open_page.raw(handshake):
        await ended(lambda: any(c.rounds.window.is_full for c in running.node.connections))
        await trio.testing.wait_all_tasks_blocked(0.1)
        [connection] = [c for c in running.node.connections if c.name.startswith("websocket")]
        assert connection.rounds.window.outstanding_bytes <= WINDOW_BYTES + 1024 * 1024
        assert connection.transport.backlog_bytes <= WINDOW_BYTES


# What the node does in the background, such as the rest of a merge, is in one measure; a page's cost is in all.
MEASURES_MAX = 3


def random_values(number):
    return os.urandom(2_000)


def text_values(number):
    return b"%d, a text that compresses well. " % number * 80


@pytest.mark.parametrize("value_of", [random_values, text_values])
@pytest.mark.parametrize("flushed", [False, True], ids=["memory", "segments"])
async def test_pages_that_do_not_read_cost_what_the_documents_say(
    open_page, handshake, client, running, value_of, flushed
):
    feed = await client.create_feed("orders", partitions=8)
    async with feed.writer() as writer:
        for number in range(16_000):
            await writer.put(b"%d" % number, value_of(number))
    node = running.node
    for partition in node.feeds.partitions():
        if flushed:
            await node.storage.flusher.flush(partition)
        else:  # a merge in the background would be measured, too: it makes the blocks anew
            await node.storage.flusher.merger.merge(partition)
    async with open_page("/feeds/orders") as page:  # what is imported and made once
        await page.rows(1)
    await trio.testing.wait_all_tasks_blocked(0.1)
    held = []
    for _ in range(MEASURES_MAX):
        gc.collect()
        tracemalloc.start()
        try:
            async with await open_page.raw(handshake):
                await at_rest(node)
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        if held[-1] <= session_module.CLIENT_BYTES_MAX:
            return
    pytest.fail(f"the page holds {held} bytes, more than {session_module.CLIENT_BYTES_MAX} each time")


async def at_rest(node):
    """Returns once the only page is blocked by its socket, and nothing more is read for it."""
    sent, still = -1, 0
    while still < 50:
        await trio.sleep(0.01)
        [connection] = pages_of(node) or [None]
        window = connection and connection.rounds.window
        now = -1 if window is None else window.credited_bytes + window.outstanding_bytes
        still = still + 1 if now == sent > 0 else 0
        sent = now


@pytest.mark.parametrize("value_of", [random_values, text_values])
async def test_a_page_is_given_all_of_segments(open_page, client, running, value_of):
    """With a window of less than a chunk, chunks are read as there is room for them."""
    feed = await client.create_feed("orders", partitions=12)
    async with feed.writer(batch_bytes=300_000) as writer:
        for number in range(4_000):
            await writer.put(b"%d" % number, value_of(number))
    for partition in running.node.feeds.partitions():
        await running.node.storage.flusher.flush(partition)
    async with open_page("/feeds/orders") as page:
        rows = await page.rows(4_000)
    assert {int(row["key"]) for row in rows} == set(range(4_000))


async def test_long_positions_are_parsed_beside_the_loop(open_page, feed, monkeypatch):
    """A megabyte takes 2 s, for which the node was deaf."""
    threads, real = [], session_module.parse_first_message

    def parse(message):
        threads.append(threading.current_thread())
        return real(message)

    monkeypatch.setattr(session_module, "parse_first_message", parse)
    for length in (10, 900_000):
        async with open_page("/feeds/orders?since=message") as page:
            await page.ws.send_message(f'{{"since": "trp1.{"A" * length}"}}')
            assert (await page.failure())[0] == "BadPosition"
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def pages_of(node):
    return [connection for connection in node.connections if connection.name.startswith("websocket")]


async def test_a_page_that_does_not_read_is_dropped_after_a_while(
    open_page, handshake, fill_feed, feed, running, ended, monkeypatch
):
    monkeypatch.setattr(session_module, "SEND_SECONDS_MAX", 0.1)
    await fill_feed(feed, 600)
    async with await open_page.raw(handshake):
        await ended(lambda: any(c.rounds.window.is_full for c in running.node.connections))
        await ended(lambda: not any(c.name.startswith("websocket") for c in running.node.connections))


async def test_a_page_that_reads_slowly_gets_everything(open_page, fill_feed, feed):
    await fill_feed(feed, 200)
    async with open_page("/feeds/orders") as page:
        rows = await page.rows(200)
    assert {row["key"] for row in rows} == {f"{number:06d}" for number in range(200)}
