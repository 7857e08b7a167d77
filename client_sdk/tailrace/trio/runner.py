"""Carries out plans under trio: queues their requests on one connection, and waits for the answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import trio

from tailrace.block.header import KEY_BYTES_MAX
from tailrace.consuming.stream_core import StreamCore
from tailrace.consuming.subscription import Subscription
from tailrace.errors import TailraceError, UnknownFeed, Unreachable, WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Item, Level, Version, VersionRange
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.lane import Lane, WriteRequest
from tailrace.requests.lone_calls import Begun, LoneLookUp, LoneWrite, version_of
from tailrace.requests.plan import WITHOUT_REQUEST, AskLeader, Continue, Pause, Plan, RequestStep
from tailrace.requests.request import Answered, Reply, Request
from tailrace.trio.host import Host
from tailrace.trio.lending import LendingTransport
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.link import RequestLink
from tailrace.trio.stream import Stream

_T = TypeVar("_T")


class _WaitedReply(Reply[_T]):
    """A reply that one task waits for. It needs less than a trio.Event, and wakes the task in less time."""

    __slots__ = ("_lender", "_task")

    def __init__(self) -> None:
        # The fields of ``Reply``, without another call for each request.
        self.finished, self.result, self.error = False, None, None
        self._task: trio.lowlevel.Task | None = None
        self._lender: LendingTransport | None = None  # while the task waits at its socket

    def done(self, result: _T | None, error: TailraceError | None) -> None:
        self.finished, self.result, self.error = True, result, error
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None
        elif self._lender is not None:
            self._lender.recall()

    async def wait(self) -> None:
        """Waits for the answer. Always a checkpoint."""
        if self.finished:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def read(self, lender: LendingTransport) -> None:
        """Reads at a lent socket until the answer has come; waits for it if the socket is not lent any more.

        A checkpoint, unless trio has nothing else to do.
        """
        while not self.finished:
            self._lender = lender
            try:
                if not lender.wait_in_place():
                    await lender.wait_lent()
            except trio.ClosedResourceError:
                break
            finally:
                self._lender = None
            if not lender.read_lent():
                break
        if not self.finished:
            await self.wait()


class RequestRunner(OfOneProcess):
    """An async context manager that keeps one connection open and carries out plans on it.

    Each request of a plan is given up ``retry_for`` seconds after it was queued. If ``run`` is cancelled, a request
    that was not sent is never sent, and one that was sent is not sent again.
    """

    def __init__(self, core: ClientCore, host: Host) -> None:
        self.core = core
        self.host = host
        self._session = core.session
        self._retry_for_s = core.retry_for_s
        self._link = RequestLink(core.session, core.link, host.connect)
        self._lender = self._link.lender
        self._lifetime = Lifetime()
        self._asking = 0  # calls that wait for answers
        self._clock = trio.current_time
        self._register()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> RequestRunner:
        self.check_process()
        self._clock = trio.lowlevel.current_clock().current_time  # the same in fewer steps
        await self._lifetime.__aenter__()
        for task in (self._link.run, self._link.tick, self._link.keep, self._link.look, self._link.gather):
            self._lifetime.start(task)
        try:
            with trio.move_on_after(self.core.connect_timeout_s):
                await self._link.opened.wait()
            if not self._link.opened.is_set():
                raise self.core.unreachable()
        except BaseException as error:
            if await self._lifetime.__aexit__(type(error), error, error.__traceback__):
                raise AssertionError("a failed start is never swallowed") from error
            raise
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        swallowed = await self._lifetime.__aexit__(kind, error, traceback)
        self._session.fail_all(Unreachable("the client was closed", outcome="unknown"))
        return swallowed

    def _forked(self, error: WrongProcess) -> None:
        self._session.refuse(error)
        self._link.abandon()

    @trio.lowlevel.enable_ki_protection
    async def get(self, feed: FeedCore, key: bytes, level: str, at_least: Version | None) -> Item | None:
        """Carries out `FeedCore.get`, by the short way if it can be taken (`tailrace.requests.lone_calls`)."""
        known = feed.resolved
        if known is None or feed.codec is not None or at_least is not None or self._asking or self._forked_from:
            return await self.run(feed.get(key, level, at_least))
        if type(key) is not bytes or not 0 < len(key) <= KEY_BYTES_MAX:
            return await self.run(feed.get(key, level, None))
        begun = Begun()
        try:
            wanted = self._session.levels.level(level)
            found = await self._look_up_alone((known.feed_id, wanted, key), begun)
            return await self.run(feed.get(key, level, None), begun) if found is None else found[0]
        finally:
            if begun.request is not None:
                self._session.withdraw(begun.request)

    @trio.lowlevel.enable_ki_protection  # as ``ask``
    async def _look_up_alone(self, asked: tuple[bytes, Level, bytes], begun: Begun) -> list[Item | None] | None:
        """Returns the item in a list. None: the general way has to do it, or to wait if ``begun`` has a request."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._asking:
            return None
        now = self._clock()
        lender = self._lender.borrow(now)
        if lender is None:
            return None
        lone = LoneLookUp(self._session.lone, asked, begun, _WaitedReply, self._retry_for_s)
        frame = lone.begin(now)
        if frame is None:
            self._lender.end_unused()
            return None
        self._asking += 1
        try:
            self._link.send_alone(lone, frame)
            while lone.found is None:
                if not lender.wait_in_place():
                    await lender.wait_lent()
                if not lender.read_lent():
                    break
                if begun.request is not None:  # the answer comes in several reads, or beside others
                    assert isinstance(begun.reply, _WaitedReply)
                    await begun.reply.read(lender)
                    break
        except trio.ClosedResourceError:
            pass
        except BaseException:
            self._lender.take_back()
            raise
        finally:
            self._asking -= 1
            if lone.found is None:  # else the bytes that it has taken were the last ones for it
                self._link.forget_lone()
            self._lender.ended(was_alone=not self._asking and self._session.idle)
        if lone.found is None:
            lone.go_on()
        return lone.found

    @trio.lowlevel.enable_ki_protection  # as ``ask``
    async def write_row(self, feed: FeedCore, key: bytes, value: bytes | None, level: str | None) -> Version | None:
        """Writes a row by the short way (`tailrace.requests.lone_calls`); None: the general way has to do it.

        ``value`` None deletes. Raises as `FeedCore.put`.
        """
        known = feed.resolved
        if known is None or feed.codec is not None or self._asking or self._forked_from:
            return None
        await trio.lowlevel.checkpoint_if_cancelled()
        now = self._clock()
        lender = self._lender.borrow(now)
        if lender is None:
            return None
        reply: _WaitedReply[VersionRange] = _WaitedReply()
        write = LoneWrite(
            self._session.lone_writes, (known, self.core.lanes, key, value, level, reply.done), self._retry_for_s
        )
        frame = write.begin(now)
        if frame is None:
            self._lender.end_unused()
            return None
        self._asking += 1
        try:
            self._link.send_alone(write, frame)
            await reply.read(lender)
            return version_of(reply.get())
        except BaseException as error:
            assert write.row is not None
            self._session.withdraw(write.row)
            self._lender.take_back()
            if isinstance(error, UnknownFeed):
                feed.forget()
            raise
        finally:
            self._asking -= 1
            self._link.forget_lone()
            self._lender.ended(was_alone=not self._asking and self._session.idle)

    @trio.lowlevel.enable_ki_protection
    async def run(self, plan: Plan[_T], begun: Begun | None = None) -> _T:
        """Carries out a plan and returns its result. ``begun`` may have the request of its first step."""
        if self._forked_from:
            self.check_process()
        began_at = self._clock()
        now: float | None = began_at  # as long as nothing was waited for
        try:
            step = next(plan)
            while True:
                try:
                    if isinstance(step, WITHOUT_REQUEST):
                        answer = await self._take(step, began_at)
                    else:
                        answer = await self.ask(step, now=now, begun=begun)
                except TailraceError as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
                now = begun = None
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _take(self, step: Pause | AskLeader | Continue, began_at: float) -> Any:
        """Carries out a step that is no request and returns its result."""
        if isinstance(step, Pause):
            step.require(began_at + self._retry_for_s - trio.current_time())
            return await trio.sleep(step.seconds)
        if isinstance(step, AskLeader):
            return await self._ask_leader(step, began_at + self._retry_for_s)
        return None  # Continue: each request has a time of its own

    async def _ask_leader(self, step: AskLeader, deadline: float) -> Any:
        left_s = max(deadline - trio.current_time(), 0.0)
        leader = RequestRunner(self.core.of_leader(min(self.core.connect_timeout_s, left_s)), self.host)
        with trio.move_on_after(left_s):
            async with leader:
                return await leader.run(step.plan(leader.core.session))
        raise leader.core.unreachable()

    # It may read the answers of other calls, too, and an interrupt in the middle would lose them.
    @trio.lowlevel.enable_ki_protection
    async def ask(self, step: RequestStep, now: float | None = None, begun: Begun | None = None) -> Any:
        """Queues a step's requests, sends them, and returns the answer. ``now`` is the time, if the caller has it.

        If ``begun`` has the request of the step, its answer is waited for.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # before the request is queued: a kick may send it at once
        reply: _WaitedReply[Any] = _WaitedReply()
        if now is None:
            now = trio.current_time()
        requests: Sequence[Request | WriteRequest] = ()
        is_alone = not self._asking
        lender = self._lender.borrow(now) if is_alone else None
        if self._lender.has_woken:
            await self._lender.let_run()
            is_alone = not self._asking
        self._asking += 1
        try:
            taken = None if begun is None else begun.reply_to(step)
            if taken is None:
                requests = step.queue(self._session, reply.done, now + self._retry_for_s)
            else:
                requests = taken[:1]
                assert isinstance(taken[1], _WaitedReply)
                reply = taken[1]
            self._link.kick(now)
            if lender is None or reply.finished:
                await reply.wait()
            else:
                await reply.read(lender)
            return reply.get()
        except BaseException:
            self._session.withdraw_all(requests)
            if is_alone:
                self._lender.take_back()
            raise
        finally:
            self._asking -= 1
            if is_alone:
                self._lender.ended(was_alone=not self._asking and self._session.idle)

    def stream(self, subscription: Subscription, window_bytes: int = 8 * 1024 * 1024) -> Stream:
        """Makes a consumer with a connection of its own. Raises ValueError for a ``window_bytes`` below 1."""
        self.check_process()
        return Stream(StreamCore.of_client(self.core, subscription, window_bytes), self.host)

    # For writers and stages

    def queue(self, step: RequestStep, done: Answered) -> None:
        """Queues a request. ``kick`` sends it, and ``done`` is called with the answer."""
        step.queue(self._session, done, trio.current_time() + self._retry_for_s)

    def kick(self) -> None:
        """Sends the queued requests. Never waits."""
        self._lender.take_back_unused()
        self._link.kick()

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        self._session.withdraw_lane(lane)
