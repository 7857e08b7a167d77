"""Keeps an index equal to a feed, in two tasks: the part of a follower that the shells with async share.

One task reads what arrives, up to the bounds of a transaction; the other applies it, on the index's own thread, and of
each key only the newest. So the slower the index, the more a transaction holds, and the fewer rows it writes.
``applier`` decides which calls the index gets, and in which order. A shell gives events, pauses and the tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeVar

from tailrace.consuming.events import Event
from tailrace.consuming.stream_status import StreamStatus
from tailrace.consuming.subscription import Subscription
from tailrace.indexes import IndexBusy
from tailrace.indexes.applier import AWAITED, BUSY_PAUSE_S, Job
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.follower_core import OPEN_BUSY_SECONDS, Awaited, FollowedStream, FollowerCore
from tailrace.indexes.parking import Parking
from tailrace.link.forks import OfOneProcess
from tailrace.model import Level, Put, Version
from tailrace.model.documented import documented
from tailrace.model.position import Positions

_T = TypeVar("_T")
_Self = TypeVar("_Self", bound="Following")


class FeedStream(FollowedStream, Protocol):
    """A consumer of a shell."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool | None: ...
    def __aiter__(self) -> AsyncIterator[Event]: ...
    async def barrier(self) -> None: ...
    def watch_history(self, changed: Callable[[], None]) -> None: ...


class FollowedFeed(Protocol):
    """The feed that an index follows."""

    @property
    def name(self) -> str: ...
    def level(self, text: str) -> Level: ...
    def stream(self, subscription: Subscription) -> FeedStream: ...
    async def park(self, changes: Sequence[Put]) -> None: ...


class Signal(Protocol):
    """An event of a shell's library: tasks wait until it is set."""

    def set(self) -> None: ...
    async def wait(self) -> Any: ...


class Thread(Protocol):
    """The thread of an index, or what stands for it."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    async def run(self, function: Callable[..., _T], *args: Any) -> _T:
        """Runs ``function(*args)`` and returns its result or raises its error. A cancellation waits for the end."""
        ...


class Background(Protocol):
    """The tasks beside the body of a context manager: a shell's `Lifetime`."""

    @property
    def failure(self) -> Exception | None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> bool: ...
    def start(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None: ...


class Library(NamedTuple):
    """The needs of a follower from the library of its shell: events, pauses, and monotonic seconds."""

    signal: Callable[[], Signal]
    sleep: Callable[[float], Awaitable[Any]]
    now: Callable[[], float]


class Following(OfOneProcess):
    """The base of each shell's `Follower`."""

    def __init__(
        self,
        feed: FollowedFeed,
        core: FollowerCore,
        visibility: str,
        library: Library,
        thread: Thread,
        lifetime: Background,
    ) -> None:
        self._feed = feed
        self._core = core
        self._visibility = visibility
        self._library = library
        self._thread = thread
        self._lifetime = lifetime
        self._arrived = library.signal()
        self._taken = library.signal()
        self._moved = library.signal()
        self._entered = False
        self._ended = False
        self._register()

    async def __aenter__(self: _Self) -> _Self:
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
        deadline = self._library.now() + OPEN_BUSY_SECONDS
        while True:
            try:
                return await self._thread.run(self._core.open)
            except IndexBusy:
                if self._library.now() >= deadline:
                    raise
            await self._library.sleep(BUSY_PAUSE_S)

    async def _close_index(self) -> None:
        try:
            await self._thread.run(self._core.index.close)  # which no cancellation keeps from its end
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

    @property
    def parked_rows(self) -> int:
        """The number of rows that were parked since the body began, since the index could not take them."""
        return self._core.parked_rows

    async def _wait_applied(self, count: int) -> None:
        while not self._core.has_applied(count):
            await self._wait_moved()

    async def _wait_moved(self) -> None:
        self._core.require_running(self._lifetime.failure, ended=self._ended)
        await self._moved.wait()

    def _wake_waiters(self) -> None:
        self._moved.set()
        self._moved = self._library.signal()

    # Reading and applying

    async def _read(self) -> None:
        jobs = self._core.jobs
        async for event in self._stream:
            while jobs.is_full:
                self._taken = self._library.signal()
                await self._taken.wait()
            if jobs.add(event):
                self._arrived.set()
            if isinstance(event, AWAITED):
                await self._wait_applied(jobs.received)

    async def _apply(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived = self._library.signal()
            jobs, covered = self._core.jobs.take()
            self._taken.set()
            for job in jobs:
                await self._do(job)
            self._core.covers(covered)
            self._wake_waiters()

    async def _do(self, job: Job) -> None:
        try:
            result = await self._thread.run(self._core.call_of(job))
            if isinstance(result, Parking):
                for changes in result.changes():
                    await self._feed.park(changes)
                self._core.parked(result)
                result = await self._thread.run(result.finish)
            self._core.done(job, result)
        except IndexBusy:
            await self._library.signal().wait()  # the follower is being left; rows that were not stored come again
