"""A thread that runs plain functions, one after the other, for a task of asyncio: an index lives on one thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class WorkerThread:
    """One thread, from ``start`` to ``stop``. ``run`` is for one task at a time."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present functions, without waiting for it."""
        self._jobs.put(None)

    async def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Runs ``function(*args)`` on the thread. Returns its result or raises its error.

        A cancellation waits until the function has returned, and goes on then.
        """
        result: Future[_T] = Future()
        self._jobs.put((lambda: function(*args), result))
        done = asyncio.wrap_future(result)
        cancellation = None
        while not done.done():
            try:
                await asyncio.wait([done])  # which does not cancel ``done``
            except asyncio.CancelledError as error:
                cancellation = error
        if cancellation is not None:
            done.exception()  # the function's error is no news to who leaves
            raise cancellation
        return done.result()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Runs ``function(*args)``, which raises nothing, on the thread later. Does not wait for it."""
        self._jobs.put((lambda: function(*args), Future()))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, result = job
            try:
                value = function()
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(value)
                del value
            del job, function, result  # which may hold the rows of a transaction
