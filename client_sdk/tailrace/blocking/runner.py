"""Carries out plans without async: queues their requests on one connection, and waits for the answers."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.blocking.guard import Guard
from tailrace.blocking.link import IDLE_SECONDS, BlockingLink
from tailrace.blocking.stream import Stream
from tailrace.consuming.stream_core import StreamCore
from tailrace.consuming.subscription import Subscription
from tailrace.errors import TailraceError, UnknownFeed, Unreachable, WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Item, Version, VersionRange
from tailrace.model.arguments import seconds
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.lane import Lane, WriteRequest
from tailrace.requests.lone_calls import Begun, LoneLookUp, LoneWrite, version_of
from tailrace.requests.plan import WITHOUT_REQUEST, AskLeader, Continue, Pause, Plan, RequestStep
from tailrace.requests.request import Answered, Reply, Request
from tailrace.requests.senders import Waits

_T = TypeVar("_T")
_P = ParamSpec("_P")


class Work(Protocol):
    """Work that comes with the answers to a request."""

    @property
    def waits(self) -> bool:
        """There is something to do. Any thread may look."""
        ...

    def do(self) -> None:
        """Does all of it."""
        ...


class BlockingRunner(OfOneProcess):
    """A context manager that keeps one connection open and carries out plans on it. Threads may share it.

    In a forked process it begins anew, with a connection of its own. A call that was under way at the fork, and the
    writers and stages of the parent, still have the parent's link, and are refused.

    All requests of a plan are given up at one deadline. If an exception such as KeyboardInterrupt ends ``run``, a
    request that was not sent is never sent, and one that was sent is not sent again.
    """

    def __init__(self, core: ClientCore, tls: ssl.SSLContext | None = None) -> None:
        self.core = core
        self._tls = tls
        self._session = core.session
        self._link = BlockingLink(core.session, core.link, tls)
        self._is_closed = False
        self._register()

    def _forked(self, error: WrongProcess) -> None:
        self._link.abandon()
        self.core.begin_anew()
        self._session = self.core.session
        self._link = BlockingLink(self.core.session, self.core.link, self._tls)
        self._forked_from = 0

    def __enter__(self) -> BlockingRunner:
        deadline = time.monotonic() + self.core.connect_timeout_s
        try:
            if not self.run_until(lambda: self._session.is_open, deadline):
                raise self.core.unreachable()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection, and fails all requests without an answer. Any thread may call it."""
        self._link.check_caller()
        self._is_closed = True
        with self.guard.lock:
            self._link.close()
            if not self.guard.is_broken:
                self._session.fail_all(Unreachable("the client was closed", outcome="unknown"))

    @property
    def guard(self) -> Guard:
        """The guard whose lock is held around every use of what threads share."""
        return self._link.guard

    def deadline(self, timeout: float | None) -> float:
        """Returns the time at which a request of now is given up: ``timeout`` or ``retry_for`` seconds from now.

        The time is in monotonic seconds. Raises ValueError or TypeError if ``timeout`` is not a number of seconds.
        """
        return time.monotonic() + (self.core.retry_for_s if timeout is None else seconds("timeout", timeout))

    def get(
        self, feed: FeedCore, key: bytes, level: str, at_least: Version | None, timeout: float | None
    ) -> Item | None:
        """Carries out `FeedCore.get`, by the short way if it can be taken (`tailrace.requests.lone_calls`)."""
        known = feed.resolved
        if known is None or feed.codec is not None or at_least is not None or timeout is not None:
            return self.run(feed.get(key, level, at_least), timeout)
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX or self._is_closed or self._forked_from:
            return self.run(feed.get(key, level, at_least), timeout)
        wanted, begun = self._session.levels.level(level), Begun()
        lone = LoneLookUp(self._session.lone, (known.feed_id, wanted, key), begun, Reply, self.core.retry_for_s)
        try:
            self._link.call_alone(lone)
            found = lone.found
            return self.run(feed.get(key, level, None), None, begun) if found is None else found[0]
        finally:
            if begun.request is not None:
                self._withdraw([begun.request])

    def write_row(
        self, feed: FeedCore, key: bytes, value: bytes | None, level: str | None, timeout: float | None
    ) -> Version | None:
        """Writes a row by the short way (`tailrace.requests.lone_calls`); None: the general way has to do it.

        ``value`` None deletes. Raises as `FeedCore.put`.
        """
        known = feed.resolved
        if known is None or feed.codec is not None or timeout is not None or self._is_closed or self._forked_from:
            return None
        link, reply = self._link, Reply[VersionRange]()
        write = LoneWrite(
            self._session.lone_writes, (known, self.core.lanes, key, value, level, reply.done), self.core.retry_for_s
        )
        try:
            link.call_alone(write)
            if write.row is None:
                return None
            if not reply.finished:
                link.run_until(lambda: reply.finished, None)
            return version_of(reply.get())
        except BaseException as error:
            if write.row is not None and link is self._link:
                self._withdraw([write.row])
            if isinstance(error, UnknownFeed):
                feed.forget()
            raise

    def run(self, plan: Plan[_T], timeout: float | None = None, begun: Begun | None = None) -> _T:
        """Carries out a plan within ``timeout`` or ``retry_for`` seconds, and returns its result.

        ``begun`` may have the request of its first step.
        """
        self._link.check_caller()
        deadline = self.deadline(timeout)
        try:
            step = next(plan)
            while True:
                if isinstance(step, Continue):
                    deadline = self.deadline(timeout)
                try:
                    if isinstance(step, WITHOUT_REQUEST):
                        answer = self._take(step, deadline)
                    else:
                        answer = self.ask(step, deadline, begun=begun)
                except TailraceError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
                begun = None
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            plan.close()  # as in `pass_all`

    def _take(self, step: Pause | Continue | AskLeader, deadline: float) -> Any:
        """Carries out a step that is no request and returns its result."""
        if isinstance(step, Pause):
            step.require(deadline - time.monotonic())
            return time.sleep(step.seconds)
        if isinstance(step, AskLeader):
            left_s = max(deadline - time.monotonic(), 0.0)
            with BlockingRunner(self.core.of_leader(min(self.core.connect_timeout_s, left_s)), self._tls) as leader:
                return leader.run(step.plan(leader.core.session), max(deadline - time.monotonic(), 0.0))
        return None

    def ask(self, step: RequestStep, deadline: float, work: Work | None = None, begun: Begun | None = None) -> Any:
        """Queues a step's requests, sends them, and returns the answer. Does ``work`` meanwhile, when there is some.

        ``deadline`` is in monotonic seconds; the time that the work takes does not count. If ``begun`` has the request
        of the step, its answer is waited for.
        """
        self._check_open()
        link = self._link  # a process that is forked by ``work`` has another one, without the request
        reply: Reply[Any] = Reply()
        requests: list[Request | WriteRequest] = []
        guard = link.guard
        try:
            taken = None if begun is None else begun.reply_to(step)
            if taken is not None:
                requests.append(taken[0])
                reply = taken[1]
            else:
                with guard.lock:
                    guard.check_and_begin()
                    # An interrupt can come right after the change, so the requests are in the list before it ends.
                    requests.extend(step.queue(self._session, reply.done, deadline))
                    guard.end()
            while work is not None and not reply.finished:
                link.run_until(lambda: reply.finished or work.waits, None)
                work.do()
                self._check_open()
            link.run_until(lambda: reply.finished, None)
        except BaseException:
            if link is self._link:
                self._withdraw(requests)
            raise
        return reply.get()

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer with a connection of its own. Raises ValueError for a ``window_bytes`` below 1."""
        return Stream(StreamCore.of_client(self.core, subscription, window_bytes), self._tls)

    # For writers and stages

    def run_until(self, done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Moves bytes until ``done()``. Returns False if ``deadline`` (monotonic seconds) came first."""
        self._check_open()
        return self._link.run_until(done, deadline)

    def pass_all(self, waits: Waits[_T], deadline: float | None = None) -> _T | None:
        """Waits for one condition after the other, and returns the result; None if ``deadline`` came first."""
        self._link.check_caller()
        try:
            while True:
                with self.guard.lock:
                    condition = next(waits)
                if not self.run_until(condition, deadline):
                    return None
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            waits.close()  # left to the collector, it could meet an interrupt there, which Python would ignore

    def queue(self, step: RequestStep, done: Answered, deadline: float) -> None:
        """Queues a request; ``kick`` sends it, and ``done`` is called with the answer."""
        self._check_open()
        self._change(step.queue, self._session, done, deadline)

    def kick(self) -> None:
        """Sends the queued requests as far as that needs no waiting."""
        self._link.push()

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        with self.guard.lock:
            if not self.guard.is_broken:
                self._change(self._session.withdraw_lane, lane)

    def _withdraw(self, requests: Sequence[Request | WriteRequest]) -> None:
        with self.guard.lock:
            if not self.guard.is_broken:
                for request in requests:
                    self._change(self._session.withdraw, request)

    def _change(self, change: Callable[_P, _T], *arguments: _P.args, **options: _P.kwargs) -> _T:
        """Calls a method of the session. If it is interrupted, every later call raises TailraceError."""
        guard = self.guard
        with guard.lock:
            guard.check_and_begin()
            result = change(*arguments, **options)
            guard.end()
        return result

    def _check_open(self) -> None:
        if self._forked_from:
            self.check_process()
        if self._is_closed:
            raise Unreachable("the client was closed: connect again")
        # A program may pause between two calls for as long as it likes, as a task of Spark does. Meanwhile nothing is
        # sent and no answer is taken.
        if time.monotonic() - self._link.stepped_at >= IDLE_SECONDS and (paused_s := self._link.take_pause()):
            self._change(self._session.postpone, paused_s)
