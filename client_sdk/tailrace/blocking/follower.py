"""Keeps an index equal to a feed without async: ``with feed.follow(index) as follower: ...``

One thread reads all that has arrived, up to the bounds of a transaction, and applies it: of each key only the newest.
So the slower the index, the more a transaction holds. ``applier`` decides which calls the index gets, and in which
order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tailrace.errors import StreamEnded, WrongProcess
from tailrace.indexes import Index, IndexBusy
from tailrace.indexes.applier import AWAITED, BUSY_PAUSE_S
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.follower_core import OPEN_BUSY_SECONDS, Awaited, FollowerCore, FollowOptions
from tailrace.indexes.parking import Parking
from tailrace.link.forks import OfOneProcess
from tailrace.model import EndReason, Put, Version
from tailrace.model.arguments import seconds
from tailrace.model.documented import documented
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from tailrace.blocking.stream import Stream
    from tailrace.consuming.stream_status import StreamStatus
    from tailrace.consuming.subscription import Subscription
    from tailrace.model import Level

TIMEOUT = "The seconds to wait, after which `TimeoutError` is raised. None: as long as it takes."


class FollowedFeed(Protocol):
    """The feed that an index follows."""

    @property
    def name(self) -> str: ...
    def level(self, text: str) -> Level: ...
    def stream(self, subscription: Subscription) -> Stream: ...
    def park(self, changes: Sequence[Put]) -> None: ...


class Follower(OfOneProcess):
    """Applies a feed to an index, each batch together with its checkpoint. Made by `Feed.follow`.

    All threads of the process may call its methods while the body runs. If the index raises an exception, the follower
    ends: later calls raise `StreamEnded`, and leaving the body raises the exception, unless the body has raised one.
    """

    def __init__(self, feed: FollowedFeed, index: Index, options: FollowOptions) -> None:
        self._feed = feed
        self._core = FollowerCore(feed.name, index, options)
        self._visibility = options.visibility
        self._thread = threading.Thread(target=self._run, name=f"tailrace index of {feed.name}", daemon=True)
        self._stream: Stream | None = None
        self._failure: Exception | None = None
        self._has_begun = self._is_leaving = self._has_ended = False
        # Invariant: no thread that holds it waits for the lock of a stream, whose calls come here with that lock held.
        self._changed = threading.Condition()
        self._changes = 0
        self._register()

    def _forked(self, error: WrongProcess) -> None:
        self._changed = threading.Condition()  # the thread of the parent is not here to release it

    def __enter__(self) -> Follower:
        """Opens the index, and resumes from its stored positions.

        Raises ValueError if a follower of this process has the index already, the errors of the index (IndexBusy only
        after 60 s), BadPosition, UnknownFeed, ...
        """
        self.check_process()
        if self._thread.ident is not None:
            raise RuntimeError("this follower was entered before: make another one")
        self._core.claim()
        self._thread.start()
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._has_begun or self._has_ended)
        except BaseException:
            self._leave()
            raise
        if not self._has_begun:
            self._leave()
            assert self._failure is not None, "it has ended before it has begun"
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._forked_from:
            return
        self._leave()
        if self._failure is not None and error is None:
            raise self._failure

    def _leave(self) -> None:
        """Ends the thread, when the call of the index that is under way has returned."""
        self._is_leaving = True
        self._core.applier.leave()
        if self._stream is not None:
            self._stream.close()
        self._thread.join()

    # What users ask

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until the index holds every write that was acknowledged, at any level, before this call.

        Args:
            timeout: The seconds to wait. None: as long as it takes.

        Raises:
            TimeoutError: The index has not come so far within ``timeout`` seconds.
            StreamEnded: The follower has ended.
        """
        self._barrier(_deadline(timeout))

    def _barrier(self, deadline: float | None) -> None:
        self.check_process()
        self._core.require_running(self._failure, ended=self._has_ended)
        assert self._stream is not None, "the follower has begun"
        self._stream.barrier(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        received = self._core.jobs.received
        while True:
            changes = self._changes  # before the look: what changes after it ends the wait
            if self._core.has_applied(received):
                return
            self._wait(changes, deadline)

    @documented(FollowerCore.wait_for, timeout=TIMEOUT)
    def wait_for(self, version: Version, *, timeout: float | None = None) -> None:
        self.check_process()
        deadline, waits = _deadline(timeout), self._core.wait_for(version)
        while True:
            changes = self._changes  # as in `_barrier`
            awaited = next(waits, None)
            if awaited is None:
                return
            if awaited is Awaited.BARRIER:
                self._barrier(deadline)
            else:
                self._wait(changes, deadline)

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
        assert self._stream is not None, "the follower has begun"
        return self._stream.status()

    @property
    def applied_rows(self) -> int:
        """The number of rows that were written to the index since the body began, deletions included."""
        return self._core.applied_rows

    @property
    def parked_rows(self) -> int:
        """The number of rows that were parked since the body began, since the index could not take them."""
        return self._core.parked_rows

    def _wait(self, changes: int, deadline: float | None) -> None:
        """Waits until something has changed since ``changes``."""
        with self._changed:
            self._core.require_running(self._failure, ended=self._has_ended)
            left_s = None if deadline is None else deadline - time.monotonic()
            if not self._changed.wait_for(lambda: self._changes != changes or self._has_ended, left_s):
                raise TimeoutError("the index has not come so far within the time-out")

    def _tell(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    # The thread

    def _run(self) -> None:
        try:
            try:
                self._follow(self._open_index())
            finally:
                self._core.index.close()
        except Exception as error:
            # The end that leaving causes is none of its failures.
            if not (self._is_leaving and isinstance(error, StreamEnded | IndexBusy)):
                self._failure = error
        finally:
            self._core.release()
            self._has_ended = True
            self._tell()

    def _open_index(self) -> Checkpoint | None:
        gives_up_at = time.monotonic() + OPEN_BUSY_SECONDS
        while True:
            try:
                return self._core.open()
            except IndexBusy:
                if self._is_leaving or time.monotonic() >= gives_up_at:
                    raise
            time.sleep(BUSY_PAUSE_S)

    def _follow(self, checkpoint: Checkpoint | None) -> None:
        level = self._feed.level(self._visibility)
        stream = self._stream = self._feed.stream(self._core.subscription(checkpoint, level))
        if self._is_leaving:
            raise StreamEnded("the follower was closed", reason=EndReason.CLOSED)
        with stream:
            self._core.begin(stream, checkpoint)
            stream.watch_history(self._tell)
            self._has_begun = True
            self._tell()
            while True:
                self._gather(stream)
                self._apply()

    def _gather(self, stream: Stream) -> None:
        """Waits for an event, and takes it and what has arrived behind it, up to the bounds of a transaction."""
        jobs, event = self._core.jobs, stream.next()
        while event is not None:
            jobs.add(event)
            if isinstance(event, AWAITED) or jobs.is_full or not stream.has_event():
                return
            event = stream.next(0)

    def _apply(self) -> None:
        jobs, covered = self._core.jobs.take()
        for job in jobs:
            result = self._core.call_of(job)()
            if isinstance(result, Parking):
                for changes in result.changes():
                    self._feed.park(changes)
                self._core.parked(result)
                result = result.finish()
            self._core.done(job, result)
        self._core.covers(covered)
        self._tell()


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + seconds("timeout", timeout)
