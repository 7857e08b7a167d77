"""A `get` alone on its client under trio: which calls take the short way, and what becomes of the others."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from tests.tailrace.lone_calls import VALUE, noted, rarely_ticks, silent, until_lent

import tailrace
from tailrace.trio.lending import LONE_CALLS
from tailrace.trio.ready_sockets import HAS_EPOLL

__all__ = ["rarely_ticks", "silent"]

pytestmark = pytest.mark.skipif(not HAS_EPOLL, reason="a socket is lent out of the set of ready ones")


@pytest.fixture
def lone(monkeypatch):
    return noted(monkeypatch)


@pytest.fixture
async def warm(feed, lone):
    """The feed, after calls that have made it ready for the short way."""
    await feed.put(b"k", VALUE)
    await until_lent(feed)
    lone.clear()
    return feed


@pytest.mark.usefixtures("rarely_ticks")
async def test_gets_take_the_short_way(warm, lone):
    version = (await warm.get(b"k")).version
    for number in range(20):
        assert (await warm.get(b"k")).value == VALUE
        assert await warm.get(b"another") is None
        assert (await warm.get(b"k", level="memory")).version == version
        await warm.put(b"%d" % number, b"%d" % number)
        assert (await warm.get(b"%d" % number)).value == b"%d" % number
    assert lone.count(True) >= len(lone) - 2 > 60, "a tick may come in between"


async def test_unusual_gets_take_the_general_way(client, warm, lone):
    version = (await warm.get(b"k")).version
    lone.clear()
    assert (await warm.get(b"k", at_least=version)).value == VALUE
    assert (await client.feed(warm.name).get(b"k")).value == VALUE
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(warm.get, b"k")
    assert len(lone) <= 1, "of several calls at once, the first one"
    for key, error in (("k", TypeError), (b"", ValueError), (b"k" * 5_000, tailrace.TooLarge)):
        with pytest.raises(error):
            await warm.get(key)
    with pytest.raises(ValueError, match="level"):
        await warm.get(b"k", level="no level")


async def test_a_long_value_comes_in_several_reads(warm, lone):
    value = VALUE * 10_000
    await warm.put(b"long", value)
    for _ in range(5):
        assert (await warm.get(b"long")).value == value
        assert (await warm.get(b"k")).value == VALUE
    assert {True, False} == set(lone)


async def test_an_error_of_the_node_is_that_of_the_general_way(client, warm):
    await client.drop_feed(warm.name)
    with pytest.raises(tailrace.UnknownFeed):
        await warm.get(b"k")
    await client.create_feed(warm.name, partitions=2)
    assert await warm.get(b"k") is None


async def test_an_answer_that_is_late_goes_on_by_the_general_way(warm, lone, silent):
    found = []

    async def get():
        found.append(await warm.get(b"k"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
        while not warm._runner._session._queue.requests:  # noqa: ASYNC110 - until the next tick
            await trio.sleep(0.01)
        silent()
    assert [item.value for item in found] == [VALUE]
    assert (await warm.get(b"k")).value == VALUE


@pytest.mark.parametrize("beside", ["a get", "a put"])
async def test_another_call_begins_while_it_waits(warm, lone, silent, beside):
    """All answers come in one read."""
    found = []

    async def get(key):
        found.append(await warm.get(key))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get, b"k")
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
        if beside == "a get":
            nursery.start_soon(get, b"another")
        else:
            nursery.start_soon(warm.put, b"another", b"1")
        await trio.testing.wait_all_tasks_blocked(0.02)
        silent()
    assert VALUE in [item and item.value for item in found]
    another = await warm.get(b"another")
    assert (another is None) == (beside == "a get")


@pytest.mark.usefixtures("rarely_ticks")
async def test_the_answer_to_a_cancelled_one_is_ignored(warm, lone, silent):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.get, b"k")
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    assert lone == [False]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(warm.put, b"k", b"another")
        await trio.testing.wait_all_tasks_blocked()
        silent()
    for _ in range(2 * LONE_CALLS):
        assert (await warm.get(b"k")).value == b"another"
        assert await warm.get(b"not there") is None
    assert lone[-1]


async def test_a_cancelled_scope_sends_nothing(warm, lone):
    with trio.CancelScope() as scope:
        scope.cancel()
        await warm.get(b"k")
    assert scope.cancelled_caught
    assert not lone


async def test_it_asks_again_after_a_connection_that_breaks(running, warm, lone, silent):
    found = []

    async def get():
        found.append(await warm.get(b"k"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(get)
        await trio.testing.wait_all_tasks_blocked()
        assert lone == [False]
        running.cut_connections()
    assert [item.value for item in found] == [VALUE]


async def test_it_is_given_up_in_time(client, warm, silent):
    client._runner._retry_for_s = 0.3
    with pytest.raises(tailrace.Unreachable, match="given up"):
        await warm.get(b"k")
    client._runner._retry_for_s = 30.0
    silent()
    assert (await warm.get(b"k")).value == VALUE
