"""Clients and event loops: the wrong library, several loops, uvloop, processes that were forked."""

import asyncio
import os
import traceback

import pytest
import trio
from tests.tailrace.asyncio.bridge import run, run_in_thread

import tailrace
from tailrace import Put
from tailrace.errors import WrongProcess
from tailrace.indexes import MemoryIndex

URL = "tailrace://127.0.0.1:1"


def test_a_client_for_trio_under_asyncio_says_which_one_to_use():
    async def main():
        with pytest.raises(RuntimeError, match=r"under asyncio use tailrace\.asyncio\.connect"):
            async with tailrace.connect(URL):
                raise AssertionError("it was entered")

    run(main)


async def test_a_client_for_asyncio_under_trio_says_which_one_to_use():
    with pytest.raises(RuntimeError, match=r"under trio use tailrace\.connect"):
        async with tailrace.asyncio.connect(URL):
            raise AssertionError("it was entered")


def test_a_client_that_was_not_entered():
    async def main():
        with pytest.raises(RuntimeError, match="was not entered yet"):
            await tailrace.asyncio.connect(URL).feeds()

    run(main)


async def test_objects_of_another_loop_are_refused(running):
    def use():
        with asyncio.Runner() as one, asyncio.Runner() as other:
            client = tailrace.asyncio.connect(running.url)
            one.run(client.__aenter__())
            feed = one.run(client.create_feed("orders"))
            stream = feed.consume()
            one.run(stream.__aenter__())
            for call in (feed.put(b"k", b"v"), stream.__anext__(), stream.barrier()):
                with pytest.raises(RuntimeError, match="belongs to another event loop: make another one"):
                    other.run(call)
            one.run(stream.__aexit__(None, None, None))
            one.run(client.__aexit__(None, None, None))

    await trio.to_thread.run_sync(use)


async def use(url):
    """Uses most calls once."""
    async with tailrace.asyncio.connect(url) as client:
        feed = await client.create_feed("orders", partitions=2)
        await feed.write([Put(b"%d" % number, bytes(1000)) for number in range(3_000)])
        index = MemoryIndex()
        async with feed.writer() as writer, feed.follow(index) as follower, feed.consume() as stream:
            await writer.put(b"k", b"v")
            await writer.flush()
            await follower.barrier()
            assert index.snapshot()[b"k"]
            assert await stream.next(60) is not None
        assert len([item async for item in feed.items()]) == 3_001


async def test_two_loops_one_after_the_other(running):
    for _ in range(2):
        await run_in_thread(use, running.url)


async def test_uvloop(running):
    uvloop = pytest.importorskip("uvloop")
    await run_in_thread(use, running.url, loop_factory=uvloop.new_event_loop)


@pytest.mark.filterwarnings("error")
async def test_nothing_is_left_to_the_garbage_collector(running):
    """A socket or a task that nobody has closed would warn, and a warning is an error here."""
    await run_in_thread(use, running.url)


async def test_a_barrier_in_the_task_of_the_loop_is_refused(running):
    async def main():
        async with tailrace.asyncio.connect(running.url) as client:
            feed = await client.create_feed("orders", partitions=1)
            await feed.put(b"k", b"v")
            async with feed.consume() as stream:
                await stream.__anext__()
                with pytest.raises(RuntimeError, match="the loop is in this very task"):
                    await stream.barrier()
                event = await stream.next(60)
                barrier = asyncio.create_task(stream.barrier())
                while event is not None and not barrier.done():
                    event = await stream.next(0.01) or event
                await barrier

    await run_in_thread(main)


async def test_a_barrier_waits_for_a_loop_that_another_task_has_just_begun(running):
    async def main():
        async with tailrace.asyncio.connect(running.url) as client:
            feed = await client.create_feed("orders", partitions=1)
            await feed.put(b"k", b"v")
            async with feed.consume() as stream:
                await stream.__anext__()

                async def loop():
                    async for _ in stream:
                        pass

                task = asyncio.create_task(loop())
                await stream.barrier()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    await run_in_thread(main)


async def test_a_forked_process_is_refused_and_the_parent_goes_on(running):
    async def main():
        async with tailrace.asyncio.connect(running.url) as client:
            feed = await client.create_feed("orders", partitions=1)
            await feed.put(b"k", b"v")
            async with feed.writer() as writer, feed.consume() as stream, feed.follow(MemoryIndex()) as follower:
                calls = {
                    "put": lambda: feed.put(b"k", b"of the child"),
                    "writer": lambda: writer.put(b"k", b"of the child"),
                    "stream": stream.__anext__,
                    "follower": follower.barrier,
                }
                for name, call in calls.items():
                    assert in_child(call) == WrongProcess.__name__, name
                await writer.put(b"other", b"v")
                await writer.flush()
                await follower.barrier()
                assert await stream.next(60) is not None
            assert {item.key async for item in feed.items()} == {b"k", b"other"}

    await run_in_thread(main)


def in_child(call):
    """The name of the error that ``call`` raises in a loop of a forked process."""
    readable, writable = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            try:
                asyncio.run(asyncio.wait_for(call(), 20))
                found = "<nothing>"
            except Exception as error:
                found = type(error).__name__
            os.write(writable, found.encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as answer:
        found = answer.read()
    os.waitpid(pid, 0)
    return found
