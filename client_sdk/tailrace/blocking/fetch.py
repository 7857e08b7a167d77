"""Carries out a fetch without async: one partition after the other, and the disk while the network is at work."""

from __future__ import annotations

import collections
from typing import Any, TypeVar

from tailrace.blocking.runner import BlockingRunner
from tailrace.copies.fetch import Exchange, FeedFetch, Fetched, FetchPlan, FetchStep, OnDisk
from tailrace.errors import TailraceError
from tailrace.requests.plan import Continue, FetchParts

_T = TypeVar("_T")


class _Arrived:
    """Bytes of parts that have arrived, and are to be stored: the work of an exchange."""

    def __init__(self, step: Exchange) -> None:
        self._store = step.store
        self._pieces: collections.deque[tuple[int, memoryview]] = collections.deque()

    def add(self, number: int, data: memoryview) -> None:
        """Keeps the next bytes of a part. Any thread may call it."""
        self._pieces.append((number, data))

    @property
    def waits(self) -> bool:
        return bool(self._pieces)

    def do(self) -> None:
        """Stores the bytes. Waits for the disk."""
        while self._pieces:
            self._store(*self._pieces.popleft())


def run_fetch(runner: BlockingRunner, fetch: FeedFetch, timeout: float | None) -> Fetched:
    """Fetches the feed; each request may take ``timeout`` seconds."""
    try:
        chosen = run(runner, fetch.begin(), timeout)
        fetched = {partition: run(runner, fetch.partition(partition), timeout) for partition in chosen}
    finally:
        fetch.close()
    return Fetched(fetch.path, fetched)


def run(runner: BlockingRunner, plan: FetchPlan[_T], timeout: float | None) -> _T:
    """Carries out a plan and returns its result."""
    try:
        step = next(plan)
        while True:
            try:
                answer = _take(runner, step, timeout)
            except (TailraceError, OSError) as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        plan.close()


def _take(runner: BlockingRunner, step: FetchStep, timeout: float | None) -> Any:
    """Carries out a step and returns its result."""
    if isinstance(step, OnDisk):
        return step.function()
    if isinstance(step, Exchange):
        arrived = _Arrived(step)
        fetch = FetchParts(step.checkpoint_id, step.parts, arrived.add, step.buffers)
        try:
            answer = runner.ask(fetch, runner.deadline(timeout), arrived)
        except TailraceError:
            arrived.do()
            raise
        # After an interrupt nothing more is stored: a piece may be lost, and those behind it would take its place.
        arrived.do()
        return answer
    if isinstance(step, Continue):
        return None  # each request has a time of its own
    return runner.ask(step, runner.deadline(timeout))
