"""Carries out a fetch under asyncio: several partitions at a time, each with a thread for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tailrace.asyncio.runner import RequestRunner
from tailrace.asyncio.worker_thread import WorkerThread
from tailrace.copies.fetch import PARTITIONS_AT_ONCE, FeedFetch, Fetched, FetchedPartition
from tailrace.copies.fetching import run, working


async def run_fetch(runner: RequestRunner, fetch: FeedFetch) -> Fetched:
    """Fetches the feed. If cancelled, what has come stays for the next fetch."""
    fetched: dict[int, FetchedPartition] = {}

    async def fetch_some(waiting: Iterator[int]) -> None:
        async with working(WorkerThread("tailrace fetch")) as worker:
            for partition in waiting:
                fetched[partition] = await run(runner.ask, worker, fetch.partition(partition))

    try:
        async with working(WorkerThread("tailrace fetch")) as worker:
            chosen = await run(runner.ask, worker, fetch.begin())
        waiting = iter(chosen)
        async with asyncio.TaskGroup() as group:
            for _ in range(min(PARTITIONS_AT_ONCE, len(chosen))):
                group.create_task(fetch_some(waiting))
    except BaseExceptionGroup as failures:  # the first one ends the fetch of the others
        raise failures.exceptions[0] from None
    finally:
        fetch.close()
    return Fetched(fetch.path, dict(sorted(fetched.items())))
