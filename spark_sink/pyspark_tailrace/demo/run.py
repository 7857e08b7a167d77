"""A run of the demonstration, from the history to the comparison."""

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
from pyspark_tailrace.demo.interruption import Interruption, acknowledged_changes, interrupt
from pyspark_tailrace.demo.job import Job, MicroBatch, first_out_of_order
from pyspark_tailrace.demo.memory import MemoryMeter
from pyspark_tailrace.demo.plan import FEED, PARTITIONS, plan_files
from pyspark_tailrace.demo.producer import Produced, Producer
from pyspark_tailrace.demo.progress import ProgressBars
from pyspark_tailrace.demo.search import Search, search_index
from pyspark_tailrace.demo.server import START_TIMEOUT_S, Server
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


class Results(NamedTuple):
    """What a run has shown. Times are seconds, from the first file on where they are not said to be of something."""

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
    port: int


async def run(history: History, total: int, workspace: Workspace, bars: ProgressBars) -> Results:
    """Runs the whole of it; nothing is left running. ``total``: how many changes the history has.

    Raises DemoFailed, JavaNotFound or ImportError for what is missing, GitFailed, and what the SDK raises.
    """
    server = Server(workspace.server_data, workspace.server_log)
    job = Job(workspace.spark, workspace.spark_log)
    meter = MemoryMeter()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_measure, meter, server)
            async with trio.open_nursery() as starting:
                starting.start_soon(server.start)
                starting.start_soon(trio.to_thread.run_sync, job.start_session)
            nursery.start_soon(server.watch)
            results = await _Run(history, total, workspace, server, job, meter, bars).results()
            nursery.cancel_scope.cancel()
    finally:
        try:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(job.stop)
        finally:
            await server.stop()
    return results


class _Run:
    """What the stages of a run share, once the server and Spark have started."""

    def __init__(
        self,
        history: History,
        total: int,
        workspace: Workspace,
        server: Server,
        job: Job,
        meter: MemoryMeter,
        bars: ProgressBars,
    ) -> None:
        self._history = history
        self._total = total
        self._workspace = workspace
        self._server = server
        self._job = job
        self._meter = meter
        self._bars = bars
        self._plan = plan_files(total)
        self._producer = Producer(history, workspace.changes, self._plan)

    async def results(self) -> Results:
        async with AsyncExitStack() as stack:
            # A start after the kill takes a while: everything here waits as long for the server as the demo does.
            client = await stack.enter_async_context(
                tailrace.connect(self._server.url, name="tailrace demo", retry_for=START_TIMEOUT_S)
            )
            feed = await client.create_feed(FEED, partitions=PARTITIONS)
            index = SQLiteIndex(self._workspace.index, columns=COLUMNS, full_text=FULL_TEXT)
            follower = await stack.enter_async_context(feed.follow(index))
            return await self._fed_and_followed(feed, follower)

    async def _fed_and_followed(self, feed: tailrace.Feed, follower: tailrace.Follower) -> Results:
        self._bars.begin(self._total)
        started = time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._show, feed, follower)
            nursery.start_soon(self._producer.run)
            await self._start_query()
            nursery.start_soon(in_thread, self._job.wait_until_ended)
            interruption = await interrupt(self._server, feed, self._job, self._producer, self._total)
            await self._producer.finished.wait()
            await in_thread(self._job.finish)
            written = time.monotonic()
            batches = await self._checked_batches(feed)
            async with trio.open_nursery() as last:
                # Spark is not needed any more, and the index may have a while to go: this gives back its memory.
                last.start_soon(trio.to_thread.run_sync, self._job.stop)
                asked = time.monotonic()
                await follower.barrier()
                level = time.monotonic()
            nursery.cancel_scope.cancel()
        return Results(
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
            port=self._server.port,
        )

    async def _start_query(self) -> None:
        # Spark refuses a folder that is not there.
        self._workspace.changes.mkdir(exist_ok=True)
        await in_thread(
            lambda: self._job.start_query(
                self._workspace.changes,
                url=self._server.url,
                feed=FEED,
                partitions=PARTITIONS,
                files_per_batch=self._plan.files_per_batch,
                checkpoint=self._workspace.checkpoint,
            )
        )

    async def _checked_batches(self, feed: tailrace.Feed) -> list[MicroBatch]:
        """The micro-batches. DemoFailed where the feed has not exactly what was sent, or the order was not kept."""
        written, sent = await acknowledged_changes(feed), self._producer.produced.changes
        if written != sent:
            raise DemoFailed(f"the feed has {written:,} mutations, and {sent:,} were sent: each has to be written once")
        batches = await in_thread(self._job.micro_batches)
        wrong = first_out_of_order(batches)
        if wrong is not None:
            raise DemoFailed(
                f"Spark has taken files out of their order: micro-batch {wrong.id} has {wrong.changes:,} changes, "
                f"numbered {wrong.first_order:,} to {wrong.last_order:,}; run it again"
            )
        return batches

    async def _show(self, feed: tailrace.Feed, follower: tailrace.Follower) -> None:
        while True:
            acknowledged = await acknowledged_changes(feed)
            indexed = sum(follower.positions.seqs().values())
            self._bars.show(self._producer.produced.changes, acknowledged, indexed)
            await trio.sleep(SHOW_EVERY_S)

    def _compare(self) -> Comparison:
        return compare(self._history.expected(), read_index(self._workspace.index))


async def in_thread(function: Callable[[], T]) -> T:
    """Runs what blocks in a thread. A cancellation does not wait for it: stopping Spark ends what waits for Spark."""
    return await trio.to_thread.run_sync(function, abandon_on_cancel=True)


async def _measure(meter: MemoryMeter, server: Server) -> None:
    while True:
        await trio.to_thread.run_sync(meter.sample, server.process_id)
        await trio.sleep(MEASURE_EVERY_S)
