"""Errors that a handler of a signal raises within a call under asyncio, and that the program catches."""

from __future__ import annotations

import asyncio

import pytest
from tests.processes.fixtures import contents, feed_name, shared_node
from tests.tailrace.interrupts import TRIALS, AsyncCalls, TimedOut, at_each_line, time_out

import tailrace.asyncio
from tailrace import Put
from tailrace.link.connection import LinkCore
from tailrace.requests import lane, outbox, write_queue

__all__ = ["contents", "feed_name", "shared_node"]

SECONDS_MAX = 20
every_line = pytest.mark.parametrize("trials", [TRIALS, pytest.param(None, marks=pytest.mark.long)])


async def created(url, name):
    async with tailrace.asyncio.connect(url) as client:
        await client.create_feed(name, partitions=1)


async def until(condition):
    while not condition():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.0005)


def is_program():
    """Tells whether the task of the program runs. Elsewhere an error of a handler ends the client, or the loop."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.get_name() == "program"


@every_line
def test_a_caught_error_of_a_handler_loses_nothing(shared_node, contents, feed_name, trials):
    """Rows leave by the linger alone after it, or a later call says that the client was interrupted."""
    asyncio.run(created(shared_node.url, feed_name))
    calls, failures = AsyncCalls(TimedOut), []

    async def write(interrupt, feed):
        async with feed.writer(batch_rows=3, linger_s=0.0005) as writer:
            with interrupt:
                for _ in range(7):
                    await calls.put(writer)
                await calls.write(writer)
                await calls.attempt(writer.flush)
                for _ in range(2):
                    await calls.put(feed)
                await calls.write(feed)
                await calls.attempt(feed.get, b"1")
                await calls.attempt(feed.get_many, [b"1", b"2"])
                await calls.put(writer)
            await calls.put(writer)
            outbox = writer._outbox
            await until(lambda: not (outbox.unanswered or outbox._batches.partitions) or calls.failure)
            await calls.put(writer)
            await calls.attempt(writer.flush)

    async def run(interrupt):
        asyncio.current_task().set_name("program")
        before, calls.failure, calls.interrupts = len(calls.added), "", 0
        async with asyncio.timeout(SECONDS_MAX), tailrace.asyncio.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            await calls.attempt(write, interrupt, feed)
            await calls.put(feed)
        if calls.failure:  # the program knows that rows may be lost
            del calls.added[before:]
        failures.append(bool(calls.failure))
        assert not calls.failure or "interrupted" in calls.failure
        assert calls.interrupts == (interrupt.left <= 0)

    at_each_line(lambda interrupt: asyncio.run(run(interrupt)), trials, time_out, is_program)
    calls.check(contents(shared_node.url, feed_name).rows)
    assert set(failures) == {False, True}, "both ends are reached"


@pytest.mark.parametrize("module", [lane, write_queue, outbox], ids=lambda module: module.__name__)
def test_a_request_that_a_broken_step_has_lost_ends_with_an_error(shared_node, feed_name, module):
    """A step that moves a request from one place to another may leave it in neither."""
    asyncio.run(created(shared_node.url, feed_name))

    async def run(interrupt):
        asyncio.current_task().set_name("program")
        calls = AsyncCalls(TimedOut)
        async with asyncio.timeout(SECONDS_MAX), tailrace.asyncio.connect(shared_node.url) as client:
            feed = client.feed(feed_name)
            await calls.attempt(use, calls, feed, interrupt)
            await calls.put(feed)
        assert not calls.failure or "interrupted" in calls.failure

    async def use(calls, feed, interrupt):
        async with feed.writer() as writer:
            other = asyncio.create_task(calls.put(feed), name="other")
            await calls.put(writer)
            with interrupt:
                await calls.attempt(writer.flush)
            await calls.attempt(writer.flush)
            await other

    at_each_line(lambda interrupt: asyncio.run(run(interrupt)), None, time_out, is_program, module.__file__, 10)


def test_a_broken_step_is_found_while_nothing_is_called(shared_node, monkeypatch):
    """The session has lost the request of one task, and the task of the program calls nothing more."""
    monkeypatch.setattr(LinkCore, "noop_interval_s", 0.1)

    async def run():
        async with asyncio.timeout(SECONDS_MAX), tailrace.asyncio.connect(shared_node.url) as client:
            runner = client._runner
            lost = asyncio.create_task(runner.ask(LostRequest()))
            await asyncio.sleep(0)
            runner._link.begin()
            with pytest.raises(tailrace.TailraceError, match="interrupted"):
                await lost

    asyncio.run(run())


class LostRequest:
    """A step whose request is in no place of its session."""

    def queue(self, session, done, deadline):
        return []


@every_line
def test_a_caught_error_of_a_handler_loses_no_event_of_a_stream(shared_node, feed_name, trials):
    """The next step has the events of the one that was interrupted, or raises."""
    blocks, rows, failures = 4, 10, []

    async def write():
        async with tailrace.asyncio.connect(shared_node.url) as client:
            feed = await client.create_feed(feed_name, partitions=1)
            for number in range(blocks):
                await feed.write([Put(b"%d-%d" % (number, row), b"v") for row in range(rows)])

    async def read(interrupt):
        asyncio.current_task().set_name("program")
        calls = AsyncCalls(TimedOut)
        async with (
            asyncio.timeout(SECONDS_MAX),
            tailrace.asyncio.connect(shared_node.url) as client,
            client.feed(feed_name).consume() as stream,
        ):
            with interrupt:
                events = [await calls.attempt(stream.__anext__)]
                events.append(await calls.attempt(stream.next, 5.0))
                events += await calls.attempt(lambda: stream.poll(max_rows=1, timeout=5.0)) or ()
            while not calls.failure and sum(map(len, mutations(events))) < blocks * rows:
                events.append(await calls.attempt(stream.__anext__))
        seqs = [row.seq for event in mutations(events) for row in event]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) == blocks * rows or "interrupted" in calls.failure
        assert calls.interrupts == (interrupt.left <= 0)
        failures.append(bool(calls.failure))

    asyncio.run(write())
    at_each_line(lambda interrupt: asyncio.run(read(interrupt)), trials, time_out, is_program)
    assert set(failures) == {False, True}, "both ends are reached"


def mutations(events):
    return [event for event in events if isinstance(event, tailrace.Mutations)]
