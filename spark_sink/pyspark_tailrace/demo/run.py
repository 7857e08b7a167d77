"""Runs the demonstration, from the history to the comparison."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, TypeVar

import trio

import tailrace
from pyspark_tailrace.demo.comparison import Comparison, compare, read_index
from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.history import History
from pyspark_tailrace.demo.interruption import Interruption, interrupt, written_changes
from pyspark_tailrace.demo.job import Job, MicroBatch, first_out_of_order
from pyspark_tailrace.demo.memory import MemoryMeter
from pyspark_tailrace.demo.plan import FEED, LEVEL, PARTITIONS, plan_files
from pyspark_tailrace.demo.producer import Produced, Producer
from pyspark_tailrace.demo.progress import ProgressBars
from pyspark_tailrace.demo.search import Search, search_index
from pyspark_tailrace.demo.server import START_TIMEOUT_S
from pyspark_tailrace.demo.servers import Servers
from pyspark_tailrace.demo.workspace import Workspace
from tailrace.indexes import SQLiteIndex

COLUMNS = {
    "mode": "$.mode",
    "blob": "$.blob",
    "size": "$.size",
    "commit_id": "$.commit",
    "time": "$.time",
    "text": "$.text",
}
FULL_TEXT = ("text",)

SHOW_EVERY_S = 0.2
MEASURE_EVERY_S = 0.5

T = TypeVar("T")


class DemoResults(NamedTuple):
    """The results of a run. ``seconds_in`` and ``seconds_out`` count from the first file."""

    produced: Produced
    interruption: Interruption
    batches: list[MicroBatch]
    seconds_in: float
    seconds_out: float
    barrier_s: float
    rows_applied: int
    index_bytes: int
    memory: MemoryMeter
    comparison: Comparison
    search: Search | None
    commands: list[list[str]]
    url: str


async def run(history: History, total: int, workspace: Workspace, bars: ProgressBars) -> DemoResults:
    """Runs the whole demonstration, and stops all processes. ``total`` is the number of changes of the history.

    Raises DemoFailed, JavaNotFound, ImportError for a missing package, GitFailed, and the SDK's errors.
    """
    servers = Servers(workspace.server_data, workspace.server_logs)
    job = Job(workspace.spark, workspace.spark_log)
    meter = MemoryMeter()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_measure, meter, servers)
            async with trio.open_nursery() as starting:
                starting.start_soon(servers.start)
                starting.start_soon(trio.to_thread.run_sync, job.start_session)
            nursery.start_soon(servers.watch)
            results = await _DemoRun(history, total, workspace, servers, job, meter, bars).results()
            nursery.cancel_scope.cancel()
    finally:
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(job.stop)
        finally:
            await servers.stop()
    return results


class _DemoRun:
    """A run after the servers and Spark have started."""

    def __init__(
        self,
        history: History,
        total: int,
        workspace: Workspace,
        servers: Servers,
        job: Job,
        meter: MemoryMeter,
        bars: ProgressBars,
    ) -> None:
        self._history = history
        self._total = total
        self._workspace = workspace
        self._servers = servers
        self._job = job
        self._meter = meter
        self._bars = bars
        self._plan = plan_files(total)
        self._producer = Producer(history, workspace.changes, self._plan)

    async def results(self) -> DemoResults:
        async with AsyncExitStack() as stack:
            # Requests wait as long for a change of leader as for the start of a server.
            client = await stack.enter_async_context(
                tailrace.connect(self._servers.url, name="tailrace demo", retry_for=START_TIMEOUT_S)
            )
            feed = await client.create_feed(FEED, partitions=PARTITIONS)
            index = SQLiteIndex(self._workspace.index, columns=COLUMNS, full_text=FULL_TEXT)
            follower = await stack.enter_async_context(feed.follow(index, visibility=LEVEL))
            return await self._fed_and_followed(client, feed, follower)

    async def _fed_and_followed(
        self, client: tailrace.Client, feed: tailrace.Feed, follower: tailrace.Follower
    ) -> DemoResults:
        self._bars.begin(self._total)
        started = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, feed, follower)
            nursery.start_soon(self._producer.run)
            await self._start_query()
            nursery.start_soon(in_thread, self._job.wait_until_ended)
            interruption = await interrupt(self._servers, client, feed, self._job, self._producer, self._total)
            await self._producer.finished.wait()
            await in_thread(self._job.finish)
            written = time.monotonic()
            batches = await self._checked_batches(feed)
            async with trio.open_nursery() as last:
                # Spark is no longer needed, and the index may take a while: stopping Spark frees its memory.
                last.start_soon(trio.to_thread.run_sync, self._job.stop)
                asked = time.monotonic()
                await follower.barrier()
                level = time.monotonic()
            nursery.cancel_scope.cancel()
        return DemoResults(
            produced=self._producer.produced,
            interruption=interruption,
            batches=batches,
            seconds_in=written - started,
            seconds_out=level - started,
            barrier_s=level - asked,
            rows_applied=follower.applied_rows,
            index_bytes=sum(path.stat().st_size for path in self._workspace.root.glob("index.db*")),
            memory=self._meter,
            comparison=await in_thread(self._compare),
            search=await in_thread(lambda: search_index(self._workspace.index)),
            commands=[server.arguments for server in self._servers.all],
            url=self._servers.url,
        )

    async def _start_query(self) -> None:
        # Spark refuses a folder that does not exist.
        self._workspace.changes.mkdir(exist_ok=True)
        await in_thread(
            lambda: self._job.start_query(
                self._workspace.changes,
                url=self._servers.url,
                feed=FEED,
                level=LEVEL,
                partitions=PARTITIONS,
                files_per_batch=self._plan.files_per_batch,
                checkpoint=self._workspace.checkpoint,
            )
        )

    async def _checked_batches(self, feed: tailrace.Feed) -> list[MicroBatch]:
        """Returns the micro-batches. Raises DemoFailed if the feed's mutations or their order are not as sent."""
        written, sent = await written_changes(feed), self._producer.produced.changes
        if written != sent:
            raise DemoFailed(f"the feed has {written:,} mutations, but {sent:,} were sent: each must be written once")
        batches = await in_thread(self._job.micro_batches)
        wrong = first_out_of_order(batches)
        if wrong is not None:
            raise DemoFailed(
                f"Spark has read files out of order: micro-batch {wrong.id} has {wrong.changes:,} changes, numbered "
                f"{wrong.first_order:,} to {wrong.last_order:,}. Run the demo again"
            )
        return batches

    async def _show(self, feed: tailrace.Feed, follower: tailrace.Follower) -> None:
        while True:
            written = await written_changes(feed)
            indexed = sum(follower.positions.seqs().values())
            self._bars.show(self._producer.produced.changes, written, indexed)
            await trio.sleep(SHOW_EVERY_S)

    def _compare(self) -> Comparison:
        return compare(self._history.expected(), read_index(self._workspace.index))


async def in_thread(function: Callable[[], T]) -> T:
    """Runs a blocking function in a thread. Cancelling abandons it: it ends when Spark is stopped."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


async def _measure(meter: MemoryMeter, servers: Servers) -> None:
    while True:
        await trio.to_thread.run_sync(meter.sample, servers.process_ids)
        await trio.sleep(MEASURE_EVERY_S)
