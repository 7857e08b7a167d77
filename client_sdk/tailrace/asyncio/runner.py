"""Carries out plans under asyncio: queues their requests on one connection, and waits for the answers."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.asyncio.lifetime import Lifetime
from tailrace.asyncio.link import RequestLink
from tailrace.asyncio.stream import Stream
from tailrace.asyncio.transport import Connect
from tailrace.asyncio.waiting import check_loop, running_loop, wait_within
from tailrace.consuming.stream_core import StreamCore
from tailrace.consuming.subscription import Subscription
from tailrace.errors import TailraceError, Unreachable, WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.requests.client_core import ClientCore
from tailrace.requests.lane import Lane
from tailrace.requests.plan import WITHOUT_REQUEST, AskLeader, Continue, Pause, Plan, RequestStep
from tailrace.requests.request import Answered, Reply

if TYPE_CHECKING:
    from tailrace.requests.outbox import Outbox

_T = TypeVar("_T")


class _WaitedReply(Reply[_T]):
    """A reply that one task waits for."""

    __slots__ = ("_waiter",)

    def __init__(self) -> None:
        super().__init__()
        self._waiter: asyncio.Future[None] | None = None

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        super().done(result, error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for the answer."""
        if not self.finished:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class RequestRunner(OfOneProcess):
    """Keeps one connection open, as an async context manager, and carries out plans on it in its event loop.

    Each request has ``retry_for`` seconds from its queueing. A cancelled ``run`` withdraws its requests: those that
    were not sent never are, and the others are not sent again.
    """

    def __init__(self, core: ClientCore, connect: Connect) -> None:
        self.core = core
        self.connect = connect
        self._session = core.session
        self._link = RequestLink(core.session, core.link, connect)
        self._lifetime = Lifetime()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the tasks, once it was entered
        self._register()

    async def __aenter__(self) -> RequestRunner:
        self.check_process()
        self._loop = running_loop()
        await self._lifetime.__aenter__()
        try:
            for task in (self._link.run, self._link.tick, self._link.keep, self._link.look):
                self._lifetime.start(task)
            if not await wait_within(self._link.opened, self.core.connect_timeout_s):
                raise self.core.unreachable()
        except BaseException as error:
            await self._lifetime.end(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        try:
            return await self._lifetime.end(error)
        finally:
            self._session.fail_all(Unreachable("the client was closed", outcome="unknown"))

    def _forked(self, error: WrongProcess) -> None:
        self._session.refuse(error)
        self._link.abandon()

    async def run(self, plan: Plan[_T]) -> _T:
        """Carries out a plan and returns its result."""
        if self._forked_from:
            self.check_process()
        check_loop(self._loop, "client")
        began_at = time.monotonic()
        now: float | None = began_at  # as long as nothing was waited for
        try:
            step = next(plan)
            while True:
                try:
                    if isinstance(step, WITHOUT_REQUEST):
                        answer = await self._take(step, began_at + self.core.retry_for_s)
                    else:
                        answer = await self.ask(step, now)
                except TailraceError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
                now = None
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _take(self, step: Pause | AskLeader | Continue, deadline: float) -> Any:
        """Carries out a step that is no request and returns its result."""
        left_s = max(deadline - time.monotonic(), 0.0)
        if isinstance(step, AskLeader):
            return await self._ask_leader(step, left_s)
        if isinstance(step, Pause):
            step.require(left_s)
            await asyncio.sleep(step.seconds)
        return None  # after Continue each request has a time of its own

    async def _ask_leader(self, step: AskLeader, left_s: float) -> Any:
        core = self.core.of_leader(min(self.core.connect_timeout_s, left_s))
        try:
            async with asyncio.timeout(left_s), RequestRunner(core, self.connect) as leader:
                return await leader.run(step.plan(core.session))
        except TimeoutError:
            raise core.unreachable() from None

    async def ask(self, step: RequestStep, now: float | None = None) -> Any:
        """Queues a step's requests, sends them, and returns the answer. ``now`` is the time, if the caller has it."""
        reply: _WaitedReply[Any] = _WaitedReply()
        now = time.monotonic() if now is None else now
        link = self._link
        link.begin()
        requests = step.queue(self._session, reply.done, now + self.core.retry_for_s)
        link.kick(now)
        link.end()
        try:
            await link.wait(reply)
        except BaseException:
            self._session.withdraw_all(requests)
            raise
        return reply.get()

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer with a connection of its own. Raises ValueError for a ``window_bytes`` below 1."""
        self.check_process()
        return Stream(StreamCore.of_client(self.core, subscription, window_bytes), self.connect)

    # For writers and stages

    def serve(self, outbox: Outbox) -> None:
        """Has ``outbox`` fail after an interrupted step, which may have lost its requests."""
        self._link.serve(outbox)

    def check_steps(self) -> None:
        """Raises TailraceError if a step was interrupted."""
        self._link.check()

    def queue(self, step: RequestStep, done: Answered) -> None:
        """Queues a request. ``kick`` sends it, and ``done`` is called with the answer."""
        self._link.begin()
        step.queue(self._session, done, time.monotonic() + self.core.retry_for_s)
        self._link.end()

    def kick(self) -> None:
        """Sends the queued requests. Never waits."""
        self._link.begin()
        self._link.kick()
        self._link.end()

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        self._session.withdraw_lane(lane)
