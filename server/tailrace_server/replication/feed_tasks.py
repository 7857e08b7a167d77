"""The tasks of one feed that is pulled on the connection of a `PulledNode`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import UnknownFeed

if TYPE_CHECKING:
    from tailrace_server.replication.pulled_node import PulledNode


class FeedTasks:
    """Begins and cancels the tasks of a feed. An error of a task ends the connection, but UnknownFeed."""

    def __init__(
        self,
        pulled: PulledNode,
        is_stopped: Callable[[], bool],
        on_unknown: Callable[[UnknownFeed], None],
        on_cancelled: Callable[[], None],
    ) -> None:
        """Begins none.

        Args:
            pulled: the connection.
            is_stopped: returns whether no task may begin any more.
            on_unknown: called if a task says that the other node does not know the feed.
            on_cancelled: called when no task runs after `cancel`.
        """
        self._pulled = pulled
        self._is_stopped = is_stopped
        self._on_unknown = on_unknown
        self._on_cancelled = on_cancelled
        self._scopes: dict[trio.CancelScope, None] = {}  # of the tasks that run
        self._is_cancelled = False

    @property
    def are_running(self) -> bool:
        """Whether any task runs."""
        return bool(self._scopes)

    def start(self, task: Callable[[], Awaitable[None]]) -> None:
        """Runs a task until it ends, or until `cancel`."""
        if not self._is_stopped() and self._pulled.takes_tasks:
            self._pulled.start(partial(self._run, task))

    def cancel(self) -> None:
        """Cancels all tasks."""
        self._is_cancelled = True
        for scope in self._scopes:
            scope.cancel()
        if not self._scopes:
            self._on_cancelled()

    async def _run(self, task: Callable[[], Awaitable[None]]) -> None:
        with trio.CancelScope() as scope:
            self._scopes[scope] = None
            try:
                if not self._is_stopped():
                    await task()
            except UnknownFeed as error:
                self._on_unknown(error)
            finally:
                del self._scopes[scope]
                if self._is_cancelled and not self._scopes:
                    self._on_cancelled()
