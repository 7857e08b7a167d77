"""Consumers whose steps are cancelled after a moment, again and again: each call goes on where the last one was."""

import math
import random
from functools import partial

import pytest
import trio

import tailrace
import tailrace.link.finder
from tailrace import Mutations, Put
from tailrace.indexes import MemoryIndex
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.transport import connect_tcp

POLLS_MAX = 3_000  # of 10 ms: a node that is there answers within a few of them


async def poll(step, seconds=0.01):
    """What ``step()`` gives, in calls of so many seconds each."""
    for _ in range(POLLS_MAX):
        with trio.move_on_after(seconds):
            return await step()
    raise AssertionError(f"nothing within {POLLS_MAX} polls")


async def next_value(stream, seconds=0.01):
    while True:
        event = await poll(stream.__anext__, seconds)
        if isinstance(event, Mutations):
            return event.values()[-1]


@pytest.mark.parametrize("clean", [False, True])
async def test_a_polled_stream_goes_on_after_each_restart(running, feed, clean):
    async with feed.consume() as stream:
        for number in range(3):
            await (running.stop() if clean else running.kill())
            with trio.move_on_after(0.05):  # while there is no node
                raise AssertionError(await next_value(stream))
            await running.start()
            await feed.put(b"k", b"%d" % number)
            assert await next_value(stream) == b"%d" % number


async def test_a_polled_stream_comes_to_the_end_of_a_pause_that_is_longer_than_a_poll(running, feed, monkeypatch):
    monkeypatch.setattr(tailrace.link.finder, "backoff_seconds", lambda tries, jitter: 0.1)
    async with feed.consume() as stream:
        await running.stop()
        with trio.move_on_after(0.3):
            await next_value(stream)
        await running.start()
        await feed.put(b"k", b"v")
        assert await next_value(stream, 0.02) == b"v"


async def test_a_polled_stream_connects_though_that_takes_longer_than_a_poll(running, feed):
    connections = 0

    async def connect(address):
        nonlocal connections
        connections += 1
        await trio.sleep(0.05)
        return await connect_tcp(address)

    async with Client(running.url, host=Host(connect=connect)) as client, client.feed(feed.name).consume() as stream:
        running.cut_connections()
        await feed.put(b"k", b"v")
        assert await next_value(stream, 0.005) == b"v"
    assert connections <= 4, "a connection is not begun anew with each poll"


async def test_a_stream_is_left_while_a_task_waits_for_a_connection(running, feed):
    errors = []

    async def read(stream):
        try:
            async for _ in stream:
                pass
        except tailrace.StreamEnded as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        stream = feed.consume()
        async with stream:
            await running.stop()
            nursery.start_soon(read, stream)
            await poll(partial(until_it_waits, stream))
    assert [error.reason for error in errors] == [tailrace.EndReason.CLOSED]
    await running.start()


async def until_it_waits(stream):
    while any(status.state != "waiting" for status in stream.status().partitions):
        await trio.lowlevel.checkpoint()


async def test_polled_barriers_and_versions_come_back_after_restarts(running, feed):
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        for number in range(3):
            await running.kill()
            with trio.move_on_after(0.05):
                await follower.barrier()
            await running.start()
            version = await feed.put(b"k", b"%d" % number)
            await poll(lambda version=version: follower.wait_for(version), 0.05)
            assert index.state[b"k"] == b"%d" % number
            await poll(follower.barrier, 0.05)


class Stalling:
    """Connections after the first that cancel ``scope`` as soon as they have brought so many bytes."""

    def __init__(self, bytes_max):
        self._limit = bytes_max
        self.scope = trio.CancelScope()
        self.connections = 0

    async def connect(self, address):
        self.connections += 1
        transport = await connect_tcp(address)
        left, receive = (self._limit if self.connections > 1 else math.inf), transport.receive

        async def limited():
            nonlocal left
            if left <= 0:
                self.scope.cancel()
            data = await receive()
            left -= len(data)
            return data

        transport.receive = limited
        return transport


async def test_items_of_a_large_partition_come_in_steps_that_are_all_too_short(running):
    """Each step is cancelled once it has read half a megabyte of four."""
    network = Stalling(512 * 1024)
    async with Client(running.url, host=Host(connect=network.connect)) as client:
        feed = await client.create_feed("orders", partitions=1)
        for number in range(40):
            await feed.write([Put(b"%d" % number, random.randbytes(100_000))])
        items = feed.items()
        for _ in range(POLLS_MAX):
            with trio.CancelScope() as network.scope:
                first = await anext(items)
                break
        else:
            raise AssertionError("it begins anew with each step")
        rest = [item async for item in items]
    assert {int(item.key) for item in [first, *rest]} == set(range(40))
    assert network.connections > 4
