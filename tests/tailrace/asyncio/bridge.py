"""Lets a test under trio use objects of asyncio as if they were trio's: tests of calls are written once for both.

An event loop of asyncio runs in a thread. Each call of a `Bridged` object is a task there. If the test's call is
cancelled, the task is cancelled, and the call waits for its end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import threading

import trio

ANSWER_SECONDS_MAX = 60.0


def run(function, *args, loop_factory=None):
    """Runs a test's coroutine in a new event loop, which must have nothing to complain about. Its result."""
    reports = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.slow_callback_duration = ANSWER_SECONDS_MAX  # what is slow depends on the machine
        loop.set_exception_handler(lambda _, context: reports.append(context))
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            result = await function(*args)
        reports.extend(f"a task was left: {task}" for task in asyncio.all_tasks() - {asyncio.current_task()})
        return result

    with asyncio.Runner(debug=True, loop_factory=loop_factory) as runner:
        result = runner.run(main())
    gc.collect()
    assert reports == []
    return result


async def until(condition):
    """Waits until ``condition()`` holds, a turn of the loop at a time."""
    while not condition():
        await one_turn()


async def one_turn():
    """Lets all other tasks of the loop go on."""
    await asyncio.sleep(0)


async def run_in_thread(function, *args, loop_factory=None):
    """As ``run``, in a thread beside the test's node."""
    return await trio.to_thread.run_sync(functools.partial(run, function, *args, loop_factory=loop_factory))


class Loop:
    """An event loop in a thread, from ``start`` to ``stop``. ``reports`` has what the loop has complained about."""

    def __init__(self):
        self.reports = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_debug(True)
        self.loop.slow_callback_duration = 60.0  # what is slow depends on the machine
        self.loop.set_exception_handler(lambda _, context: self.reports.append(context))
        self._thread = threading.Thread(target=self._run, name="asyncio of a test")

    def _run(self):
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self):
        self._stopped = asyncio.Event()
        self._started.set()
        await self._stopped.wait()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.reports += [f"a task was left: {task}" for task in left]

    def start(self):
        """Starts the thread."""
        self._started = threading.Event()
        self._thread.start()
        self._started.wait()

    async def stop(self):
        """Ends the loop and the thread."""
        self.loop.call_soon_threadsafe(self._stopped.set)
        await trio.to_thread.run_sync(self._thread.join)

    def call(self, function, *args, **kwargs):
        """Calls a function that does not wait, in the loop. Its result, bridged."""
        done = concurrent.futures.Future()

        def run():
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run, context=contextvars.copy_context())
        return self.bridged(done.result(ANSWER_SECONDS_MAX))

    async def run(self, function, *args, **kwargs):
        """Awaits ``function(*args)`` in a task of the loop. Its result, bridged."""

        async def task():
            return await function(*args, **kwargs)

        began = BridgedTask(self)
        began.begin(task())
        try:
            await began.ended.wait()
        except trio.Cancelled:
            await began.cancelled()
            if began.task.cancelled():
                raise
        return self.bridged(began.task.result())

    def bridged(self, value):
        """``value``, behind a `Bridged` if it is of the client for asyncio."""
        module = type(value).__module__
        is_own = module.startswith("tailrace.asyncio.") or module == "tailrace.consuming.arrow_batches"
        return Bridged(self, value) if is_own else value


class BridgedTask:
    """A task of the loop, which ``begin`` begins from trio."""

    def __init__(self, loop):
        self._loop = loop.loop
        self.ended = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def begin(self, coroutine):
        """Begins the task."""
        self._loop.call_soon_threadsafe(self._begin, coroutine, context=contextvars.copy_context())

    def _begin(self, coroutine):
        self.task = self._loop.create_task(coroutine)
        self.task.add_done_callback(lambda _: self.tell(self.ended.set))

    def tell(self, function):
        """Calls ``function`` in the test's run of trio."""
        self._token.run_sync_soon(function)

    def soon(self, function):
        """Calls ``function`` in the loop."""
        self._loop.call_soon_threadsafe(function)

    async def cancelled(self):
        """Cancels the task, and waits for its end. Raises an error that the task has ended with."""
        self.soon(lambda: self.task.cancel())
        with trio.CancelScope(shield=True):
            await self.ended.wait()
        if not self.task.cancelled():
            self.task.result()


class Bridged:
    """An object of the loop, for tasks of trio."""

    def __init__(self, loop, value):
        vars(self).update(_loop=loop, _value=value)

    def __setattr__(self, name, value):
        if name == "_body":
            vars(self)[name] = value
        else:
            setattr(self._value, name, value)

    def __getattr__(self, name):
        member = self._loop.call(lambda: getattr(self._value, name))
        if inspect.iscoroutinefunction(member):
            return lambda *args, **kwargs: self._loop.run(member, *args, **kwargs)
        if inspect.ismethod(member):
            return lambda *args, **kwargs: self._loop.call(member, *args, **kwargs)
        return member

    def __repr__(self):
        return repr(self._value)

    # An async iterator

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await self._loop.run(self._value.__anext__)

    # An async context manager

    async def __aenter__(self):
        body = Body(self._loop, self._value)
        await body.enter()
        self._body = body
        return self

    async def __aexit__(self, kind, error, traceback):
        await self._body.leave(kind, error, traceback)
        return False


class Body:
    """The body of a context manager of the loop: a task there waits in it while the test's body runs."""

    def __init__(self, loop, manager):
        self._manager = manager
        self._entered = trio.Event()
        self._left = asyncio.Event()
        self._error = None  # of the test's body
        self._is_inside = self._is_leaving = False
        self._scope = trio.CancelScope()  # of the test's body
        self._began = BridgedTask(loop)

    async def _hold(self):
        try:
            async with self._manager:
                self._is_inside = True
                self._began.tell(self._entered.set)
                try:
                    await self._left.wait()
                finally:
                    if not self._is_leaving:
                        self._began.tell(self._scope.cancel)
                if self._error is not None:
                    raise self._error
        finally:
            self._began.tell(self._entered.set)

    async def enter(self):
        """Enters. Raises what the manager raises."""
        self._began.begin(self._hold())
        try:
            await self._entered.wait()
        except trio.Cancelled:
            await self._began.cancelled()
            raise
        if not self._is_inside:
            await self._began.ended.wait()
            self._began.task.result()
        self._scope.__enter__()

    async def leave(self, kind, error, traceback):
        """Leaves, as the test's body has ended. Raises what the manager raises."""
        self._is_leaving = True
        if self._scope.__exit__(kind, error, traceback):  # there is none, or it was this object's own
            error = None
        if isinstance(error, trio.Cancelled):
            await self._began.cancelled()
            return
        self._error = error
        self._began.soon(self._left.set)
        try:
            await self._began.ended.wait()
        except trio.Cancelled:
            await self._began.cancelled()
            raise
        failure = self._began.task.exception()
        if failure is not None and failure is not error:
            raise failure


def over_asyncio(module, *without):
    """The tests and fixtures of a module of the shell for trio by name, for a module of the same tests for asyncio.

    ``without`` names those that are about trio alone.
    """
    assert set(without) <= vars(module).keys()
    return {name: value for name, value in vars(module).items() if name not in without and not name.startswith("__")}
