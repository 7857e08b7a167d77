"""A consumer without async: the events of a feed, for Spark tasks and scripts."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from tailrace.blocking.guard import raise_foreign
from tailrace.blocking.link import BlockingLink
from tailrace.consuming.events import Rollback
from tailrace.consuming.ring import RingChange
from tailrace.consuming.session import Event
from tailrace.consuming.stream_core import (
    LEAVE_SECONDS,
    OWN_BARRIER,
    OWN_LOOP_LOOKS,
    OWN_LOOP_SECONDS,
    POLL_ROWS,
    BatchReader,
    StreamCore,
    given,
)
from tailrace.errors import DataGone, TailraceError, Unreachable
from tailrace.model.arguments import count, seconds
from tailrace.model.documented import documented
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from tailrace.consuming.arrow_batches import Batches
    from tailrace.consuming.index_membership import IndexMembership
    from tailrace.consuming.stream_status import StreamStatus

_T = TypeVar("_T")

# The seconds between two checks that a node still serves the streams, while no event arrives.
LOOK_SECONDS = 0.5


class Stream:
    """The events of a feed, in the order of each partition, with a connection of its own.

    It is a context manager, and an iterator inside. One thread at a time may read it. Any thread may close it, and ask
    for its state or for a barrier. It sends and receives only inside its calls. If a consumer calls nothing for 30 s,
    the node drops its connection; the next call reconnects and resumes.
    """

    def __init__(self, core: StreamCore, tls: ssl.SSLContext | None = None) -> None:
        """Makes a stream that gives up after ``retry_for`` seconds without a stream of every partition."""
        self._core = core
        self._session = core.session
        self._link = BlockingLink(core.session, core.link, tls)
        self._agreed_at = time.monotonic()
        self._reader = 0  # the thread that reads
        self._loop_thread = 0  # the thread that has asked for an event last
        # What is in hand, and the program has not had yet: an interrupt may come before it has. One event at most; the
        # events of one poll at most.
        self._handing: list[Event] = []
        self._polled: list[list[Event]] = []

    def __enter__(self) -> Stream:
        """Connects, and asks for every partition. Raises UnknownFeed, BadPosition, DataGone, Unreachable, ..."""
        self._agreed_at = time.monotonic()
        try:
            while not self._session.answered:
                # Not until ``_has_heard``: an event that is queued already is handled later, and answers nothing.
                self._receive(None, partial(self._has_heard_since, self._link.heard_at))
                try:
                    self._session.handle_all()
                except TailraceError as error:
                    self._lost(error)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Every later call raises `StreamEnded`."""
        self._link.check_caller()
        with self._link.guard.lock:  # else a commit of another thread could begin and never end
            self._core.close()
        try:
            with contextlib.suppress(TailraceError):  # the node hears nothing, and the stream is over
                self._link.push()
                if self._core.is_leaving:
                    self._link.run_until(lambda: not self._core.is_leaving, time.monotonic() + LEAVE_SECONDS)
        finally:
            self._link.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        """Returns the next event; the one before it counts as handled. Raises the error that has ended the stream."""
        if self._wait(None) is None:
            raise StopIteration
        return self._handing.pop()

    def next(self, timeout: float | None = None) -> Event | None:
        """Returns the next event if one comes in time. The event before it counts as handled.

        Calls with short time-outs reconnect and notice a silent node as one long call does, but only while they run.

        Args:
            timeout: The seconds to wait. 0: takes only an event that has arrived. None: waits for as long as it takes.

        Returns:
            The event; None after ``timeout`` seconds, and at the end, when `finished` is True.

        Raises:
            Unreachable: No node has served the stream for ``retry_for`` seconds.
            StreamEnded: The stream has ended for good.
            TailraceError: As in `tailrace.Feed.consume`.
        """
        self._wait(timeout)
        return self._handing.pop() if self._handing else None

    def _wait(self, timeout: float | None) -> Event | None:
        """Returns the next event, which stays in ``_handing`` until the program has it; None at the end, too."""
        if timeout is not None:
            return self._step(seconds("timeout", timeout))
        while (event := self._step(LOOK_SECONDS)) is None and not self._session.finished:
            pass
        return event

    def _step(self, timeout_s: float) -> Event | None:
        self._link.check_caller()
        now = time.monotonic()
        deadline = now + timeout_s
        me = threading.get_ident()
        if self._polled:  # they are in hand together, and cannot be given one by one
            self._link.guard.begin()
        try:
            with self._link.guard.lock:
                if self._reader not in (0, me):
                    raise TailraceError(
                        "another thread reads this stream: its events have an order, so one thread at a time may read. "
                        "Let that one hand them on, or open another stream"
                    )
                self._reader = self._loop_thread = me
            return self._next_event(now, deadline)
        finally:
            if self._reader == me:
                self._reader = 0

    def _next_event(self, now: float, deadline: float) -> Event | None:
        paused_s = self._link.take_pause()  # a connection that broke in the pause is noticed now
        self._agreed_at = now if self._session.answered else self._agreed_at + paused_s
        is_over = False
        while True:
            if self._core.ended is not None:
                raise self._core.ended
            if self._handing:
                return self._handing[0]
            failure: TailraceError | None = None
            with self._link.guard.lock:
                self._link.guard.begin()
                try:
                    event = self._session.next_event()
                    if event is not None and not isinstance(event, DataGone):
                        self._handing.append(cast(Event, event))
                except TailraceError as error:
                    raise_foreign(error)
                    failure = error
                self._link.guard.end()
            if failure is not None:
                self._lost(failure)
                continue
            if event is not None or self._session.finished or is_over:
                return cast(Event | None, given(event))  # what else there is only a replica is given
            self._receive(deadline, self._has_heard)
            is_over = time.monotonic() >= deadline

    @documented(StreamCore.poll)
    def poll(self, *, max_rows: int = POLL_ROWS, timeout: float | None = None) -> list[Event]:
        rows_max = count("max_rows", max_rows, 1)
        if not self._polled:
            if self._wait(timeout) is None:
                return []
            with self._link.guard.lock:
                self._link.guard.begin()
                self._polled.append(self._core.poll(rows_max))
                self._handing.clear()
                self._link.guard.end()
        return self._polled.pop()

    @documented(BatchReader.batches)
    def batches(self) -> Batches:
        from tailrace.consuming.arrow_batches import Batches

        return Batches(self)

    @property
    def finished(self) -> bool:
        """True if every partition has reached its end and every event was delivered."""
        return self._session.finished

    @property
    def positions(self) -> Positions:
        """The positions that cover every event before the one in hand."""
        with self._link.guard.lock:
            return self._session.positions

    @property
    def latest_positions(self) -> Positions:
        """The positions that also cover the event in hand."""
        with self._link.guard.lock:
            is_had = not (self._handing or self._polled or self._link.guard.is_broken)
            return self._session.latest_positions if is_had else self._session.positions

    @documented(StreamCore.status)
    def status(self) -> StreamStatus:
        with self._link.guard.lock:
            return self._core.status()

    def commit(self, *, timeout: float | None = None) -> None:
        """Stores the positions behind the event in hand, which counts as handled, under the name of the consumer.

        Call it in the loop, when the event is done, or from another thread. It survives reconnects. After an
        interrupted wait the positions may be stored all the same.

        Args:
            timeout: The seconds to wait. None: as long as it takes.

        Raises:
            NotOwner: Another program was started under the name, which reads on from the last commit.
            TailraceError: The stream has no name.
            TimeoutError: They are not known to be stored after ``timeout`` seconds.
            StreamEnded: The stream has ended.
        """
        deadline = None if timeout is None else time.monotonic() + seconds("timeout", timeout)
        with self._link.guard.lock:
            self._link.guard.check()
            commit = self._core.commit(lambda: None)
        try:
            if not self._link.run_until(lambda: commit.is_over, deadline):
                raise TimeoutError(f"the positions are not known to be stored within {timeout:g} s")
        finally:
            with self._link.guard.lock:
                self._core.forget_commit(commit)
        commit.result()

    def barrier(self, *, timeout: float | None = None) -> None:
        """Waits until the loop has handled every write that was acknowledged, at any level, before this call.

        Call it from another thread than the loop. It returns when the loop asks for the event after, and it survives
        reconnects. An interrupted wait has no effect on the stream.

        Args:
            timeout: The seconds to wait. None: as long as it takes.

        Raises:
            TimeoutError: The loop has not come so far within ``timeout`` seconds.
            StreamEnded: The loop has ended.
            RuntimeError: The calling thread is the one that has asked for an event last, and no other one goes on in a
                moment: it would wait for itself.
        """
        wait_s = None if timeout is None else seconds("timeout", timeout)
        done = threading.Event()
        with self._link.guard.lock:
            self._link.guard.check()
        self._require_loop()
        with self._link.guard.lock:
            barrier = self._core.barrier(done.set)
        try:
            self._link.push()
            if not done.wait(wait_s):
                raise TimeoutError(f"the loop has not come to the barrier within {timeout:g} s")
        finally:
            with self._link.guard.lock:
                self._core.forget_barrier(barrier)
        barrier.result()

    def _require_loop(self) -> None:
        """Raises RuntimeError if the calling thread is the loop itself. One that it has just started may be."""
        for _ in range(OWN_LOOP_LOOKS):
            if self._loop_thread != threading.get_ident() or self._core.ended is not None:
                return
            time.sleep(OWN_LOOP_SECONDS / OWN_LOOP_LOOKS)
        raise RuntimeError(OWN_BARRIER.format("thread"))

    # For an index

    def has_event(self) -> bool:
        """Tells whether `next` has an event without waiting."""
        with self._link.guard.lock:
            return self._session.has_event()

    def settle(self, event: Rollback, point: int | None) -> None:
        """For who consumes for an index: it has gone back to ``point`` for ``event``, or cannot by itself (None)."""
        with self._link.guard.lock:
            self._session.settle(event, point)

    def for_group(self, step: Callable[[IndexMembership], _T]) -> _T:
        """Takes a step in the group of a shared index. The next read sends what is due then."""
        with self._link.guard.lock:
            return step(self._core.of_index())

    def ring_floor(self, partition: int) -> int:
        """Returns the seq above which every key that was delivered of ``partition`` is known."""
        return self._session.ring_floor(partition)

    def ring(self, partition: int) -> RingChange:
        """Returns the recent keys of ``partition``, for a stream that goes on from ``latest_positions``."""
        with self._link.guard.lock:
            return self._session.ring(partition)

    def ring_change(self, partition: int) -> RingChange | None:
        """How the ring of ``partition`` has changed with the last refetched event, once."""
        with self._link.guard.lock:
            return self._session.ring_change(partition)

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last answer for ``partition``; at first the stored one."""
        with self._link.guard.lock:
            return self._session.failover_log(partition)

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed``, in the thread that reads, when the log of a partition has changed without an event."""
        self._session.watch_history(changed)

    # The connection

    def _receive(self, deadline: float | None, done: Callable[[], bool]) -> None:
        """Moves bytes until ``done()``, or ``deadline``. Raises Unreachable after too long without a stream."""
        look = time.monotonic() + LOOK_SECONDS
        try:
            self._link.run_until(done, look if deadline is None else min(look, deadline))
        except Unreachable:
            if self._core.ended is not None:
                raise self._core.ended from None  # another thread has closed it
            raise
        now = time.monotonic()
        if self._session.answered:
            self._agreed_at = now
        elif now - self._agreed_at > self._core.retry_for_s:
            error = self._core.no_stream()
            self._core.end(error)
            self._link.close()
            raise error

    def _has_heard(self) -> bool:
        return self._session.has_frames or self._has_failed()

    def _has_heard_since(self, heard_at: float) -> bool:
        return self._link.heard_at != heard_at or self._has_failed()

    def _has_failed(self) -> bool:
        return self._session.failure is not None

    def _lost(self, error: TailraceError) -> None:
        """Drops the connection. Raises the error if it is final."""
        if self._session.is_final(error):
            self._link.close()
            self._core.lost(error)
        self._link.drop(error)
