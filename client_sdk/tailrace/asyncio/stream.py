"""A consumer under asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tailrace.asyncio.lifetime import Lifetime
from tailrace.asyncio.link import connect_in_time
from tailrace.asyncio.transport import Connect, Transport, closing
from tailrace.asyncio.waiting import check_loop, running_loop, wait_within
from tailrace.asyncio.watch import keep_looking
from tailrace.consuming.events import ReplicaEvent, Rollback
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
from tailrace.errors import DataGone, TailraceError, Unreachable, WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.link.rules import Silence
from tailrace.model.arguments import count, seconds
from tailrace.model.documented import documented
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from tailrace.consuming.arrow_batches import AsyncBatches as Batches
    from tailrace.consuming.index_membership import IndexMembership
    from tailrace.consuming.stream_status import StreamStatus

_T = TypeVar("_T")


# A step with a time-out of 0 takes what has arrived: a pass of the loop hands it over.
_PASS_SECONDS = 0.0005


def _keep_for_later() -> None:
    """Does nothing: the iterator handles the frames."""


class Stream(OfOneProcess):
    """The events of a feed, in the order of each partition. Made by `Feed.consume`, with a connection of its own.

    It is an async context manager, and an async iterator inside. One task iterates; other tasks may call `barrier` and
    `status`. If the connection breaks, the iterator reconnects and resumes for as long as it takes. Other tasks get
    their turn when the iterator waits for bytes, about once for a megabyte of events.

    If a step is cancelled, no event is lost. A program may poll with short time-outs: a connection is made in the
    background, whether a step waits for it or not.
    """

    def __init__(self, core: StreamCore, connect: Connect) -> None:
        self._core = core
        self._session = core.session
        self._credit = core.session.credit
        self._connect = connect
        self._lifetime = Lifetime()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: Transport | None = None
        self._is_wanted = asyncio.Event()  # a connection
        self._has_tried = asyncio.Event()  # to connect, since a reader has begun to wait for it
        self._failure: Exception | None = None  # of the last try, for the next who reads
        self._loop_task: asyncio.Task[Any] | None = None  # that has asked for an event last
        self._one_reads, self._rounds = asyncio.Lock(), 0  # the task that reads has it; how often one has read
        self._heard = 0  # connections, and reads of earlier ones
        # One event at most that is in hand, and has not reached the program: an error of a handler may come before.
        self._handing: list[Event] = []
        self._polled: list[list[Event]] = []  # those of a ``poll`` that is about to return them
        self._is_within_step = False  # between two steps: a handler of a signal has raised an error within the last one
        self._wake = asyncio.Event()
        self._wakes_at = math.inf  # when `_keep` looks next, unless it is woken
        self._register()

    async def __aenter__(self) -> Stream:
        """Connects, and asks for every partition. Raises UnknownFeed, BadPosition, DataGone, Unreachable, ..."""
        self.check_process()
        self._loop = running_loop()
        await self._lifetime.__aenter__()
        try:
            for task in (self._keep_connected, self._keep, self._look):
                self._lifetime.start(task)
            try:
                async with asyncio.timeout(self._core.retry_for_s):
                    await self._begin()
            except TimeoutError:
                raise self._core.no_stream() from None
        except BaseException as error:
            await self._leave(error)
            raise
        self._wake.set()  # the node's interval is known now
        return self

    async def _begin(self) -> None:
        """Reads until every partition has its stream."""
        while not self._session.answered:
            await self._read_more(self._session.handle_all)
            self._send()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return False if self._forked_from else await self._leave(error)

    def _forked(self, error: WrongProcess) -> None:
        self._transport = None
        self._core.refuse(error)

    async def _leave(self, error: BaseException | None) -> bool:
        self._core.close()
        self._send()
        try:
            if self._core.is_leaving:
                await self._leave_group()
        finally:
            self._leave_node()
            self._has_tried.set()
            is_handled = await self._lifetime.end(error)
        return is_handled

    async def _leave_group(self) -> None:
        """Waits for the node's answer for a moment. Without it the lease ends later."""
        with contextlib.suppress(TimeoutError, TailraceError, OSError):
            async with asyncio.timeout(LEAVE_SECONDS), self._one_reads:
                while self._core.is_leaving and (transport := self._transport) is not None:
                    if not (data := await transport.receive()):
                        break
                    self._session.receive_data(data)

    # Events

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Event:
        """Returns the next event; the one before it counts as handled. Raises the error that ended the stream."""
        await self._take_in_hand()
        return self._handing.pop()

    async def _take_in_hand(self) -> None:
        """Waits until an event is in ``_handing``. Raises as ``__anext__``."""
        if self._forked_from:  # checked here too, since this is called for each event
            self.check_process()
        self._loop_task = asyncio.current_task()
        while not self._handing and (event := self._ready()) is None:
            self._send()
            await self._read_more()
        if not self._handing:
            given(event)  # which is no event

    def _ready(self) -> Event | ReplicaEvent | DataGone | None:
        """Returns the next event if it has arrived. Raises StopAsyncIteration after the last one."""
        self._check_steps()
        self._is_within_step = True
        try:
            event = self._session.next_event()
            is_given = not (event is None or isinstance(event, DataGone))
            self._handing += [cast(Event, event)] * is_given  # only a replica gets other events
        except TailraceError as error:
            self._is_within_step = False
            self._lost(error)
            return None
        self._is_within_step = False
        if event is None and self._core.has_finished():
            raise StopAsyncIteration
        if event is not None and self._credit.wants_to_send:
            self._send()
        return event

    async def next(self, timeout: float | None = None) -> Event | None:
        """Returns the next event if one comes in time. The event before it counts as handled.

        If it is cancelled, no event is lost: the next call returns it.

        Args:
            timeout: The seconds to wait. 0: takes only an event that has come. None: waits for as long as it takes.

        Returns:
            The event; None after ``timeout`` seconds, and at the end, when `finished` is True.

        Raises:
            ValueError: ``timeout`` is not valid.
            StreamEnded: The stream has ended for good.
            TailraceError: As in `Feed.consume`.
        """
        return self._handing.pop() if await self._comes(timeout) else None

    async def _comes(self, timeout: float | None) -> bool:
        """Waits until an event is in ``_handing``. Returns False if none comes in time."""
        wait_s = None if timeout is None else max(seconds("timeout", timeout), _PASS_SECONDS)
        scope = asyncio.timeout(wait_s)
        try:
            async with scope:
                await self._take_in_hand()
        except (TimeoutError, StopAsyncIteration) as error:
            if isinstance(error, TimeoutError) and not scope.expired():
                raise  # of a handler of a signal
            return False
        return True

    @documented(StreamCore.poll, "Cancelling it loses no event.")
    async def poll(self, *, max_rows: int = POLL_ROWS, timeout: float | None = None) -> list[Event]:
        rows_max = count("max_rows", max_rows, 1)
        if not await self._comes(timeout):
            return []
        self._is_within_step = True
        self._polled.append(self._core.poll(rows_max))
        self._handing.clear()
        self._is_within_step = False
        return self._polled.pop()

    @documented(BatchReader.batches)
    def batches(self) -> Batches:
        from tailrace.consuming.arrow_batches import AsyncBatches

        return AsyncBatches(self)

    @property
    def finished(self) -> bool:
        """True if every partition has reached its end and every event was delivered."""
        return self._session.finished

    def has_event(self) -> bool:
        """Tells whether the next step of the iterator has an event without waiting.

        Returns:
            True if an event has arrived already.
        """
        return self._session.has_event()

    @property
    def positions(self) -> Positions:
        """The positions that cover every event before the one in hand. Store them with the results of these events."""
        return self._session.positions

    @property
    def latest_positions(self) -> Positions:
        """The positions that also cover the event in hand. Store them with the results of that event."""
        return self._session.latest_positions

    def settle(self, event: Rollback, point: int | None) -> None:
        """For who consumes for an index: it has gone back to ``point`` for ``event``, or cannot by itself (None)."""
        self._session.settle(event, point)

    def for_group(self, step: Callable[[IndexMembership], _T]) -> _T:
        """Takes a step in the group of a shared index, and sends what is due then."""
        result = step(self._core.of_index())
        self._send()
        return result

    def ring_floor(self, partition: int) -> int:
        """Returns the seq above which every key that was delivered of ``partition`` is known."""
        return self._session.ring_floor(partition)

    def ring(self, partition: int) -> RingChange:
        """Returns the recent keys of ``partition``, for a stream that goes on from ``latest_positions``."""
        return self._session.ring(partition)

    def ring_change(self, partition: int) -> RingChange | None:
        """How the ring of ``partition`` has changed with the last refetched event, once."""
        return self._session.ring_change(partition)

    def failover_log(self, partition: int) -> FailoverLog:
        """Returns the log that the node gave with its last answer for ``partition``; at first the stored one."""
        return self._session.failover_log(partition)

    def watch_history(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that the log of a partition has changed without an event that tells of it."""
        self._session.watch_history(changed)

    @documented(StreamCore.status)
    def status(self) -> StreamStatus:
        return self._core.status()

    @documented(StreamCore.commit)
    async def commit(self) -> None:
        self.check_process()
        check_loop(self._loop, "stream")
        stored = asyncio.Event()
        commit = self._core.commit(stored.set)
        try:
            while not stored.is_set():
                self._send()
                await self._read_more()
        finally:
            self._core.forget_commit(commit)
        commit.result()

    async def barrier(self) -> None:
        """Waits until the loop has handled all that was acknowledged, at any level, before this call.

        Another task than that of the loop calls it. It returns when the loop asks for the event behind, also after
        reconnects. Cancelling it changes nothing of the stream.

        Raises:
            StreamEnded: The loop has ended.
            RuntimeError: The calling task is the one that has asked for an event last, and no other one goes on in a
                moment: it would wait for itself.
        """
        self.check_process()
        check_loop(self._loop, "stream")
        await self._require_loop()
        reached = asyncio.Event()
        barrier = self._core.barrier(reached.set)
        try:
            self._send()
            await reached.wait()
        finally:
            self._core.forget_barrier(barrier)
        barrier.result()

    async def _require_loop(self) -> None:
        """Raises RuntimeError if the caller is the loop itself, and stays the last one that has asked for events."""
        task, looks = asyncio.current_task(), 0
        while self._loop_task is task and self._core.ended is None:
            if looks == OWN_LOOP_LOOKS:
                raise RuntimeError(OWN_BARRIER.format("task"))
            looks += 1
            await asyncio.sleep(OWN_LOOP_SECONDS / OWN_LOOP_LOOKS)

    # The connection

    async def _read_more(self, handle: Callable[[], None] = _keep_for_later) -> None:
        """Reads once, from a new connection if there is none, and calls ``handle``. Raises final errors only.

        If another task reads meanwhile, that is enough: a commit and the loop may wait at the same time.
        """
        check_loop(self._loop, "stream")
        rounds = self._rounds
        async with self._one_reads:
            if self._rounds == rounds:
                await self._read(handle)

    async def _read(self, handle: Callable[[], None]) -> None:
        self._check_steps()
        try:
            transport = self._transport or await self._connected()
            data = await transport.receive()
            if not data:
                raise Unreachable("the node has closed the connection")
            self._is_within_step = True
            self._session.receive_data(data)
            handle()
            self._is_within_step = False
        except (TailraceError, OSError) as error:
            if self._is_within_step and isinstance(error, OSError):
                raise  # of a handler of a signal
            self._is_within_step = False
            self._lost(error)
            if isinstance(error, TimeoutError) and error.errno is None:
                raise  # of a handler, too: the system's have a number. Received bytes may be gone, so all come again
        finally:
            self._rounds += 1

    def _check_steps(self) -> None:
        """Raises TailraceError if an earlier step was interrupted."""
        if self._is_within_step or self._polled:
            raise TailraceError(
                "this stream was interrupted in the middle of a step: open another one at the last stored position"
            )

    def _lost(self, error: Exception) -> None:
        """Drops the connection: another one is made, unless the error is final, and is raised."""
        self._leave_node()
        if self._transport is not None:
            self._heard += self._transport.reads
            self._transport = None
        self._core.lost(error)

    async def _connected(self) -> Transport:
        """Waits until the background has connected. Raises how its try has failed, or what has ended the stream."""
        while self._transport is None:
            error, self._failure = self._failure, None
            if error is not None:
                raise error
            self._has_tried.clear()
            self._is_wanted.set()
            await self._has_tried.wait()
            if self._core.ended is not None:
                raise self._core.ended
        return self._transport

    async def _keep_connected(self) -> None:
        """Connects whenever a reader needs it. A reader that is cancelled in a moment would never come to an end."""
        while True:
            await self._is_wanted.wait()
            address, pause_s = self._core.link.finder.next_try()
            await asyncio.sleep(pause_s)
            try:
                transport = await connect_in_time(self._core.link, self._connect, address)
            except (TailraceError, OSError) as error:
                self._failure = error
                self._note_try()
                continue
            async with closing(transport):
                self._transport = transport
                self._heard += 1
                self._session.connection_made()
                self._send()
                self._note_try()
                await self._is_wanted.wait()

    def _note_try(self) -> None:
        """Lets readers go on. They ask again for another connection, also those that began to wait during the try."""
        self._is_wanted.clear()
        self._has_tried.set()

    def _send(self) -> None:
        buffers = self._session.data_to_send()
        if buffers and self._transport is not None:
            self._transport.send(*buffers)
        retry = self._session.next_retry
        if retry is not None and retry < self._wakes_at:
            self._wake.set()

    async def _keep(self) -> None:
        """Sends signs of life, notices a silent node, and repeats refused requests when their pause is over."""
        silence = Silence(time.monotonic())
        while True:
            pause_s, retry = self._core.link.noop_interval_s / 2, self._session.next_retry
            if retry is not None:
                pause_s = min(max(retry - time.monotonic(), 0.01), pause_s)
            self._wake.clear()
            self._wakes_at = time.monotonic() + pause_s
            is_woken = await wait_within(self._wake, pause_s)
            if retry is None and not is_woken:
                self._session.noop()
            self._send()
            transport = self._transport
            # The loop reads whether a task waits or not, until more has come than the tasks have taken.
            is_read = transport is None or not transport.is_paused
            heard = self._heard + (0 if transport is None else transport.reads)
            if self._core.link.is_dead(silence.seconds(heard, time.monotonic(), listened=is_read)):
                self._leave_node()

    async def _look(self) -> None:
        """Looks now and then whether another node leads, and goes there."""
        await keep_looking(self._core.link, self._connect, self._leave_node)

    def _leave_node(self) -> None:
        """Closes the connection; the task that reads makes another one."""
        if self._transport is not None:
            self._transport.close()
