# ruff: noqa: PT012 (what a whole body does is what is tested here)
"""The four cases of what leaves an ``async with`` under asyncio, and cancellations of the body's task by others."""

import asyncio
import contextlib

import pytest
import trio
from tests.tailrace.asyncio.bridge import run, run_in_thread

import tailrace
from tailrace.asyncio.client import Client
from tailrace.asyncio.lifetime import Lifetime
from tailrace.asyncio.opening import open_connection
from tailrace.indexes import MemoryIndex
from tailrace.testing.ports import free_port


class BodyError(Exception):
    pass


class BackgroundError(Exception):
    """No error of Tailrace: a failure that no retry can mend."""


def raise_background_error(*_):
    raise BackgroundError


@contextlib.asynccontextmanager
async def plain(running):
    """The class by itself."""
    broken = asyncio.Event()

    async def background():
        await broken.wait()
        raise BackgroundError

    lifetime = Lifetime()

    class Started:
        async def __aenter__(self):
            await lifetime.__aenter__()
            lifetime.start(background)

        async def __aexit__(self, *details):
            return await lifetime.__aexit__(*details)

    yield Started(), broken.set


@contextlib.asynccontextmanager
async def connect(running):
    """A client whose second connection cannot be made, for a reason that is no OSError."""
    tries = []

    async def connect_once(address):
        tries.append(address)
        if len(tries) > 1:
            raise BackgroundError
        return await open_connection(address)

    yield (
        Client(running.url, connect=connect_once),
        lambda: trio.from_thread.run_sync(running.cut_connections),
    )


@contextlib.asynccontextmanager
async def writer(running):
    """A writer that cannot send what has waited long enough."""
    async with tailrace.asyncio.connect(running.url) as client:
        made = (await client.create_feed("orders")).writer(linger_s=0.0)

        def fail():
            made._outbox.ship_all = raise_background_error
            made._added()

        yield made, fail


@contextlib.asynccontextmanager
async def consume(running):
    """A stream that cannot look for other nodes."""
    async with tailrace.asyncio.connect(running.url) as client:
        made = (await client.create_feed("orders")).consume()
        broken = asyncio.Event()

        async def look():
            await broken.wait()
            raise BackgroundError

        made._look = look
        yield made, broken.set


@contextlib.asynccontextmanager
async def follow(running):
    """A follower whose index fails."""
    async with tailrace.asyncio.connect(running.url) as client:
        feed, index, puts = await client.create_feed("orders"), MemoryIndex(), []

        def fail():
            index.apply = raise_background_error
            puts.append(asyncio.create_task(feed.put(b"k", b"v")))

        yield feed.follow(index), fail
        for put in puts:
            await put


CONTEXTS = [plain, connect, writer, consume, follow]


@pytest.fixture(params=CONTEXTS, ids=lambda context: context.__name__)
def in_context(request, running):
    """A function that runs ``case(manager, fail)`` under asyncio, beside the node."""

    async def begin(case):
        async with request.param(running) as (manager, fail):
            await case(manager, fail)

    return lambda case: run_in_thread(begin, case)


async def test_nothing_is_raised_where_nothing_fails(in_context):
    async def case(manager, _):
        async with manager:
            await asyncio.sleep(0)

    await in_context(case)


async def test_a_second_body_inside_of_the_first_is_refused(in_context):
    async def case(manager, _):
        async with manager:
            with pytest.raises(RuntimeError, match="entered"):
                async with manager:
                    raise AssertionError("a second body began")

    await in_context(case)


async def test_an_exception_of_the_body_leaves_as_itself(in_context):
    async def case(manager, _):
        for error in (BodyError(), ExceptionGroup("several", [BodyError(), ValueError()])):
            with pytest.raises(type(error)) as caught:
                async with manager:
                    raise error
            assert caught.value is error
            assert error.__context__ is None
            return  # a follower has one body

    await in_context(case)


async def test_a_failure_in_the_background_cancels_the_body_and_is_raised_alone(in_context):
    async def case(manager, fail):
        cancelled = False
        with pytest.raises(BackgroundError) as caught:
            async with manager:
                fail()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled = True
                    raise
        assert cancelled
        assert caught.value.__suppress_context__ or not isinstance(caught.value.__context__, asyncio.CancelledError)
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)  # nothing of the cancellation is left

    await in_context(case)


