# ruff: noqa: PT012 (what a whole body does is what is tested here)
"""The four cases of what leaves an ``async with``, for every context manager of the SDK that has a background."""

import contextlib

import pytest
import trio

import tailrace
from tailrace.indexes import MemoryIndex
from tailrace.testing.ports import free_port
from tailrace.trio.client import Client
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.tcp import connect_tcp


class BodyError(Exception):
    pass


class BackgroundError(Exception):
    """No error of Tailrace: a failure that no retry can mend."""


@contextlib.asynccontextmanager
async def plain(running, feed):
    """The class by itself."""
    broken = trio.Event()

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
async def connect(running, feed):
    """A client whose second connection cannot be made, for a reason that is no OSError."""
    tries = []

    async def connect_once(address):
        tries.append(address)
        if len(tries) > 1:
            raise BackgroundError
        return await connect_tcp(address)

    yield Client(running.url, host=Host(connect=connect_once)), running.cut_connections


@contextlib.asynccontextmanager
async def writer(running, feed):
    """A writer that cannot send what has waited long enough."""
    made = feed.writer(linger_s=0.0)

    def fail():
        made._outbox.ship_all = raise_background_error
        made._has_rows.set()

    yield made, fail


def raise_background_error(*_):
    raise BackgroundError


@contextlib.asynccontextmanager
async def consume(running, feed):
    """A stream whose connection's flushing task fails."""
    broken, transports = trio.Event(), []

    async def connect_breakable(address):
        transport = await connect_tcp(address)
        transports.append(transport)

        async def run():
            await broken.wait()
            raise BackgroundError

        if len(transports) > 1:  # the first one is the client's own
            transport.run = run
        return transport

    async with Client(running.url, host=Host(connect=connect_breakable)) as client:
        yield client.feed(feed.name).consume(), broken.set


@contextlib.asynccontextmanager
async def follow(running, feed):
    """A follower whose index fails."""
    index = MemoryIndex()
    async with trio.open_nursery() as nursery:

        def fail():
            index.apply = raise_background_error
            nursery.start_soon(feed.put, b"k", b"v")

        yield feed.follow(index), fail


CONTEXTS = [plain, connect, writer, consume, follow]


@pytest.fixture(params=CONTEXTS, ids=lambda context: context.__name__)
async def context(request, running, feed):
    """(the context manager, a function that makes its background fail)"""
    async with request.param(running, feed) as made:
        yield made


async def test_nothing_is_raised_where_nothing_fails(context):
    manager, _ = context
    async with manager:
        await trio.lowlevel.checkpoint()


async def test_a_second_body_inside_of_the_first_is_refused(context):
    """trio's scopes would end in the wrong order, and its state would be lost."""
    made, _ = context
    async with made:
        with pytest.raises(RuntimeError, match="entered"):
            async with made:
                raise AssertionError("a second body began")


async def test_an_exception_of_the_body_leaves_as_itself(context):
    manager, _ = context
    error = BodyError()
    with pytest.raises(BodyError) as caught:
        async with manager:
            raise error
    assert caught.value is error
    assert error.__context__ is None


async def test_a_failure_in_the_background_cancels_the_body_and_is_raised_alone(context):
    manager, fail = context
    cancelled = False
    with pytest.raises(BackgroundError) as caught:
        async with manager:
            fail()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                cancelled = True
                raise
    assert cancelled
    assert caught.value.__suppress_context__ or not isinstance(caught.value.__context__, trio.Cancelled)


async def test_where_both_fail_the_bodys_wins_and_the_other_is_its_context(context):
    manager, fail = context
    error = BodyError()
    with pytest.raises(BodyError) as caught:
        async with manager:
            fail()
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                raise error  # noqa: B904
    assert caught.value is error
    assert isinstance(error.__context__, BackgroundError)


