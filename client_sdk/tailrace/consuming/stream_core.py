"""The part of a consumer that all shells share: how it begins, what a lost connection means, and how it ends. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.consuming.session import ConsumerSession
from tailrace.consuming.subscription import Subscription
from tailrace.errors import DataGone, StreamEnded, TailraceError, Unreachable
from tailrace.link.connection import LinkCore
from tailrace.link.finder import Finder
from tailrace.link.forks import Unpicklable
from tailrace.model import EndReason
from tailrace.requests.client_core import ClientCore
from tailrace.wire.messages import Hello

if TYPE_CHECKING:
    from tailrace.consuming.commit_wait import CommitWait
    from tailrace.consuming.events import Event, ReplicaEvent
    from tailrace.consuming.index_membership import IndexMembership
    from tailrace.consuming.named_session import NamedSession
    from tailrace.consuming.stream_status import StreamStatus


# The rows that a poll returns at most, unless a program asks for another number.
POLL_ROWS = 10_000
# A barrier may be called by the task that has asked for events so far, if another one goes on within this time. It is
# looked at so often.
OWN_LOOP_SECONDS, OWN_LOOP_LOOKS = 0.1, 10
OWN_BARRIER = (
    "barrier() waits until the loop has handled all that was acknowledged, and the loop is in this very {0}: call it "
    "from another {0}, or use consume(..., caught_up=True), whose event says so"
)


def given(event: Event | ReplicaEvent | DataGone | None) -> Event | ReplicaEvent | None:
    """Returns an event as it is. Raises DataGone, which stands among the events, and ends its partition alone."""
    if isinstance(event, DataGone):
        raise event
    return event


# The seconds that a program which leaves a group waits for the answer of the node.
LEAVE_SECONDS = 1.0


class StreamCore(Unpicklable):
    """A consumer without I/O. The shell moves the bytes of ``session``, and gives each error to ``lost``.

    ``ended`` is the error that has ended the stream; None while it goes on. Only this file sets it.
    """

    def __init__(
        self,
        finder: Finder,
        hello: Hello,
        subscription: Subscription,
        clock: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        *,
        connect_timeout_s: float,
        retry_for_s: float,
    ) -> None:
        """Makes a stream that begins within ``retry_for_s`` seconds."""
        self._named: NamedSession | None = None  # the session of a consumer with a name
        if subscription.claim is None:
            kind = ConsumerSession
            if subscription.codec is not None:
                from tailrace.consuming.typed_session import TypedSession  # few feeds have serializers

                kind = TypedSession
            self.session = kind(hello, subscription, clock, jitter, finder.check, has_others=finder.has_others)
        else:
            from tailrace.consuming.named_session import NamedSession  # few programs have a name

            others = finder.has_others
            named = NamedSession
            if subscription.codec is not None:
                from tailrace.consuming.typed_session import TypedNamedSession

                named = TypedNamedSession
            self._named = named(hello, subscription, clock, jitter, finder.check, has_others=others)
            self.session = self._named
        self.link = LinkCore(self.session, finder, connect_timeout_s)
        self.retry_for_s = retry_for_s
        self.ended: TailraceError | None = None
        self._clock = clock
        self._is_closed = False  # the program has left it
        self._ended_at: float | None = None  # None also after `refuse`
        self._cookies = itertools.count(1)
        self._barriers: dict[BarrierWait, None] = {}  # that a task waits for

    @classmethod
    def of_client(cls, client: ClientCore, subscription: Subscription, window_bytes: int) -> StreamCore:
        """Makes a stream with a connection of its own. Raises ValueError for a ``window_bytes`` below 1."""
        finder = client.finder.another()
        return cls(
            finder,
            client.stream_hello(window_bytes),
            subscription._replace(state=finder.state),
            client.clock,
            client.source.random,
            connect_timeout_s=client.connect_timeout_s,
            retry_for_s=client.retry_for_s,
        )

    # Its end

    def end(self, error: TailraceError) -> None:
        """Ends the stream, and the waits for its barriers; the first error counts."""
        if self.ended is None:
            self.ended, self._ended_at = error, self._clock()
        for barrier in list(self._barriers):  # a thread that wakes drops its own
            barrier.wake()
        if self._named is not None and not self._takes_commits:
            self._named.end_commits(StreamEnded(f"the positions may not be stored: {error}", reason=_reason(error)))

    def close(self) -> None:
        """Ends the stream because the program has left it. The shell sends what is due before it closes."""
        self.session.leave()
        self._is_closed = True
        self.end(StreamEnded("the stream was closed", reason=EndReason.CLOSED))

    @property
    def is_leaving(self) -> bool:
        """True if the node has not answered yet that a member leaves its group.

        The shell waits for that, for LEAVE_SECONDS at most. A connection that is closed with events that were not read
        is reset, and the node would lose the message: the next owner would wait until the lease ends.
        """
        return self._named is not None and self._named.is_leaving

    def refuse(self, error: TailraceError) -> None:
        """Ends the stream with ``error``, and wakes no task: they are of another process.

        The clock may not be readable: a forked process has no trio run yet.
        """
        self.ended = error

    def has_finished(self) -> bool:
        """Tells whether every partition has reached its end and every event was delivered. This ends the stream, too.

        Raises:
            TailraceError: The error that has ended the stream.
        """
        if self.session.finished:
            self.end(StreamEnded("every partition has reached its end", reason=EndReason.END_REACHED))
            return True
        if self.ended is not None:
            raise self.ended
        return False

    def lost(self, error: Exception) -> None:
        """Handles an error of the connection or of its bytes: it ends the connection, or the whole stream.

        Raises:
            TailraceError: The stream has ended for good.
        """
        if isinstance(error, TailraceError) and self.session.is_final(error):
            final = self.session.failure or error
            self.end(final)
            raise final from None
        self.link.lost(error)  # which is not final, or the lines above have seen to it

    def no_stream(self) -> Unreachable:
        """Returns the error for a stream that has not begun, or not begun again, in time."""
        why = self.session.last_error or self.session.why_not_answered
        return Unreachable(f"no stream within {self.retry_for_s:g} s: {why}")

    def status(self) -> StreamStatus:
        """Tells what the stream waits for, which nodes it asks, and how far each partition is.

        Returns:
            The state at this moment.
        """
        from tailrace.consuming.stream_status import stream_status  # most programs never ask

        session = self.session.status()
        ended_at = session.since if self._ended_at is None else self._ended_at
        end = None if self.ended is None else (self.ended, ended_at)
        finder = self.link.finder
        others = tuple(str(address) for address in finder.addresses if address != finder.address)
        return stream_status(session, str(finder.address), others, end)

    # Events

    def poll(self, max_rows: int) -> list[Event]:
        """Waits for an event, and returns it with those behind it that have arrived. All are in hand together.

        The events of the call before count as handled. ``positions`` are those before the events in hand, and
        ``latest_positions`` those behind all of them. A `Rollback` or `Revoked` is always the last event.

        Args:
            max_rows: The most rows of all events together, at least 1. A longer block of rows is cut in two, and its
                rest comes with the next call. Only the rows that are read again after a rollback are never cut.
            timeout: The seconds to wait for the first event, as in ``next``.

        Returns:
            The events in their order; none after ``timeout`` seconds, and at the end, when ``finished`` is True.

        Raises:
            ValueError: An argument is not valid.
            StreamEnded: The stream has ended for good.
            TailraceError: As in `Feed.consume`.
        """
        return self.session.take_together(max_rows)

    # Commits

    def commit(self, wake: Callable[[], None]) -> CommitWait:
        """Stores the positions behind the event in hand, which counts as handled, under the name of the consumer.

        Call it in the loop, when the event is done, or from elsewhere. What several calls are to store goes together.
        It survives reconnects. If it is cancelled, the positions may be stored all the same.

        Raises:
            NotOwner: Another program was started under the name, which reads on from the last commit.
            TailraceError: The stream has no name.
            StreamEnded: The stream has ended.
        """
        if self.ended is not None and not self._takes_commits:
            raise StreamEnded(f"no position can be stored: {self.ended}", reason=_reason(self.ended))
        if self._named is None:
            raise TailraceError("this stream has no name to store positions under: use consume(name=...)")
        return self._named.commit(wake)

    def of_index(self) -> IndexMembership:
        """Returns the membership of a follower's group."""
        assert self._named is not None, "only a follower with a group asks for it"
        return self._named.of_index

    @property
    def _takes_commits(self) -> bool:
        """Whether commits go on although the stream has ended: the loop is over, and its context is not."""
        return self.session.finished and not self._is_closed

    def forget_commit(self, wait: CommitWait) -> None:
        """Drops a commit for which no task waits any more."""
        if self._named is not None:
            self._named.forget_commit(wait)

    # Barriers

    def barrier(self, wake: Callable[[], None]) -> BarrierWait:
        """Begins a barrier. ``wake`` is called once it has come back, and when the stream ends.

        Raises:
            StreamEnded: The stream has ended.
        """
        if self.ended is not None:
            raise StreamEnded(f"no barrier can come back: {self.ended}", reason=_reason(self.ended))
        barrier = BarrierWait(self, next(self._cookies).to_bytes(8, "little"), wake)
        self._barriers[barrier] = None
        self.session.barrier(barrier.cookie, barrier.reached)
        return barrier

    def forget_barrier(self, barrier: BarrierWait) -> None:
        """Drops a barrier for which no task waits any more."""
        del self._barriers[barrier]
        self.session.forget_barrier(barrier.cookie)


