"""Keeps an index equal to a feed: ``async with feed.follow(index) as follower: ...``

Two tasks: one reads what arrives, up to the bounds of a transaction; the other applies it, on the index's own thread,
and of each key only the newest. So the slower the index, the more a transaction holds, and the fewer rows it writes.
``applier`` decides which calls the index gets, and in which order.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import trio

from tailrace.consuming.events import Rollback
from tailrace.consuming.ring import RING_ROWS
from tailrace.consuming.session import Subscription
from tailrace.consuming.stream_status import StreamStatus
from tailrace.indexes import Index, IndexBusy
from tailrace.indexes.applier import BUSY_PAUSE_S, IndexBatch, IndexRollback
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.follower_core import OPEN_BUSY_SECONDS, Awaited, FollowerCore
from tailrace.link.forks import OfOneProcess
from tailrace.model import Level, Version
from tailrace.model.documented import documented
from tailrace.model.position import Positions
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.stream import Stream


class FollowedFeed(Protocol):
    """The feed that an index follows."""

    @property
    def name(self) -> str: ...
    @property
    def host(self) -> Host: ...
    def level(self, text: str) -> Level: ...
    def stream(self, subscription: Subscription) -> Stream: ...


class Follower(OfOneProcess):
    """Applies a feed to an index, each batch together with its checkpoint. Made by `Feed.follow`.

    All tasks of one trio run may call its methods. If the index raises an exception, the body ends with it.
    """

    def __init__(
        self,
        feed: FollowedFeed,
        index: Index,
        *,
        visibility: str = "disk",
        ring: int = RING_ROWS,
        catch_up: str = "auto",
    ) -> None:
        self._feed = feed
        self._core = FollowerCore(feed.name, index, ring, catch_up)
        self._visibility = visibility
        self._thread = feed.host.worker(f"tailrace index of {feed.name}")
        self._lifetime = Lifetime()
        self._arrived = trio.Event()
        self._taken = trio.Event()
        self._moved = trio.Event()
        self._entered = False
        self._ended = False
        self._register()

    async def __aenter__(self) -> Follower:
        """Opens the index, and resumes from its stored positions.

        Raises ValueError if a follower of this process has the index already, the errors of the index (IndexBusy only
        after 60 s), BadPosition, UnknownFeed, ...
        """
        self.check_process()
        if self._entered:
            raise RuntimeError("this follower was entered before: make another one")
        self._core.claim()
        self._entered = True
        self._thread.start()
        try:
            checkpoint = await self._open_index()
            level = self._feed.level(self._visibility)
            self._stream = self._feed.stream(self._core.subscription(checkpoint, level))
            await self._stream.__aenter__()
        except BaseException:
            await self._close_index()
            raise
        self._core.begin(self._stream, checkpoint)
        self._stream.watch_history(self._wake_waiters)
        await self._lifetime.__aenter__()
        self._lifetime.start(self._read)
        self._lifetime.start(self._apply)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        self._core.applier.leave()
        try:
            return await self._lifetime.__aexit__(kind, error, traceback)
        finally:
            self._ended = True
            self._moved.set()
            try:
                await self._stream.__aexit__(None, None, None)
            finally:
                await self._close_index()

    async def _open_index(self) -> Checkpoint | None:
        deadline = trio.current_time() + OPEN_BUSY_SECONDS
        while True:
            try:
                return await self._thread.run(self._core.applier.open)
            except IndexBusy:
                if trio.current_time() >= deadline:
                    raise
            await trio.sleep(BUSY_PAUSE_S)

    async def _close_index(self) -> None:
        try:
            with trio.CancelScope(shield=True):
                await self._thread.run(self._core.index.close)
        finally:
            self._thread.stop()
            self._core.release()

    # What users ask

    async def barrier(self) -> None:
        """Waits until the index holds every write that was acknowledged, at any level, before this call.

        Cancelling it has no effect on the follower.

        Raises:
            StreamEnded: The follower has ended.
        """
        self.check_process()
        await self._stream.barrier()
        await self._wait_applied(self._core.jobs.received)

    @documented(FollowerCore.wait_for)
    async def wait_for(self, version: Version) -> None:
        self.check_process()
        for awaited in self._core.wait_for(version):
            if awaited is Awaited.BARRIER:
                await self.barrier()
            else:
                await self._wait_moved()

    @property
    def positions(self) -> Positions:
        """The positions of the index. Everything up to them is applied and stored."""
        return self._core.positions

    @property
    def lag(self) -> dict[int, int]:
        """The number of seqs, by partition, between the index and the newest seq that the follower knows."""
        return self._core.lag

    def status(self) -> StreamStatus:
        """Tells what the follower's stream waits for, which nodes it asks, and how far each partition is.

        Returns:
            The state of the stream at this moment. It may be ahead of the index, whose positions are `positions`.
        """
        return self._stream.status()

    @property
    def applied_rows(self) -> int:
        """The number of rows that were written to the index since the body began, deletions included."""
        return self._core.applied_rows

    async def _wait_applied(self, count: int) -> None:
        while not self._core.has_applied(count):
            await self._wait_moved()

    async def _wait_moved(self) -> None:
        self._core.require_running(self._lifetime.failure, ended=self._ended)
        await self._moved.wait()

    def _wake_waiters(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    # Reading and applying

    async def _read(self) -> None:
        jobs = self._core.jobs
        async for event in self._stream:
            while jobs.is_full:
                self._taken = trio.Event()
                await self._taken.wait()
            if jobs.add(event):
                self._arrived.set()
            if isinstance(event, Rollback):
                # What comes next depends on how far the index goes back: nothing later may be stored before.
                await self._wait_applied(jobs.received)

    async def _apply(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = trio.Event()
            jobs, covered = self._core.jobs.take()
            self._taken.set()
            for job in jobs:
                await self._do(job)
            self._core.covers(covered)
            self._wake_waiters()

    async def _do(self, job: IndexBatch | IndexRollback) -> None:
        try:
            self._core.done(job, await self._thread.run(self._core.call_of(job)))
        except IndexBusy:
            await trio.sleep_forever()  # the follower is being left; rows that were not stored come again
