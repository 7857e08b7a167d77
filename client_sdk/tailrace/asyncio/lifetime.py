"""Background tasks of a context manager: they live as long as its body, and its body never sees them.

What leaves the ``async with`` is one exception, as under trio:

    the body          the background      raised
    ----------------  ------------------  ----------------------------------------------------
    ends              goes on             nothing; the background is cancelled
    raises            goes on             the body's exception
    is running        fails               the body is cancelled; the background's exception
    raises            has failed          the body's exception, with the other as __context__

Under asyncio a cancellation is one exception in the body's task. If others cancel the task, too, theirs goes on: the
count of the task's cancellations tells (`asyncio.Task.uncancel`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from tailrace.errors import join_context


class Lifetime:
    """An async context manager that runs tasks in the background of its body."""

    def __init__(self) -> None:
        self._body: asyncio.Task[Any] | None = None
        self._cancelling = 0  # of the body's task, as it began
        self._has_cancelled = False  # the body's task, for a failure
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: Exception | None = None

    def require_idle(self) -> None:
        """Raises RuntimeError inside of the body: of two bodies, neither would know which one a failure ends."""
        if self._body is not None:
            raise RuntimeError("this object was entered already: make another one for a second body")

    async def __aenter__(self) -> Lifetime:
        """Begins the body. Raises RuntimeError inside of it."""
        self.require_idle()
        self._body = asyncio.current_task()
        assert self._body is not None
        self._cancelling = self._body.cancelling()
        return self

    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs ``function`` in the background; if it raises, the body is cancelled and the exception raised there."""
        task = asyncio.get_running_loop().create_task(function(), name=f"tailrace {function.__qualname__}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Ends the body with ``error``, as if a background task had raised it."""
        if self.failure is None:
            self.failure = error
            if self._body is not None:
                self._has_cancelled = self._body.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self.end(error)

    async def end(self, error: BaseException | None) -> bool:
        """Ends the body, which ``error`` has ended, and the tasks. Raises what the table above says."""
        body, self._body = self._body, None
        assert body is not None
        cancellation = await self._end_tasks()
        if self._has_cancelled:
            self._has_cancelled = False
            if error is None and cancellation is None:
                cancellation = await _pending_cancellation()
            if body.uncancel() <= self._cancelling:
                cancellation = None  # it was this object's alone
                if isinstance(error, asyncio.CancelledError):
                    error = None
        if isinstance(error, asyncio.CancelledError):
            return False
        if cancellation is not None:
            raise cancellation
        if error is None and self.failure is not None:
            # The cancellation that it ended the body with is no part of its story.
            raise self.failure from self.failure.__cause__
        if error is not None and self.failure is not None:
            join_context(error, self.failure, asyncio.CancelledError)
        return False

    async def _end_tasks(self) -> asyncio.CancelledError | None:
        """Cancels the tasks and waits for their end. Returns the cancellation that has come meanwhile."""
        cancellation = None
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)  # `_ended` has been called then
            except asyncio.CancelledError as error:
                cancellation = error
        return cancellation


async def _pending_cancellation() -> asyncio.CancelledError | None:
    """Takes the cancellation of a body that has ended without a wait for it."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as error:
        return error
    return None
