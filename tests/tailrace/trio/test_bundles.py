"""Rows that several tasks put in one turn of the loop leave in one block, and each task has its own answer."""

import dataclasses

import pytest
import trio

import tailrace
from tailrace.trio.link import RequestLink


@pytest.fixture
def node_config(node_config):
    """A node that says nothing by itself: each of its messages would have the client send what waits."""
    limits = dataclasses.replace(node_config.limits, noop_interval_s=1_000.0)
    return dataclasses.replace(node_config, limits=limits)


def blocks_of(client):
    """The blocks that the client has sent to its one lane."""
    (lane,) = client._core.lanes.values()
    return lane._next_number - 1


async def test_rows_that_tasks_put_in_one_turn_leave_together(client):
    """The first turn sends each at once; after answers that came together the client waits for the rest of the turn."""
    feed = await client.create_feed("one", partitions=1)
    versions = {}

    async def putter(number):
        for turn in range(10):
            key = b"%d %d" % (number, turn)
            versions[key] = (await feed.put(key, b"v %s" % key)).seq

    async with trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(putter, number)
    assert sorted(versions.values()) == list(range(1, 121))
    items = await feed.get_many(versions)
    assert {item.key: item.version.seq for item in items} == versions
    assert all(item.value == b"v %s" % item.key for item in items)
    assert blocks_of(client) < 60, "in blocks, not row by row"


async def test_rows_that_wait_for_the_end_of_a_turn_leave_without_anything_else_that_sends(running, monkeypatch):
    """Each second something would send them, too."""

    async def rest(link):
        await trio.sleep_forever()

    monkeypatch.setattr(RequestLink, "tick", rest)
    monkeypatch.setattr(RequestLink, "keep", rest)
    with trio.fail_after(30):
        async with tailrace.connect(running.url) as client:
            await test_rows_that_tasks_put_in_one_turn_leave_together(client)


async def test_a_look_up_sees_the_rows_that_were_put_before_it_in_the_same_turn(client):
    feed = await client.create_feed("one", partitions=1)
    await feed.put(b"k", b"0")
    found = []

    async def put_and_wait(number):
        await feed.put(b"%d" % number, b"v")
        nursery.start_soon(feed.put, b"%d again" % number, b"v")
        await feed.put(b"%d a third time" % number, b"v")

    async def look():
        await trio.lowlevel.checkpoint()
        found.append(await feed.get(b"k"))

    for turn in range(1, 20):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(put_and_wait, number)
            await feed.put(b"k", b"%d" % turn)
            nursery.start_soon(look)
        assert int(found[-1].value) >= turn


async def test_a_put_that_is_cancelled_takes_no_other_one_of_its_turn_along(client, running):
    feed = await client.create_feed("one", partitions=1)
    answered = []

    async def putter(number, scope):
        with scope:
            for turn in range(20):
                if number == 3 and turn == 10:
                    scope.cancel()
                answered.append((number, turn, (await feed.put(b"%d %d" % (number, turn), b"v")).seq))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(putter, number, trio.CancelScope())
    assert {(number, turn) for number, turn, _ in answered} == {
        (number, turn) for number in range(8) for turn in range(10 if number == 3 else 20)
    }
    assert len({seq for _, _, seq in answered}) == len(answered)
    assert client._core.session.idle
