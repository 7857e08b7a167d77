"""A consumer under trio: ``async with feed.consume(...) as stream: async for event in stream: ...``"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

import trio

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
from tailrace.trio.host import Host
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.link import connect_in_time
from tailrace.trio.transport import Transport
from tailrace.trio.watch import keep_looking

if TYPE_CHECKING:
    from tailrace.consuming.arrow_batches import AsyncBatches as Batches
    from tailrace.consuming.index_membership import IndexMembership
    from tailrace.consuming.stream_status import StreamStatus

_T = TypeVar("_T")

# The bytes that the iterator reads without a turn of the loop, before other tasks have it.
NOW_BYTES_MAX = 1024 * 1024

# A step with a time-out of 0 takes what has arrived: a pass of the loop looks at the socket.
_PASS_SECONDS = 0.0005


class Stream(OfOneProcess):
    """The events of a feed, in the order of each partition. Made by `Feed.consume`, with a connection of its own.

    It is an async context manager, and an async iterator inside. One task iterates; other tasks may call `barrier` and
    `status`. The iterator reads from the socket itself, and is a checkpoint about once for a megabyte of events. If the
    connection breaks, the iterator reconnects and resumes for as long as it takes.

    If a step is cancelled, no event is lost. A program may poll with short time-outs: a connection that a step began to
    make is finished in the background.
    """

    def __init__(self, core: StreamCore, host: Host) -> None:
        self._core = core
        self._session = core.session
        self._credit = core.session.credit
        self._host = host
        self._lifetime = Lifetime()
        self._transport: Transport | None = None
        self._trying: trio.Event | None = None  # while a task tries to connect
        self._try_error: Exception | None = None  # how its try has failed, for the next who reads
        self._loop_task: trio.lowlevel.Task | None = None  # that has asked for an event last
        self._reading: trio.Event | None = None  # set when the task that reads now has read
        self._reads = 0  # odd while a task reads
        self._now_bytes = 0  # that may be read before other tasks have the loop
        self._heard = 0  # reads that have brought something, and connections
        self._wake = trio.Event()
        self._wakes_at = math.inf  # when `_keep` looks next, unless it is woken
        self._register()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Stream:
        """Connects, and asks for every partition. Raises UnknownFeed, BadPosition, DataGone, Unreachable, ..."""
        self.check_process()
        await self._lifetime.__aenter__()
        self._lifetime.start(self._keep)
        self._lifetime.start(self._look)
        try:
            deadline = trio.current_time() + self._core.retry_for_s
            with trio.move_on_at(deadline):
                while not self._session.answered:
                    await self._read_more(deadline)
                    try:
                        self._session.handle_all()
                    except TailraceError as error:
                        self._lost(error, deadline)
                    self._send()
            if not self._session.answered:
                raise self._core.no_stream()
        except BaseException as error:
            await self._leave(type(error), error, error.__traceback__)
            raise
        self._wake.set()  # the node's interval is known now
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return False if self._forked_from else await self._leave(kind, error, traceback)

    def _forked(self, error: WrongProcess) -> None:
        self._transport = None
        self._core.refuse(error)

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._core.close()
        self._send()
        with trio.move_on_after(LEAVE_SECONDS, shield=True):
            await self._leave_group()
        if self._trying is not None:
            self._trying.set()
        self._drop_transport()
        try:
            return await self._lifetime.__aexit__(kind, error, traceback)
        finally:
            self._drop_transport()  # which a try may have made in its last step

    async def _leave_group(self) -> None:
        while self._core.is_leaving and self._transport is not None:
            if self._reading is not None:  # by a task that waits for a commit
                await self._reading.wait()
                continue
            try:
                data = await self._transport.receive()
                if not data:
                    return
                self._session.receive_data(data)
            except (TailraceError, OSError):
                return  # its lease ends later

    # Events

    def __aiter__(self) -> Stream:
        return self

    @trio.lowlevel.enable_ki_protection
    async def __anext__(self) -> Event:
        """Returns the next event; the one before it counts as handled. Raises the error that ended the stream."""
        return cast(Event, given(await self._next()))  # only a replica gets other events

    async def _next(self) -> Event | ReplicaEvent | DataGone:
        if self._forked_from:  # checked here too, since this is called for each event
            self.check_process()
        self._loop_task = trio.lowlevel.current_task()
        while True:
            try:
                event = self._session.next_event()
            except TailraceError as error:
                self._lost(error, None)
                continue
            if event is not None:
                if self._credit.wants_to_send:
                    self._send()
                return event
            if self._core.has_finished():
                raise StopAsyncIteration
            if not self._read_now():
                self._send()
                await self._read_more(None)

    @trio.lowlevel.enable_ki_protection
    async def next(self, timeout: float | None = None) -> Event | None:
        """Returns the next event if one comes in time. The event before it counts as handled.

        If it is cancelled, no event is lost: the next call returns it.

        Args:
            timeout: The seconds to wait. 0: takes only an event that has arrived. None: waits for as long as it takes.

        Returns:
            The event; None after ``timeout`` seconds, and at the end, when `finished` is True.

        Raises:
            ValueError: ``timeout`` is not valid.
            StreamEnded: The stream has ended for good.
            TailraceError: As in `Feed.consume`.
        """
        with trio.move_on_after(math.inf if timeout is None else max(seconds("timeout", timeout), _PASS_SECONDS)):
            try:
                return await self.__anext__()
            except StopAsyncIteration:
                return None
        return None

    @documented(StreamCore.poll, "Cancelling it loses no event.")
    @trio.lowlevel.enable_ki_protection
    async def poll(self, *, max_rows: int = POLL_ROWS, timeout: float | None = None) -> list[Event]:
        rows_max = count("max_rows", max_rows, 1)
        event = await self.next(timeout)
        return [] if event is None else self._core.poll(rows_max)

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
    @trio.lowlevel.enable_ki_protection
    async def commit(self) -> None:
        self.check_process()
        done = trio.Event()
        wait = self._core.commit(done.set)
        self._send()
        try:
            while not done.is_set():
                await self._read_more(None)
                self._send()
        finally:
            self._core.forget_commit(wait)
        wait.result()

    @trio.lowlevel.enable_ki_protection
    async def barrier(self) -> None:
        """Waits until the loop has handled every write that was acknowledged, at any level, before this call.

        Call it from another task than the loop. It returns when the loop asks for the event after. It survives
        reconnects. Cancelling it has no effect on the stream.

        Raises:
            StreamEnded: The loop has ended.
            RuntimeError: The calling task is the one that has asked for an event last, and no other one goes on in a
                moment: it would wait for itself.
        """
        self.check_process()
        await self._require_loop()
        done = trio.Event()
        barrier = self._core.barrier(done.set)
        self._send()
        try:
            await done.wait()
        finally:
            self._core.forget_barrier(barrier)
        barrier.result()

    async def _require_loop(self) -> None:
        """Raises RuntimeError if the calling task is the loop itself. One that it has just started may be the loop."""
        task = trio.lowlevel.current_task()
        for _ in range(OWN_LOOP_LOOKS):
            if self._loop_task is not task or self._core.ended is not None:
                return
            await trio.sleep(OWN_LOOP_SECONDS / OWN_LOOP_LOOKS)
        raise RuntimeError(OWN_BARRIER.format("task"))

    # The connection

    async def _read_more(self, deadline: float | None) -> None:
        """Reads once; connects first if there is no connection. Raises final errors only.

        If another task reads, it returns when that one has read: a commit and the loop may wait at the same time.
        """
        if self._reading is not None:
            await self._reading.wait()
            return
        self._reading = trio.Event()
        try:
            if self._transport is None:
                await self._reconnect()
            assert self._transport is not None
            self._reads += 1
            try:
                await self._receive(self._transport)
            finally:
                self._reads += 1
        except (TailraceError, OSError) as error:
            self._lost(error, deadline)
        finally:
            reading, self._reading = self._reading, None
            reading.set()

    async def _receive(self, transport: Transport) -> None:
        """Reads once, to where the bytes stay if there is a place for them, and hands them over."""
        place = self._session.place()
        into = None if place is None else getattr(transport, "receive_into", None)  # as in `receive_each`
        if place is None or into is None:
            data = await transport.receive()
            count = len(data)
        else:
            data, count = b"", await into(place.buffers)
        if not count:
            raise Unreachable("the node has closed the connection")
        self._heard += 1
        self._now_bytes = NOW_BYTES_MAX
        if data or place is None:
            self._session.receive_data(data)
        else:
            place.received(count)

    def _read_now(self) -> bool:
        """Reads what has arrived, while large frames come. Returns False if nothing has, and after NOW_BYTES_MAX."""
        place = self._session.place() if self._now_bytes > 0 and self._reading is None else None
        into = None if place is None else getattr(self._transport, "receive_into_now", None)
        count = 0 if place is None or into is None else into(place.buffers)
        if not count or place is None:
            return False
        self._now_bytes -= count
        self._heard += 1
        try:
            place.received(count)
        except TailraceError as error:
            self._lost(error, None)
        return True

    def _lost(self, error: Exception, deadline: float | None) -> None:
        """Drops the connection: another one is made, unless the error is final, and is raised."""
        self._drop_transport()
        self._core.lost(error)
        if deadline is not None and trio.current_time() >= deadline:
            raise self._core.no_stream() from None

    async def _reconnect(self) -> None:
        """Waits for the try to connect that is under way, or for a new one. Raises how it has failed.

        The try is made by a task of its own: a reader that is cancelled after a moment, again and again, would never
        come to the end of a pause or of a connection that takes longer.
        """
        if self._try_error is None:
            if self._trying is None:
                self._trying = trio.Event()
                self._lifetime.start(self._try_to_connect)
            await self._trying.wait()
            if self._core.ended is not None:
                raise self._core.ended
        error, self._try_error = self._try_error, None
        if error is not None:
            raise error

    async def _try_to_connect(self) -> None:
        address, pause_s = self._core.link.finder.next_try()
        try:
            await trio.sleep(pause_s)
            self._transport = await connect_in_time(self._core.link, self._host.connect, address)
            self._lifetime.start(self._transport.run)
            self._heard += 1
            self._session.connection_made()
            self._send()
        except (TailraceError, OSError) as error:
            self._try_error = error
        finally:
            trying, self._trying = self._trying, None
            if trying is not None:
                trying.set()

    def _drop_transport(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def _send(self) -> None:
        buffers = self._session.data_to_send()
        if buffers and self._transport is not None:
            self._transport.send(b"".join(buffers))
        retry = self._session.next_retry
        if retry is not None and retry < self._wakes_at:
            self._wake.set()

    async def _keep(self) -> None:
        """Sends signs of life, notices a silent node, and repeats refused requests when their pause is over."""
        silence, reads = Silence(trio.current_time()), 0
        while True:
            timeout, retry = self._core.link.noop_interval_s / 2, self._session.next_retry
            if retry is not None:
                timeout = min(max(retry - trio.current_time(), 0.01), timeout)
            self._wake, self._wakes_at = trio.Event(), trio.current_time() + timeout
            with trio.move_on_at(self._wakes_at) as scope:
                await self._wake.wait()
            if retry is None and scope.cancelled_caught:
                self._session.noop()
            self._send()
            # Nothing is heard while no task reads; many short reads hear as much as a long one.
            is_read, reads = self._reads % 2 == 1 or self._reads != reads, self._reads
            silent_s = silence.seconds(self._heard, trio.current_time(), listened=is_read)
            if self._core.link.is_dead(silent_s):
                self._leave_node()

    async def _look(self) -> None:
        """Looks now and then whether another node leads, and goes there."""
        await keep_looking(self._core.link, self._host.connect, self._leave_node)

    def _leave_node(self) -> None:
        """Closes the connection; the task that reads makes another one."""
        if self._transport is not None:
            self._transport.close()
