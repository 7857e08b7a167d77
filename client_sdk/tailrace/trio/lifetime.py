"""Background tasks of a context manager: they live as long as its body, and its body never sees them.

What leaves the ``async with`` is one exception, never an ExceptionGroup:

    the body          the background      raised
    ----------------  ------------------  ----------------------------------------------------
    ends              goes on             nothing; the background is cancelled
    raises            goes on             the body's exception
    is running        fails               the body is cancelled; the background's exception
    raises            has failed          the body's exception, with the other as __context__

Ctrl-C never comes to the background: trio gives it to the main task, at a checkpoint.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import trio

from tailrace.errors import join_context


class Lifetime:
    """An async context manager that runs tasks in the background of its body."""

    def __init__(self) -> None:
        self._manager: AbstractAsyncContextManager[trio.Nursery] | None = None
        self._nursery: trio.Nursery | None = None
        self._is_running = False
        self.failure: Exception | None = None

    def require_idle(self) -> None:
        """Raises RuntimeError inside of the body: of two bodies the nurseries would end in the wrong order."""
        if self._is_running:
            raise RuntimeError("this object was entered already: make another one for a second body")

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Lifetime:
        """Begins the body. Raises RuntimeError inside of it."""
        self.require_idle()
        self._is_running = True
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        return self

    def start(self, function: Callable[[], Awaitable[None]]) -> None:
        """Runs ``function`` in the background; if it raises, the body is cancelled and the exception raised there."""
        assert self._nursery is not None, "start is for the body of the context manager"
        self._nursery.start_soon(self._guard, function)

    def fail(self, error: Exception) -> None:
        """Ends the body with ``error``, as if a background task had raised it."""
        assert self._nursery is not None
        if self.failure is None:
            self.failure = error
        self._nursery.cancel_scope.cancel()

    @trio.lowlevel.enable_ki_protection
    async def _guard(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except Exception as error:
            # The body sees the error of a background task itself, without the groups of the nurseries around it.
            while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            self.fail(error)

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        assert self._manager is not None
        assert self._nursery is not None
        self._is_running = False
        self._nursery.cancel_scope.cancel()
        try:
            swallowed = await self._manager.__aexit__(kind, error, traceback)
        except BaseExceptionGroup as group:
            if error is not None and not _holds_cancellation(error):
                if self.failure is not None:
                    join_context(error, self.failure, trio.Cancelled)
                return False  # the body's own exception goes on as itself
            raise _alone(group) from None
        if self.failure is not None and (error is None or swallowed):
            # The cancellation that it ended the body with is no part of its story.
            raise self.failure from self.failure.__cause__
        return bool(swallowed)


def _holds_cancellation(error: BaseException) -> bool:
    """Tells whether ``error`` holds a Cancelled, which trio has to catch at a cancel scope."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(trio.Cancelled) is not None
    return isinstance(error, trio.Cancelled)


def _alone(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the only exception of a group, or the group itself if it has several."""
    return group.exceptions[0] if len(group.exceptions) == 1 else group
