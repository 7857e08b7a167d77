"""Ctrl-C that the program catches at a call, anywhere in the code of the SDK: as trio delivers it."""

from __future__ import annotations

import signal

import pytest
import trio
from tests.processes.fixtures import contents, feed_name, shared_node
from tests.tailrace.interrupts import TRIALS, AsyncCalls, at_each_line

import tailrace
from tailrace import Put
from tailrace.trio.lending import LONE_CALLS

__all__ = ["contents", "feed_name", "shared_node"]

SECONDS_MAX = 20
every_line = pytest.mark.parametrize("trials", [TRIALS, pytest.param(None, marks=pytest.mark.long)])


@pytest.fixture(autouse=True)
def handler_of_python():
    """Trio takes Ctrl-C over only from the handler that Python has by itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def ctrl_c():
    """Comes as Ctrl-C does: trio raises it here, or at a checkpoint of the main task."""
    signal.raise_signal(signal.SIGINT)


class Calls(AsyncCalls):
    """The calls of a program that catches Ctrl-C at each of them. The client goes on after it."""

    def __init__(self):
        super().__init__(KeyboardInterrupt, refusal=())

    async def put_and_delete(self, target):
        row = self.next(target)
        await self.attempt(target.put, *row, adds=[row])
        await self.attempt(target.delete, row[0], adds=[(row[0], None)])


async def created(url, name, partitions=1):
    async with tailrace.connect(url) as client:
        await client.create_feed(name, partitions=partitions)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await trio.sleep(0.0005)


@every_line
def test_a_caught_interrupt_of_a_writer_loses_nothing(shared_node, contents, feed_name, trials):
    """Rows leave by the linger alone after it, and no later call fails."""
    trio.run(created, shared_node.url, feed_name)
    calls = Calls()

    async def write(interrupt):
        before = calls.interrupts
        async with tailrace.connect(shared_node.url) as client:
            async with client.feed(feed_name).writer(batch_rows=3, linger_s=0.0005) as writer:
                with trio.fail_after(SECONDS_MAX):
                    with interrupt:
                        for _ in range(7):
                            await calls.put(writer)
                        await calls.put_and_delete(writer)
                        await calls.write(writer)
                        await calls.attempt(writer.flush)
                        await calls.put(writer)
                        await calls.attempt(until, lambda: not writer._outbox.nbytes)
                        await calls.put(writer)
                        await calls.attempt(until, lambda: not writer._outbox.nbytes)
                    await calls.attempt(trio.lowlevel.checkpoint)
                    await calls.put(writer)
                    await until(lambda: not writer._outbox.nbytes)
                    await calls.put(writer)
                    await writer.flush()
            await calls.put(client.feed(feed_name))
        assert calls.interrupts - before == (interrupt.left <= 0)

    at_each_line(lambda interrupt: trio.run(write, interrupt), trials, ctrl_c)
    calls.check(contents(shared_node.url, feed_name).rows)


@every_line
def test_a_caught_interrupt_of_a_lone_call_loses_nothing(shared_node, contents, feed_name, trials):
    trio.run(created, shared_node.url, feed_name)
    calls = Calls()

    async def call(interrupt):
        before = calls.interrupts
        async with tailrace.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            with trio.fail_after(SECONDS_MAX):
                with interrupt:
                    for _ in range(LONE_CALLS + 2):
                        await calls.put(feed)
                    await calls.put_and_delete(feed)
                    await calls.write(feed)
                    for _ in range(LONE_CALLS + 2):
                        await calls.attempt(feed.get, b"1")
                    await calls.attempt(feed.get_many, [b"1", b"2"])
                await calls.attempt(trio.lowlevel.checkpoint)
                for _ in range(LONE_CALLS + 2):
                    await calls.put(feed)
                    assert (await feed.get(calls.added[-1][0])).value == b"v"
        assert calls.interrupts - before == (interrupt.left <= 0)

    at_each_line(lambda interrupt: trio.run(call, interrupt), trials, ctrl_c)
    calls.check(contents(shared_node.url, feed_name).rows)


@every_line
def test_a_caught_interrupt_of_a_stream_loses_no_event(shared_node, feed_name, trials):
    blocks, rows = 4, 10

    async def write():
        async with tailrace.connect(shared_node.url) as client:
            feed = await client.create_feed(feed_name, partitions=1)
            for number in range(blocks):
                await feed.write([Put(b"%d-%d" % (number, row), b"v") for row in range(rows)])

    async def read(interrupt):
        calls, seqs = Calls(), []

        def take(event):
            if isinstance(event, tailrace.Mutations):
                seqs.extend(row.seq for row in event)

        async with tailrace.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            async with feed.consume() as stream:
                with trio.fail_after(SECONDS_MAX):
                    with interrupt:
                        events = [await calls.attempt(stream.next) for _ in range(2)]
                        events += await calls.attempt(lambda: stream.poll(max_rows=1)) or ()
                    await calls.attempt(trio.lowlevel.checkpoint)
                    for event in events:
                        take(event)
                    while len(seqs) < blocks * rows:
                        take(await stream.next())
            items = feed.items()
            found = []
            with interrupt:
                while len(found) < blocks * rows:
                    item = await calls.attempt(items.__anext__)
                    found += [item] if item else []
            await calls.attempt(trio.lowlevel.checkpoint)
        assert seqs == list(range(1, blocks * rows + 1))
        assert calls.interrupts == (interrupt.left <= 0)

    trio.run(write)
    at_each_line(lambda interrupt: trio.run(read, interrupt), trials, ctrl_c)


@every_line
def test_an_interrupt_that_ends_the_bodies_leaves_nothing_behind(shared_node, contents, feed_name, trials):
    """It is the only exception, and the run of trio goes on, however far they were entered or left."""
    trio.run(created, shared_node.url, feed_name)
    calls = Calls()

    async def use():
        async with tailrace.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            async with feed.writer(batch_rows=3) as writer:
                await calls.put(writer)
            async with feed.consume() as stream:
                await stream.next()
            async with feed.follow(tailrace.indexes.MemoryIndex()) as follower:
                await follower.barrier()

    async def run(interrupt):
        with trio.fail_after(SECONDS_MAX):
            with interrupt:
                await calls.attempt(use)
            await calls.attempt(trio.lowlevel.checkpoint)
        assert not trio.lowlevel.current_task().child_nurseries

    at_each_line(lambda interrupt: trio.run(run, interrupt), trials, ctrl_c)
