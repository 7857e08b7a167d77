"""Carries out a fetch under trio: several partitions at a time, each with a thread for the disk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import trio

from tailrace.copies.fetch import (
    PARTITIONS_AT_ONCE,
    Exchange,
    FeedFetch,
    Fetched,
    FetchedPartition,
    FetchPlan,
    FetchStep,
    OnDisk,
)
from tailrace.errors import TailraceError
from tailrace.requests.plan import Continue, FetchParts
from tailrace.trio.host import Worker
from tailrace.trio.runner import RequestRunner

_T = TypeVar("_T")


async def run_fetch(runner: RequestRunner, fetch: FeedFetch) -> Fetched:
    """Fetches the feed. If cancelled, what has come stays for the next fetch."""
    try:
        async with _worker(runner) as worker:
            chosen = await run(runner, worker, fetch.begin())
        fetched = await _fetch_all(runner, fetch, chosen)
    finally:
        fetch.close()
    return Fetched(fetch.path, dict(sorted(fetched.items())))


async def _fetch_all(runner: RequestRunner, fetch: FeedFetch, chosen: tuple[int, ...]) -> dict[int, FetchedPartition]:
    """Fetches the partitions, and returns what became of each. The first error ends the fetch of the others."""
    fetched: dict[int, FetchedPartition] = {}
    failures: list[Exception] = []

    async def fetch_some(waiting: Iterator[int]) -> None:
        async with _worker(runner) as worker:
            for partition in waiting:
                fetched[partition] = await run(runner, worker, fetch.partition(partition))

    async def fetch_or_fail(waiting: Iterator[int], nursery: trio.Nursery) -> None:
        try:
            await fetch_some(waiting)
        except Exception as error:  # raised below, outside of the nursery, which would wrap it in a group
            failures.append(error)
            nursery.cancel_scope.cancel()

    waiting = iter(chosen)
    async with trio.open_nursery() as nursery:
        for _ in range(min(PARTITIONS_AT_ONCE, len(chosen))):
            nursery.start_soon(fetch_or_fail, waiting, nursery)
    if failures:
        raise failures[0]
    return fetched


@asynccontextmanager
async def _worker(runner: RequestRunner) -> AsyncIterator[Worker]:
    worker = runner.host.worker("tailrace fetch")
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


async def run(runner: RequestRunner, worker: Worker, plan: FetchPlan[_T]) -> _T:
    """Carries out a plan and returns its result."""
    try:
        step = next(plan)
        while True:
            try:
                answer = await _take(runner, worker, step)
            except (TailraceError, OSError) as error:
                step = plan.throw(error)
            else:
                step = plan.send(answer)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        plan.close()


async def _take(runner: RequestRunner, worker: Worker, step: FetchStep) -> Any:
    """Carries out a step and returns its result."""
    if isinstance(step, OnDisk):
        return await worker.run(step.function)
    if isinstance(step, Exchange):
        fetch = FetchParts(step.checkpoint_id, step.parts, partial(worker.post, step.store), step.buffers)
        try:
            return await runner.ask(fetch)
        finally:
            await worker.run(_do_nothing)  # all that was posted is done then
    if isinstance(step, Continue):
        return None  # each request has a time of its own
    return await runner.ask(step)


def _do_nothing() -> None:
    pass
