"""Rows that several tasks put in one turn of asyncio's loop leave in one block, and each task has its own answer."""

import asyncio

import pytest
from tests.tailrace.asyncio.bridge import run_in_thread
from tests.tailrace.trio.test_bundles import blocks_of, node_config  # noqa: F401 - a fixture

import tailrace.asyncio
from tailrace.asyncio.link import RequestLink


async def put_by_tasks(url):
    versions = {}
    async with tailrace.asyncio.connect(url) as client:
        feed = await client.create_feed("one", partitions=1)

        async def putter(number):
            for turn in range(10):
                key = b"%d %d" % (number, turn)
                versions[key] = (await feed.put(key, b"v %s" % key)).seq

        async with asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(putter(number))
        assert sorted(versions.values()) == list(range(1, 121))
        assert {item.key: item.version.seq for item in await feed.get_many(versions)} == versions
        assert blocks_of(client) < 60, "in blocks, not row by row"


async def test_rows_that_tasks_put_in_one_turn_leave_together(running):
    await run_in_thread(put_by_tasks, running.url)


async def test_rows_that_wait_for_the_end_of_a_turn_leave_without_anything_else_that_sends(running, monkeypatch):
    """Each second something would send them, too."""

    async def rest(link):
        await asyncio.Event().wait()

    async def put_in_time(url):
        async with asyncio.timeout(30):
            await put_by_tasks(url)

    monkeypatch.setattr(RequestLink, "tick", rest)
    monkeypatch.setattr(RequestLink, "keep", rest)
    await run_in_thread(put_in_time, running.url)


async def cancel_one(url):
    answered = []
    async with tailrace.asyncio.connect(url) as client:
        feed = await client.create_feed("one", partitions=1)

        async def putter(number):
            for turn in range(20):
                if number == 3 and turn == 10:
                    tasks[3].cancel()
                answered.append((number, turn, (await feed.put(b"%d %d" % (number, turn), b"v")).seq))

        tasks = [asyncio.create_task(putter(number)) for number in range(8)]
        for number, task in enumerate(tasks):
            if number == 3:
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                await task
        assert client._core.session.idle
    assert len({seq for _, _, seq in answered}) == len(answered) == 7 * 20 + 10


async def test_a_put_that_is_cancelled_takes_no_other_one_of_its_turn_along(running):
    await run_in_thread(cancel_one, running.url)