async def test_a_group_of_the_body_leaves_as_itself(context):
    manager, _ = context
    group = ExceptionGroup("several", [BodyError(), ValueError()])
    with pytest.raises(ExceptionGroup) as caught:
        async with manager:
            raise group
    assert caught.value is group


async def test_a_group_of_one_of_the_body_stays_one(context):
    manager, _ = context
    group = ExceptionGroup("one", [BodyError()])
    with pytest.raises(ExceptionGroup) as caught:
        async with manager:
            raise group
    assert caught.value is group


async def test_a_body_that_is_cancelled_from_outside_is_just_cancelled(context):
    manager, _ = context
    with trio.CancelScope() as scope:
        async with manager:
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_an_exit_of_the_program_leaves_as_itself(context):
    manager, _ = context
    with pytest.raises(SystemExit):
        async with manager:
            raise SystemExit(3)


async def test_a_loop_inside_of_another_task_can_be_left(context):
    """return and break out of the body are ends like any other."""
    manager, _ = context

    async def body():
        async with manager:
            return 1

    assert await body() == 1


async def test_a_body_that_ends_though_its_background_has_failed():
    async def fail():
        raise BackgroundError

    with pytest.raises(BackgroundError):
        async with Lifetime() as lifetime:
            with trio.CancelScope(shield=True):
                lifetime.start(fail)
                await trio.testing.wait_all_tasks_blocked()


async def test_of_two_failures_the_first_is_raised():
    async def fail():
        raise BackgroundError(1)

    async def fail_while_cleaning_up():
        try:
            await trio.sleep_forever()
        finally:
            raise BackgroundError(2)

    with pytest.raises(BackgroundError, match="1"):
        async with Lifetime() as lifetime:
            lifetime.start(fail_while_cleaning_up)
            await trio.testing.wait_all_tasks_blocked()
            lifetime.start(fail)
            await trio.sleep_forever()


async def test_where_it_came_from_stays_with_a_failure():
    async def fail():
        raise BackgroundError from OSError("the cause")

    with pytest.raises(BackgroundError) as caught:
        async with Lifetime() as lifetime:
            lifetime.start(fail)
            await trio.sleep_forever()
    assert isinstance(caught.value.__cause__, OSError)


async def test_contexts_inside_of_each_other(running):
    """The innermost body's exception goes through all of them as it is."""
    error = BodyError()
    with pytest.raises(BodyError) as caught:
        async with tailrace.connect(running.url) as client:
            feed = await client.create_feed("nested", partitions=2)
            async with feed.writer() as w, feed.consume() as stream, feed.follow(MemoryIndex()) as follower:
                await w.put(b"k", b"v")
                await w.flush()
                await follower.barrier()
                assert await stream.__anext__()
                raise error
    assert caught.value is error


async def test_a_nursery_of_a_background_task_does_not_show():
    async def fail():
        async with trio.open_nursery():
            raise BackgroundError

    with pytest.raises(BackgroundError):
        async with Lifetime() as lifetime:
            lifetime.start(fail)
            await trio.sleep_forever()


async def test_a_cancellation_inside_of_a_group_of_the_body_is_caught_where_it_belongs():
    """A nursery in the body gives its own failure and the cancellation of its tasks in one group."""

    async def fail():
        raise BackgroundError

    async def raise_when_cancelled():
        try:
            await trio.sleep_forever()
        finally:
            raise BodyError

    with pytest.raises(ExceptionGroup) as caught:
        async with Lifetime() as lifetime:
            lifetime.start(fail)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(raise_when_cancelled)
                await trio.sleep_forever()
    assert caught.group_contains(BodyError)
    assert not caught.group_contains(trio.Cancelled)


@pytest.mark.slow
async def test_nothing_answers():
    url = f"tailrace://127.0.0.1:{free_port()}"
    with pytest.raises(tailrace.Unreachable, match=r"no node at 127\.0\.0\.1") as caught:
        async with tailrace.connect(url, connect_timeout=0.5):
            raise AssertionError("there is nobody")
    assert caught.value.outcome == "not sent"
