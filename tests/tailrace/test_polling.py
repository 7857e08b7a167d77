"""Consumers whose steps are cancelled after a moment, again and again: each call goes on where the last one was."""

import itertools
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
from tailrace.trio.tcp import connect_tcp

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
    monkeypatch.setattr(tailrace.link.finder, "backoff_seconds", lambda tries, jitter, growth: 0.1)
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
        left = self._limit if self.connections > 1 else math.inf

        def limited(receive, size):
            async def limit(*arguments):
                nonlocal left
                if left <= 0:
                    self.scope.cancel()
                found = await receive(*arguments)
                left -= size(found)
                return found

            return limit

        transport.receive = limited(transport.receive, len)
        transport.receive_into = limited(transport.receive_into, int)
        transport.receive_into_now = lambda buffers: 0  # what arrives without a turn of the loop counts as well
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


# Polls of the SDK


def keys_in(events):
    return list(itertools.chain.from_iterable(event.keys() for event in events if isinstance(event, Mutations)))


async def fill(feed, count, first=0):
    async with feed.writer() as writer:
        for number in range(first, first + count):
            await writer.put(b"%06d" % number, b"%d" % number)


async def polled(stream, **options):
    """The keys of all polls to the end of the stream, and the most rows of one."""
    keys, most = [], 0
    while not stream.finished:
        events = await stream.poll(**options)
        rows = keys_in(events)
        keys, most = keys + rows, max(most, len(rows))
    return keys, most


async def test_polls_bring_each_row_once_and_at_most_so_many(feed):
    await fill(feed, 5000)
    async with feed.consume(until="now") as stream:
        keys, most = await polled(stream, max_rows=700, timeout=5)
    assert sorted(keys) == [b"%06d" % number for number in range(5000)]
    assert most == 700


async def test_a_consumer_resumes_behind_each_poll(feed):
    """A poll may end inside of a block: what it had does not come again, and what it had not does."""
    await fill(feed, 1000)
    positions, keys = "beginning", []
    while len(keys) < 1000:
        async with feed.consume(positions, until="now") as stream:
            while not (rows := [e for e in await stream.poll(max_rows=130) if isinstance(e, Mutations)]):
                pass
            keys += keys_in(rows)
            positions = stream.latest_positions
    assert sorted(keys) == [b"%06d" % number for number in range(1000)]


async def test_next_and_poll_return_nothing_in_time_and_at_the_end(feed):
    async with feed.consume("now") as stream:
        assert await stream.next(0) is None
        assert await stream.next(timeout=0.01) is None
        assert await stream.poll(timeout=0.01) == []
        assert not stream.finished
        await feed.put(b"k", b"v")
        assert keys_in(await rows_of(stream)) == [b"k"]
    async with feed.consume(until="now") as stream:
        while await stream.next() is not None:
            pass
        assert stream.finished
        assert await stream.next() is None
        assert await stream.poll() == []


async def rows_of(stream):
    """The rows of polls that take only what has arrived."""
    for _ in range(POLLS_MAX):
        rows = [event for event in await stream.poll(timeout=0) if isinstance(event, Mutations)]
        if rows:
            return rows
        await trio.sleep(0.001)
    raise AssertionError("no rows")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "max_rows is 0"),
        ({"max_rows": True}, "max_rows is True"),
        ({"timeout": -1}, "timeout is -1"),
        ({"timeout": math.nan}, "timeout is nan"),
    ],
)
async def test_what_is_no_number_of_rows_or_seconds_is_refused_and_takes_nothing(feed, options, message):
    await feed.put(b"k", b"v")
    async with feed.consume() as stream:
        with pytest.raises(ValueError, match=message):
            await stream.poll(**options)
        assert await next_value(stream) == b"v"


async def test_a_program_catches_up_and_goes_on_in_one_task(feed):
    await fill(feed, 300)
    seen = set()
    async with feed.consume(caught_up=True) as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                seen.update(event.keys())
            if isinstance(event, tailrace.CaughtUp):
                break
        assert len(seen) == 300
        assert event.partitions == 4
        await feed.put(b"later", b"1")
        assert await next_value(stream) == b"1"


async def test_an_empty_feed_has_caught_up(feed):
    async with feed.consume(caught_up=True) as stream:
        with trio.fail_after(60):
            assert isinstance(await stream.next(), tailrace.CaughtUp)


async def test_a_barrier_in_the_task_of_the_loop_is_refused(feed):
    await feed.put(b"k", b"v")
    async with feed.consume() as stream, trio.open_nursery() as nursery:
        await stream.next()
        with pytest.raises(RuntimeError, match="call it from another task"):
            await stream.barrier()
        reached = trio.Event()

        async def wait():
            await stream.barrier()
            reached.set()

        nursery.start_soon(wait)
        while not reached.is_set():
            await stream.next(0.01)


async def test_a_barrier_waits_for_a_loop_that_another_task_has_just_begun(feed):
    await feed.put(b"k", b"v")
    async with feed.consume() as stream, trio.open_nursery() as nursery:
        assert await next_value(stream) == b"v"

        async def loop():
            async for _ in stream:
                pass

        nursery.start_soon(loop)
        await stream.barrier()
        nursery.cancel_scope.cancel()
