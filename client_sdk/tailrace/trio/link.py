"""The trio shell of a request session: connects, reconnects, moves the bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from tailrace.errors import TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.connection import LinkCore, SendingLink
from tailrace.link.finder import LOOK_IDLE_SECONDS
from tailrace.link.rules import TICK_SECONDS, Silence, tick_seconds
from tailrace.requests.lone_calls import LoneCall
from tailrace.requests.session import RequestSession
from tailrace.trio.lending import Lender
from tailrace.trio.tcp import connect_tcp
from tailrace.trio.transport import Connect, PlacingTransport, Transport, receive_each
from tailrace.trio.watch import keep_looking


async def connect_in_time(link: LinkCore, connect: Connect, address: Address) -> Transport:
    """Connects to ``address``. Raises Unreachable if that fails, or takes longer than a try may take."""
    with trio.move_on_after(link.try_seconds):
        return await connect(address)
    raise link.no_answer()


@contextlib.asynccontextmanager
async def _running(transport: Transport) -> AsyncIterator[None]:
    """Runs the flushing task of ``transport``; leaving closes the transport."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            yield
            nursery.cancel_scope.cancel()
    finally:
        transport.close()


class RequestLink(SendingLink[RequestSession, Transport]):
    """Keeps a session connected while ``run`` runs."""

    def __init__(self, session: RequestSession, core: LinkCore, connect: Connect = connect_tcp) -> None:
        super().__init__(session, core)
        self._connect = connect
        self._idle: trio.Event | None = None  # while ``tick`` waits for something to do
        self._held: trio.Event | None = None  # while ``tick`` waits for a request to be held
        self._ticked: trio.Event | None = None  # while ``look`` waits for the next tick
        self._gathered = trio.Event()  # set if queued rows are to leave after this turn of the loop
        self._greeted = trio.Event()
        self._lone: LoneCall | None = None  # that gets the next bytes
        self.lender = Lender()
        self.opened = trio.Event()

    def send_alone(self, lone: LoneCall, frame: bytes) -> None:
        """Sends the frame of a call, which gets the next bytes. Never waits. ``forget_lone`` has to follow."""
        self._lone = lone
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        if self._transport is not None:
            self._transport.send(frame)

    def forget_lone(self) -> None:
        """Hands no bytes to a lone call any more."""
        self._lone = None

    def kick(self, now: float | None = None) -> None:
        """Sends the session's buffers. Never waits. ``now`` is the session's time, if the caller has it."""
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        if self._session.gathers:
            self._gathered.set()
        else:
            self._send(now)

    async def gather(self) -> None:
        """Sends the rows that the tasks of one turn have put; runs for ever. The last of the tasks may send itself."""
        while True:
            await self._gathered.wait()
            self._gathered = trio.Event()
            self._session.expect_none()
            self._send()

    def abandon(self) -> None:
        """Sends nothing from now on, and wakes no task: this is a forked process, and the tasks are the parent's."""
        self._transport = self._idle = self._held = self._ticked = self._lone = None
        self._gathered = trio.Event()  # that of the parent would wake its task

    async def run(self) -> None:
        """Connects and reconnects for ever. Raises Forbidden, or ProtocolError of the only node: no retry mends it."""
        while True:
            address, pause_s = self._core.finder.next_try()
            if pause_s:
                await trio.sleep(pause_s)
            error: BaseException = Unreachable("the node has closed the connection")
            try:
                transport = await connect_in_time(self._core, self._connect, address)
                async with _running(transport):
                    await self._use(transport)
            except* (TailraceError, OSError) as group:
                error = _first(group)
            self._transport = None
            self._greeted = trio.Event()
            assert isinstance(error, Exception)
            final = self._core.lost(error)
            if final is not None:
                raise final

    async def _use(self, transport: Transport) -> None:
        self.lender.connected(transport)
        self._begin(transport)
        try:
            while await self._receive(transport):
                pass
        finally:
            self._transport = None  # before the tasks of the transport have ended

    async def _receive(self, transport: Transport) -> bool:
        """Hands bytes to the session. Returns False at the end."""
        place = self._session.place()
        if place is None or not isinstance(transport, PlacingTransport):
            return await receive_each(transport, self._received)
        count = await transport.receive_into(place.buffers)
        if count:
            place.received(count)
            self._answered()
        return bool(count)

    def _received(self, data: bytes | memoryview) -> bool:
        """Hands some bytes to the session. Returns False if the next ones have a place of their own."""
        if self._lone is not None:
            lone, self._lone = self._lone, None
            if lone.take(data):
                self._reads += 1
                return True
        self._session.receive_data(data)
        self._answered()
        return self._session.place() is None

    def _answered(self) -> None:
        self._reads += 1
        if not self._greeted.is_set() and self._session.is_open:
            self._greeted.set()
            self.opened.set()
        if self._session.is_holding:
            self._send()
            if self._held is not None and self._session.is_holding:
                self._held.set()
                self._held = None

    async def keep(self) -> None:
        """Sends NOOPs to the node, and drops a connection on which the node is silent; runs for ever."""
        silence = Silence(trio.current_time())
        while True:
            pause_s = self._core.noop_interval_s / 2
            if self._session.is_open:
                await trio.sleep(pause_s)
            else:
                with trio.move_on_after(pause_s):
                    await self._greeted.wait()
            silent_s = silence.seconds(self._reads, trio.current_time())
            if self._transport is None:
                continue
            if self._core.is_dead(silent_s):
                self._transport.close()
            else:
                self._session.noop()
                self._send()

    async def look(self) -> None:
        """Watches for a later leader, and moves to it; runs for ever if there are other nodes."""
        await keep_looking(self._core, self._connect, self._leave, self._next_tick)

    async def _next_tick(self) -> None:
        """Waits for the next check of requests, or for LOOK_IDLE_SECONDS while there are none.

        So a client that waits for an answer wakes up once for both, and one that has nothing to do sleeps.
        """
        ticked = self._ticked = trio.Event()
        with trio.move_on_after(LOOK_IDLE_SECONDS):
            await ticked.wait()
        self._ticked = None

    async def tick(self) -> None:
        """Gives up requests whose deadline has passed, and sends held requests again; runs for ever."""
        while True:
            if self._session.idle:
                idle = self._idle = trio.Event()
                await idle.wait()
            if self._session.is_holding:
                await trio.sleep(TICK_SECONDS)
            else:
                held = self._held = trio.Event()
                with trio.move_on_after(tick_seconds(self._session.until_deadline_s)):
                    await held.wait()
                self._held = None
            self.lender.take_back_unused()
            if self._lone is not None:
                if self._lone.go_on():
                    self.lender.recall()
                self._lone = None
            self._session.expire()
            self._send()
            if self._ticked is not None:
                self._ticked.set()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
