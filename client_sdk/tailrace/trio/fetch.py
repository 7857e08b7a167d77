"""Carries out a fetch under trio: several partitions at a time, each with a thread for the disk."""

from __future__ import annotations

from collections.abc import Iterator

import trio

from tailrace.copies.fetch import PARTITIONS_AT_ONCE, FeedFetch, Fetched, FetchedPartition
from tailrace.copies.fetching import run, working
from tailrace.trio.runner import RequestRunner


async def run_fetch(runner: RequestRunner, fetch: FeedFetch) -> Fetched:
    """Fetches the feed. If cancelled, what has come stays for the next fetch."""
    try:
        async with working(runner.host.worker("tailrace fetch")) as worker:
            chosen = await run(runner.ask, worker, fetch.begin())
        fetched = await _fetch_all(runner, fetch, chosen)
    finally:
        fetch.close()
    return Fetched(fetch.path, dict(sorted(fetched.items())))


async def _fetch_all(runner: RequestRunner, fetch: FeedFetch, chosen: tuple[int, ...]) -> dict[int, FetchedPartition]:
    """Fetches the partitions, and returns what became of each. The first error ends the fetch of the others."""
    fetched: dict[int, FetchedPartition] = {}
    failures: list[Exception] = []

    async def fetch_some(waiting: Iterator[int]) -> None:
        async with working(runner.host.worker("tailrace fetch")) as worker:
            for partition in waiting:
                fetched[partition] = await run(runner.ask, worker, fetch.partition(partition))

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
