"""A consumer without async: the events of a feed, for Spark tasks and scripts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import cast

from tailrace.blocking.link import BlockingLink
from tailrace.consuming.partition import PartitionStatus
from tailrace.consuming.session import ConsumerSession, Event
from tailrace.consuming.subscription import Subscription
from tailrace.errors import Forbidden, StreamEnded, TailraceError, Unreachable
from tailrace.link.finder import Finder
from tailrace.model import EndReason
from tailrace.model.arguments import seconds
from tailrace.model.position import Positions
from tailrace.wire.messages import Hello, HelloOk

# The seconds between two checks that a node still serves the streams, while no event arrives.
LOOK_SECONDS = 0.5


class Stream:
    """The events of a feed, in the order of each partition, with a connection of its own.

    It is a context manager, and an iterator inside. One thread at a time may read it, and any thread may
    close it. It sends and receives only inside
    its calls. If a consumer calls nothing for 30 s, the node drops its connection; the next call reconnects and
    resumes.
    """

    def __init__(
        self,
        finder: Finder,
        hello: Hello,
        subscription: Subscription,
        *,
        connect_timeout_s: float,
        retry_for_s: float,
    ) -> None:
        """Makes a stream that gives up after ``retry_for_s`` seconds without a stream of every partition."""
        self._session = ConsumerSession(
            hello, subscription, time.monotonic, check=finder.check, has_others=finder.has_others
        )
        self._linked = _LinkedSession(self._session)
        self._link = BlockingLink(self._linked, finder, connect_timeout_s)
        self._retry_for_s = retry_for_s
        self._agreed_at = time.monotonic()
        self._ended: TailraceError | None = None
        self._reader = 0  # the thread that reads

    def __enter__(self) -> Stream:
        """Connects, and asks for every partition. Raises UnknownFeed, BadPosition, DataGone, Unreachable, ..."""
        self._agreed_at = time.monotonic()
        try:
            while not self._session.answered:
                self._receive(None)
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
        if self._ended is None:
            self._ended = StreamEnded("the stream was closed", reason=EndReason.CLOSED)
        self._link.close()

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        """Returns the next event; the one before it counts as handled. Raises the error that has ended the stream."""
        while True:
            event = self.next_event(LOOK_SECONDS)
            if event is not None:
                return event
            if self._session.finished:
                raise StopIteration

    def next_event(self, timeout: float) -> Event | None:
        """Returns the next event if one comes in time. The event before it counts as handled.

        Calls with short time-outs reconnect and notice a silent node as one long call does, but only while they run.

        Args:
            timeout: The seconds to wait. 0: takes only an event that has arrived.

        Returns:
            The event; None after ``timeout`` seconds, and at the end, when `finished` is True.

        Raises:
            Unreachable: No node has served the stream for ``retry_for`` seconds.
            StreamEnded: The stream has ended for good.
            TailraceError: As in `tailrace.Feed.consume`.
        """
        now = time.monotonic()
        deadline = now + seconds("timeout", timeout)
        me = threading.get_ident()
        try:
            with self._link.guard.lock:
                if self._reader not in (0, me):
                    raise TailraceError(
                        "another thread reads this stream: its events have an order, so one thread at a time may read. "
                        "Let that one hand them on, or open another stream"
                    )
                self._reader = me
            return self._next_event(now, deadline)
        finally:
            if self._reader == me:
                self._reader = 0

    def _next_event(self, now: float, deadline: float) -> Event | None:
        paused_s = self._link.take_pause()  # a connection that broke in the pause is noticed now
        self._agreed_at = now if self._session.answered else self._agreed_at + paused_s
        is_over = False
        while True:
            if self._ended is not None:
                raise self._ended
            try:
                with self._link.guard.lock:
                    event = self._session.next_event()
            except TailraceError as error:
                self._lost(error)
                continue
            if event is not None or self._session.finished or is_over:
                return cast(Event | None, event)  # what else there is only a replica is given
            self._receive(deadline)
            is_over = time.monotonic() >= deadline

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
            return self._session.latest_positions

    def status(self) -> list[PartitionStatus]:
        """Returns the state of each partition's stream.

        Returns:
            The state with its reason, the next retry, and the lag, for each partition.
        """
        with self._link.guard.lock:
            return self._session.status()

    def _receive(self, deadline: float | None) -> None:
        """Moves bytes until some have arrived, or ``deadline``. Raises Unreachable after too long without a stream."""
        look = time.monotonic() + LOOK_SECONDS
        self._linked.has_received = False
        try:
            self._link.run_until(self._linked.is_done, look if deadline is None else min(look, deadline))
        except Unreachable:
            if self._ended is not None:
                raise self._ended from None  # another thread has closed it
            raise
        now = time.monotonic()
        if self._session.answered:
            self._agreed_at = now
        elif now - self._agreed_at > self._retry_for_s:
            why = self._linked.last_error or self._session.why_not_answered
            self._ended = Unreachable(f"no stream within {self._retry_for_s:g} s: {why}")
            self._link.close()
            raise self._ended

    def _lost(self, error: TailraceError) -> None:
        """Drops the connection. Raises the error if it is final."""
        final = self._session.failure or (error if isinstance(error, Forbidden) else None)
        if final is not None:
            self._ended = final
            self._link.close()
            raise final
        self._link.drop(error)


class _LinkedSession:
    """Adapts a ConsumerSession to a link."""

    def __init__(self, session: ConsumerSession) -> None:
        self._session = session
        self._earlier_peer: HelloOk | None = None
        self.has_received = False
        self.last_error: str | None = None

    def is_done(self) -> bool:
        return self.has_received or self._session.failure is not None

    @property
    def hello(self) -> Hello:
        return self._session.hello

    @property
    def peer(self) -> HelloOk | None:
        return self._session.peer

    @property
    def is_open(self) -> bool:
        """The node of this connection has greeted."""
        return self._session.peer is not self._earlier_peer

    @property
    def has_progressed(self) -> bool:
        return self._session.has_progressed

    def connection_made(self) -> None:
        self._earlier_peer = self._session.peer
        self._session.connection_made()

    def connection_lost(self, error: TailraceError) -> None:
        self._earlier_peer = self._session.peer
        self.last_error = str(error)
        self._session.connection_lost(str(error))

    def receive_data(self, data: bytes) -> None:
        self.has_received = True
        self._session.receive_data(data)

    def data_to_send(self) -> Sequence[bytes | memoryview]:
        return self._session.data_to_send()

    def noop(self) -> None:
        self._session.noop()

    def expire(self) -> None:
        """Nothing: a stream has no deadlines."""