async def test_where_both_fail_the_bodys_wins_and_the_other_is_its_context(in_context):
    async def case(manager, fail):
        error = BodyError()
        with pytest.raises(BodyError) as caught:
            async with manager:
                fail()
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise error  # noqa: B904
        assert caught.value is error
        assert isinstance(error.__context__, BackgroundError)
        assert asyncio.current_task().cancelling() == 0

    await in_context(case)


async def test_a_body_that_is_cancelled_from_outside_is_just_cancelled(in_context):
    async def case(manager, _):
        entered = asyncio.Event()

        async def body():
            async with manager:
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await in_context(case)


async def test_a_time_out_around_a_body_is_one(in_context):
    async def case(manager, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit, manager:
                limit.reschedule(0)
                await asyncio.Event().wait()

    await in_context(case)


async def test_a_failure_at_the_moment_of_a_cancellation_leaves_a_cancellation(in_context):
    """Others wait for the end of a task that they have cancelled: it must not go on."""

    async def case(manager, fail):
        entered = asyncio.Event()

        async def body():
            async with manager:
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await entered.wait()
        fail()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await in_context(case)


async def test_an_exit_of_the_program_leaves_as_itself(in_context):
    async def case(manager, _):
        with pytest.raises(GeneratorExit):
            async with manager:
                raise GeneratorExit

    await in_context(case)


def test_a_body_that_ends_without_a_wait_though_its_background_has_failed():
    async def main():
        with pytest.raises(BackgroundError):
            async with Lifetime() as lifetime:
                lifetime.fail(BackgroundError())
        await asyncio.sleep(0)
        assert asyncio.current_task().cancelling() == 0

    run(main)


def test_a_body_that_ends_without_a_wait_is_cancelled_all_the_same_by_others():
    async def body():
        async with Lifetime() as lifetime:
            lifetime.fail(BackgroundError())
            asyncio.current_task().cancel()

    async def main():
        task = asyncio.create_task(body())
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main)


def test_of_two_failures_the_first_is_raised():
    async def fail_while_cleaning_up():
        try:
            await asyncio.Event().wait()
        finally:
            raise BackgroundError(2)

    async def main():
        with pytest.raises(BackgroundError, match="1"):
            async with Lifetime() as lifetime:
                lifetime.start(fail_while_cleaning_up)
                await asyncio.sleep(0)
                lifetime.fail(BackgroundError(1))
                await asyncio.Event().wait()

    run(main)


def test_where_it_came_from_stays_with_a_failure():
    async def fail():
        raise BackgroundError from OSError("the cause")

    async def main():
        with pytest.raises(BackgroundError) as caught:
            async with Lifetime() as lifetime:
                lifetime.start(fail)
                await asyncio.Event().wait()
        assert isinstance(caught.value.__cause__, OSError)

    run(main)


def test_a_cancellation_while_the_background_ends_goes_on_behind_it():
    ended = []

    async def slow_end():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(True)

    async def body(at_end):
        async with Lifetime() as lifetime:
            lifetime.start(slow_end)
            await asyncio.sleep(0)
            at_end.set()

    async def main():
        at_end = asyncio.Event()
        task = asyncio.create_task(body(at_end))
        await at_end.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    run(main)


def test_a_body_in_a_task_group_that_fails_is_cancelled_with_it():
    async def fail():
        raise BodyError

    async def main():
        with pytest.raises(ExceptionGroup) as caught:
            async with Lifetime(), asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.Event().wait()
        assert caught.group_contains(BodyError)
        assert asyncio.current_task().cancelling() == 0

    run(main)


def test_nothing_answers():
    async def main():
        with pytest.raises(tailrace.Unreachable, match=r"no node at 127\.0\.0\.1") as caught:
            async with tailrace.asyncio.connect(f"tailrace://127.0.0.1:{free_port()}", connect_timeout=0.5):
                raise AssertionError("there is nobody")
        assert caught.value.outcome == "not sent"

    run(main)
