"""A `put` or `delete` alone on its client under trio: which take the short way, and what becomes of the others."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from tests.tailrace.lone_calls import VALUE, WRONG_ROWS, noted_writes, rarely_ticks, silent, until_lent

import tailrace
from tailrace.trio.lending import LONE_CALLS
from tailrace.trio.ready_sockets import HAS_EPOLL

__all__ = ["rarely_ticks", "silent"]

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="a socket is lent out of the set of ready ones")


@pytest.fixture
def lone(monkeypatch):
    return noted_writes(monkeypatch)


@pytest.fixture
async def warm(feed, lone):
    """The feed, after calls that have made it ready for the short way."""
    await feed.put(b"k", VALUE)
    await until_lent(feed)
    lone.clear()
    return feed


async def values(feed, *keys):
    return [item and item.value for item in await feed.get_many(keys)]


@pytest.mark.usefixtures("rarely_ticks")
async def test_puts_and_deletions_take_the_short_way(warm, lone):
    before = await warm.put(b"k", VALUE)
    for number in range(20):
        version = await warm.put(b"k", b"%d" % number)
        assert version[:2] == before[:2]
        assert version.seq > before.seq
        assert (await warm.get(b"k")).version == version
        before = await warm.delete(b"k")
        assert before.seq == version.seq + 1
        assert await warm.get(b"k") is None
        await warm.put(b"other %d" % number, VALUE, level="memory")
        await warm.put(b"long %d" % number, VALUE * 5)
        assert (await warm.get(b"long %d" % number)).value == VALUE * 5
    assert lone.count(True) > 60 > len(lone) - 30, "a tick may come in between"


async def test_unusual_writes_take_the_general_way(client, warm, lone):
    version = await warm.put(b"k", VALUE)
    lone.clear()
    version = await warm.put(b"k", VALUE, if_version=version)
    await warm.put(b"k", VALUE, ttl=1000)
    await warm.put(b"absent", VALUE, if_absent=True)
    with pytest.raises(tailrace.VersionConflict):
        await warm.delete(b"k", if_version=version)
    assert await warm.delete_if_present(b"not there") is None
    await client.feed(warm.name).put(b"k", VALUE)
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(warm.put, b"k", VALUE)
    assert len(lone) <= 1, "of several calls at once, the first one"
    for key, value, error in WRONG_ROWS:
        with pytest.raises(error):
            await warm.put(key, value)
    with pytest.raises(ValueError, match="level"):
        await warm.put(b"k", VALUE, level="no level")
    assert await values(warm, b"k", b"absent") == [VALUE, VALUE]


async def test_a_level_that_is_no_text_leaves_the_socket_to_others(warm, lone):
    await warm.put(b"k", VALUE)
    assert lone == [True]
    with pytest.raises(TypeError):
        await warm.put(b"k", VALUE, level=[])
    async with warm.writer() as writer:
        await writer.put(b"of a writer", VALUE)
    assert await values(warm, b"of a writer") == [VALUE]


async def test_an_error_of_the_node_is_that_of_the_general_way(client, warm, lone):
    await client.drop_feed(warm.name)
    with pytest.raises(tailrace.UnknownFeed):
        await warm.put(b"k", VALUE)
    await client.create_feed(warm.name, partitions=3)
    assert await warm.put(b"k", VALUE)
    assert (await warm.get(b"k")).value == VALUE


@pytest.mark.parametrize("beside", ["a get", "a put", "a writer"])
async def test_another_call_begins_while_it_waits(warm, lone, silent, beside):
    async def write():
        async with warm.writer() as writer:
            await writer.put(b"another", b"1")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.put, b"k", b"2")
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
        if beside == "a get":
            nursery.start_soon(warm.get, b"k")
        elif beside == "a put":
            nursery.start_soon(warm.put, b"another", b"1")
        else:
            nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked(0.02)
        silent()
    assert await values(warm, b"k", b"another") == [b"2", None if beside == "a get" else b"1"]
    for number in range(3 * LONE_CALLS):
        await warm.put(b"k", b"%d" % number)
    assert True in lone


async def test_the_answer_to_a_cancelled_one_is_ignored(warm, lone, silent):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.put, b"k", b"first")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    assert lone == [False]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.put, b"k", b"second")
        await trio.testing.wait_all_tasks_blocked()
        silent()
    assert (await warm.get(b"k")).value == b"second"
    for number in range(3 * LONE_CALLS):
        version = await warm.put(b"k", b"%d" % number)
        assert (await warm.get(b"k")).version == version
    assert True in lone


async def test_a_cancelled_scope_sends_nothing(warm, lone):
    with trio.CancelScope() as scope:
        scope.cancel()
        await warm.put(b"k", b"never")
    assert scope.cancelled_caught
    assert not lone
    assert (await warm.get(b"k")).value == VALUE


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_connection_breaks_while_it_waits(running, warm, lone, silent, is_cancelled):
    """The node has the row, and its answer is lost: it is written once."""
    versions = []
    scope = trio.CancelScope()

    async def put():
        with scope:
            versions.append(await warm.put(b"k", b"1"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
        if is_cancelled:
            scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
        running.cut_connections()
    assert len(versions) == (not is_cancelled)
    last = await warm.put(b"k", b"2")
    assert last.seq == 3
    assert (await warm.get(b"k")).value == b"2"


async def test_it_is_given_up_in_time(client, warm, lone, silent):
    client._runner._retry_for_s = 0.3
    with pytest.raises(tailrace.Unreachable, match="given up") as caught:
        await warm.put(b"k", VALUE)
    assert lone == [False]
    assert caught.value.outcome == "unknown"
    client._runner._retry_for_s = 30.0
    silent()
    for _ in range(2 * LONE_CALLS):
        await warm.put(b"k", VALUE)
    assert True in lone


async def test_the_client_closes_while_it_waits(running, lone):
    errors = []
    async with trio.open_nursery() as nursery, tailrace.connect(running.url) as client:
        feed = await client.create_feed("closing")
        await feed.put(b"k", VALUE)
        await until_lent(feed)
        for connection in running.node.connections:
            connection.transport.send = lambda *data: None
        lone.clear()

        async def put():
            try:
                await feed.put(b"k", VALUE)
            except tailrace.Unreachable as error:
                errors.append(error)

        nursery.start_soon(put)
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
    assert "closed" in str(errors)
