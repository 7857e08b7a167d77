"""A thread that runs plain functions, one after the other, for a trio task: an index lives on one thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import outcome
import trio

T = TypeVar("T")


class WorkerThread:
    """One thread, from ``start`` to ``stop``. ``run`` is for one task at a time."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[outcome.Outcome[Any]], None]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its present functions, without waiting for it."""
        self._jobs.put(None)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Runs ``function(*args)`` on the thread. Returns its result or raises its error.

        A cancellation waits until the function has returned.
        """
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()
        results: list[outcome.Outcome[Any]] = []

        def deliver(result: outcome.Outcome[Any]) -> None:
            results.append(result)
            token.run_sync_soon(done.set)

        self._jobs.put((lambda: function(*args), deliver))
        with trio.CancelScope(shield=True):
            await done.wait()
        value: T = results[0].unwrap()
        return value

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Runs ``function(*args)``, which raises nothing, on the thread later. Does not wait for it."""
        self._jobs.put((lambda: function(*args), _ignore))

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, deliver = job
            deliver(outcome.capture(function))


def _ignore(_: outcome.Outcome[Any]) -> None:
    pass