class BatchReader(Protocol):
    """The call of the streams of all shells that gives Arrow record batches."""

    def batches(self) -> Any:
        """Iterates over the mutations as Arrow record batches. No object is made for a row.

        There is a batch for each `Mutations` event, with the columns of its ``to_arrow``, and none for other events.
        ``positions`` and ``latest_positions`` count a batch as its event. The iterator and the stream have the same
        events, so use one of them at a time.

        After a rollback the present rows of its keys come as batches, as ``on_rollback`` "follow" says. A consumer that
        sets the row of each key has nothing to do. One that appends rows should use "stop".

        Returns:
            An iterator of ``pyarrow.RecordBatch``. It raises `StreamEnded` for a rollback after which a whole partition
            comes again: with "restart", or if the ring does not reach back.

        Raises:
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
        """
        ...


class BarrierWait:
    """One task's wait for a barrier."""

    def __init__(self, core: StreamCore, cookie: bytes, wake: Callable[[], None]) -> None:
        self.cookie = cookie
        self.wake = wake
        self._core = core
        self._has_come_back = False

    def reached(self) -> None:
        """Handles the barrier's return."""
        self._has_come_back = True
        self.wake()

    def result(self) -> None:
        """Returns once the barrier has come back. Raises StreamEnded if the stream has ended instead."""
        error = self._core.ended
        if not self._has_come_back:
            assert error is not None, "a wait ends with the barrier or with the stream"
            raise StreamEnded(f"the barrier did not come back: {error}", reason=_reason(error))


def _reason(error: TailraceError) -> EndReason:
    return error.reason if isinstance(error, StreamEnded) else EndReason.ERROR
