"""The asyncio shell of a request session: connects, reconnects, moves the bytes."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import TYPE_CHECKING, Protocol

from tailrace.asyncio.transport import Connect, Transport, closing
from tailrace.asyncio.waiting import wait_within
from tailrace.asyncio.watch import keep_looking
from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore, SendingLink
from tailrace.link.finder import LOOK_IDLE_SECONDS
from tailrace.link.rules import TICK_SECONDS, Silence, tick_seconds
from tailrace.requests.session import RequestSession

if TYPE_CHECKING:
    from tailrace.requests.outbox import Outbox


async def connect_in_time(link: LinkCore, connect: Connect, address: Address) -> Transport:
    """Connects to ``address``. Raises Unreachable if that fails, or takes longer than a try may take."""
    try:
        async with asyncio.timeout(link.try_seconds):
            return await connect(address)
    except TimeoutError:  # of the line above alone: that of the system is Unreachable already
        raise link.no_answer() from None


class Waiting(Protocol):
    """A reply to a request."""

    finished: bool

    async def wait(self) -> None: ...
    def done(self, result: None, error: TailraceError) -> None: ...


class RequestLink(SendingLink[RequestSession, Transport]):
    """Keeps a session connected while ``run`` runs."""

    def __init__(self, session: RequestSession, core: LinkCore, connect: Connect) -> None:
        super().__init__(session, core)
        self._connect = connect
        self._is_busy = asyncio.Event()  # set by each request, for ``tick``
        self._holds = asyncio.Event()  # a request is held, for ``tick``
        self._ticked = asyncio.Event()  # set by each tick, for ``look``
        self._is_gathering = False  # queued rows are to leave after this turn of the loop
        self._is_within_step = False
        self._is_broken = False  # a step was interrupted, and the session may be in disorder
        # A broken session may have lost requests of these.
        self._waiting: set[Waiting] = set()
        self._outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()
        self._greeted = asyncio.Event()  # on the present connection
        self.opened = asyncio.Event()

    def begin(self) -> None:
        """A step of the session begins in a call: ``end`` has to follow before other tasks have their turn.

        Raises TailraceError if an earlier step was interrupted, by a handler of a signal that has raised an error.
        """
        self.check()
        self._is_within_step = True

    def end(self) -> None:
        """A step has ended."""
        self._is_within_step = False

    async def wait(self, reply: Waiting) -> None:
        """Waits for the answer to a request; after an interrupted step ``reply`` gets an error."""
        self._waiting.add(reply)
        try:
            await reply.wait()
        finally:
            self._waiting.discard(reply)

    def serve(self, outbox: Outbox) -> None:
        """Has ``outbox`` fail after an interrupted step."""
        self._outboxes.add(outbox)

    def check(self) -> None:
        """Raises TailraceError if an earlier step was interrupted."""
        if self._is_within_step:
            self._break()
            raise _interrupted()

    def _break(self) -> None:
        """Ends all requests with an error, after an interrupted step: some bytes may have left twice, or not."""
        if self._is_broken:
            return
        self._is_broken = True
        self._leave()
        try:
            self._session.fail_all(_interrupted())
        finally:  # also if the session is in disorder
            for reply in tuple(self._waiting):
                if not reply.finished:
                    reply.done(None, _interrupted())
            for outbox in tuple(self._outboxes):
                outbox.fail(_interrupted())

    def kick(self, now: float | None = None) -> None:
        """Sends the session's buffers. Never waits. ``now`` is the session's time, if the caller has it."""
        if not self._is_busy.is_set():
            self._is_busy.set()
        if not self._session.gathers:
            self._send(now)
        elif not self._is_gathering:
            asyncio.get_running_loop().call_soon(self._send_gathered)
            self._is_gathering = True

    def _send_gathered(self) -> None:
        """Sends the rows that the tasks of one turn of the loop have put."""
        self._is_gathering = False
        self._session.expect_none()
        self._send()

    def abandon(self) -> None:
        """Sends nothing from now on: this is a forked process, and the socket is the parent's."""
        self._transport = None

    async def run(self) -> None:
        """Connects and reconnects for ever. Raises Forbidden and a greeting's ProtocolError, which no retry mends."""
        while True:
            address, pause_s = self._core.finder.next_try()
            await asyncio.sleep(pause_s)
            error = await self._try(address)
            self._transport = None
            self._greeted.clear()
            final = self._core.lost(error)
            if final is not None:
                raise final

    async def _try(self, address: Address) -> Exception:
        """Uses one connection, and returns how it has ended."""
        try:
            transport = await connect_in_time(self._core, self._connect, address)
            async with closing(transport):
                self._begin(transport)
                await transport.receive_each(self._received)
        except (TailraceError, OSError) as error:
            return error
        return Unreachable("the node has closed the connection")

    def _received(self, data: bytes) -> None:
        """Hands some bytes to the session, and lets the tasks go on that wait for them."""
        self._reads += 1
        if self._is_within_step:
            self._break()
        self._session.receive_data(data)
        if not self._greeted.is_set() and self._session.is_open:
            self._greeted.set()
            self.opened.set()
        self._send()
        if self._session.is_holding:
            self._holds.set()

    async def keep(self) -> None:
        """Sends NOOPs to the node, and drops a connection on which the node is silent; runs for ever."""
        silence = Silence(time.monotonic())
        while True:
            pause_s = self._core.noop_interval_s / 2
            if self._session.is_open:
                await asyncio.sleep(pause_s)
            else:
                await wait_within(self._greeted, pause_s)
            if self._is_within_step:
                self._break()
            silent_s = silence.seconds(self._reads, time.monotonic())
            if self._transport is not None and self._core.is_dead(silent_s):
                self._leave()
            elif self._transport is not None:
                self._session.noop()
                self._send()

    async def look(self) -> None:
        """Watches for a later leader, and moves to it; runs for ever if there are other nodes."""
        await keep_looking(self._core, self._connect, self._leave, self._next_tick)

    async def _next_tick(self) -> None:
        """Waits for the next check of requests, or for LOOK_IDLE_SECONDS while there are none."""
        self._ticked.clear()
        await wait_within(self._ticked, LOOK_IDLE_SECONDS)

    async def tick(self) -> None:
        """Gives up requests whose deadline has passed, and sends held requests again; runs for ever."""
        while True:
            if self._session.idle:
                self._is_busy.clear()
                await self._is_busy.wait()
            if self._session.is_holding:
                await asyncio.sleep(TICK_SECONDS)
            else:
                self._holds.clear()
                await wait_within(self._holds, tick_seconds(self._session.until_deadline_s))
            if self._is_within_step:
                self._break()
            self._session.expire()
            self._send()
            self._ticked.set()


def _interrupted() -> TailraceError:
    return TailraceError(
        "this client was interrupted in the middle of a step, and its unfinished requests may or may not be done: "
        "connect again"
    )
