"""The requests of a session that are no writes: in order, until each has its final answer. Pure."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from operator import attrgetter

from tailrace.errors import Overloaded, Retryable, TailraceError
from tailrace.requests.look_up import LookUp
from tailrace.requests.parts import ArrivingParts, PartRequest
from tailrace.requests.request import Request, given_up
from tailrace.wire.frames import Frame
from tailrace.wire.messages import Row

log = logging.getLogger("tailrace.client")

_ORDER = attrgetter("order")


class RequestQueue:
    """Holds the requests, and decides which of them are due, sent again, or given up."""

    def __init__(self, clock: Callable[[], float], jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        # Invariant: ``requests`` are those without an answer, in order. ``unsent`` are those of them that were not sent
        # on this connection, or have to be sent again.
        self.requests: dict[Request, None] = {}
        self.unsent: dict[Request, None] = {}
        self._added = 0  # how many ever were
        self.parts = ArrivingParts(clock)

    @property
    def first(self) -> list[Request]:
        """The request that has waited longest; empty if none waits."""
        return list(itertools.islice(self.requests, 1))

    @property
    def deadlines(self) -> list[float]:
        """The deadlines of all requests."""
        return [request.deadline for request in self.requests]

    def add(self, request: Request) -> None:
        """Adds a request, or one that asks for more, behind all others."""
        self._added += 1
        request.order = self._added
        self.requests[request] = None
        self.unsent[request] = None

    def take_due(self, now: float) -> list[Request]:
        """Returns the unsent requests that may be sent at ``now``, in order. They count as sent."""
        if len(self.unsent) == 1:  # the most frequent case, in fewer steps
            (request,) = self.unsent
            if now < (request.hold_until if request.sequence is None else request.sequence.hold_until):
                return []
            self.unsent.clear()
            request.sent = True
            return [request]
        due = [r for r in self.unsent if now >= (r.hold_until if r.sequence is None else r.sequence.hold_until)]
        if len(due) > 1:  # a refused request is behind later ones
            due.sort(key=_ORDER)
        for request in due:
            del self.unsent[request]
            request.sent = True
        return due

    def count_as_sent(self, request: Request) -> None:
        """Notes that a request was sent on this connection before it was added."""
        if self.unsent.pop(request, 0) is None:
            request.sent = True

    def link_lost(self) -> None:
        """Has all requests sent again on the next connection."""
        for request in self.requests:
            request.in_doubt |= request.sent
            request.sent = False
        self.unsent = dict(self.requests)

    def answered(self, request: Request, frame: Frame) -> None:
        """Completes a request with its answer, if it waits for one. Raises ProtocolError if ``frame`` is none."""
        if request not in self.requests:
            return  # it was given up meanwhile
        result = request.decode(frame)
        if request.sequence is not None:
            request.sequence.tries = 0
        del self.requests[request]
        request.done(result, None)

    def found_alone(self, request: LookUp, row: Row) -> None:
        """Completes a look-up of one key with its row, if it waits for one."""
        if self.requests.pop(request, 0) is None:  # else it was given up meanwhile
            request.found_alone(row)

    def refused(self, request: Request, error: TailraceError, now: float, hold_until: float) -> None:
        """Has a request sent again at ``hold_until`` if another try may help; otherwise ``error`` is its answer."""
        if request not in self.requests:
            return  # it was given up meanwhile
        if isinstance(error, Retryable) and now < request.deadline:
            # A publish is done in steps; a leader that stepped down may have done some of them.
            request.in_doubt |= not isinstance(error, Overloaded)
            request.sent, request.hold_until = False, hold_until
            if request.sequence is not None:
                request.sequence.refused(now, self._jitter)
            self.unsent[request] = None
        else:
            self.fail(request, error)

    def fail(self, request: Request, error: TailraceError) -> None:
        """Completes a request that was sent, or cannot be, with ``error``."""
        del self.requests[request]
        request.done(None, error)

    def withdraw(self, request: Request) -> None:
        """Drops a request, whose ``done`` is not called any more. No-op if it has its answer."""
        self.requests.pop(request, None)
        self.unsent.pop(request, None)

    def expire(self, now: float, last_error: TailraceError | None) -> None:
        """Gives up the requests whose deadline has passed. ``last_error`` is that of the connection, or None."""
        for request in [r for r in self.requests if now >= r.deadline]:
            if isinstance(request, PartRequest) and self.parts.are_waited_for(request, now):
                continue
            self.unsent.pop(request, None)
            self.fail(request, given_up(last_error, request.sent, request.in_doubt, is_read=request.is_read))

    def fail_all(self, error: TailraceError) -> None:
        """Completes all requests with ``error``."""
        for request in list(self.requests):
            request.done(None, error)
        self.requests.clear()
        self.unsent.clear()

    def postpone(self, seconds: float) -> None:
        """Moves all deadlines by ``seconds``, during which the program has moved no bytes."""
        self.parts.postpone(seconds)
        for request in self.requests:
            request.deadline += seconds
