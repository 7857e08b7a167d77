"""The trio shell of a request session: connects, reconnects, moves the bytes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import trio

from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.link.rules import SILENT_INTERVALS_MAX, TICK_SECONDS, Silence, is_final
from tailrace.requests.session import RequestSession
from tailrace.trio.transport import Connect, Transport, connect_tcp
from tailrace.trio.watch import keep_looking


@contextlib.asynccontextmanager
async def connected(address: Address, connect: Connect, timeout_s: float) -> AsyncIterator[Transport]:
    """Connects to ``address`` and runs the flushing task; leaving closes the transport. Raises Unreachable."""
    with trio.move_on_after(timeout_s) as scope:
        transport = await connect(address)
    if scope.cancelled_caught:
        raise Unreachable(f"cannot connect to {address}: no answer within {timeout_s:g} s")
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            yield transport
            nursery.cancel_scope.cancel()
    finally:
        transport.close()


class RequestLink:
    """Keeps a session connected while ``run`` runs."""

    def __init__(
        self,
        session: RequestSession,
        finder: Finder,
        *,
        connect: Connect = connect_tcp,
        connect_timeout_s: float = 10.0,
    ) -> None:
        self._session = session
        self._finder = finder
        self._connect = connect
        self._connect_timeout_s = connect_timeout_s
        self._transport: Transport | None = None
        self._idle: trio.Event | None = None  # while ``tick`` waits for something to do
        self._reads = 0
        self._leaves: NotLeader | None = None  # why the connection is ended from here
        self._greeted = trio.Event()
        self.opened = trio.Event()

    @property
    def _try_seconds(self) -> float:
        """The seconds of one try. If one address is dead, time is left for the others."""
        return self._finder.try_seconds(self._connect_timeout_s)

    def kick(self, now: float | None = None) -> None:
        """Sends the session's buffers. Never waits. ``now`` is the session's time, if the caller has it."""
        if self._idle is not None:
            self._idle.set()
            self._idle = None
        self._send(now)

    def _send(self, now: float | None = None) -> None:
        if self._transport is not None:
            buffers = self._session.data_to_send(now)
            if buffers:
                self._transport.send(*buffers)

    def abandon(self) -> None:
        """Sends nothing from now on, and wakes no task: this is a forked process, and the tasks are the parent's."""
        self._transport = self._idle = None

    async def run(self) -> None:
        """Connects and reconnects for ever. Raises Forbidden and a greeting's ProtocolError, which no retry mends."""
        while True:
            address, pause_s = self._finder.next_try()
            if pause_s:
                await trio.sleep(pause_s)
            try:
                async with connected(address, self._connect, self._try_seconds) as transport:
                    await self._use(transport)
            except* (TailraceError, OSError) as group:
                error = _first(group)
            else:
                error = Unreachable("the node has closed the connection")
            if self._leaves is not None:
                error, self._leaves = self._leaves, None
            if not isinstance(error, TailraceError):
                error = Unreachable(str(error))
            greeted = self._session.peer is not None
            self._transport = None
            self._greeted = trio.Event()
            self._finder.failed(error, progressed=self._session.has_progressed)
            self._session.connection_lost(error)
            if is_final(error, greeted=greeted):
                raise error

    async def _use(self, transport: Transport) -> None:
        self._transport = transport
        self._reads += 1
        self._session.connection_made()
        self._send()
        greeted = False
        while True:
            data = await transport.receive()
            if not data:
                return
            self._reads += 1
            self._session.receive_data(data)
            if not greeted and self._session.is_open:
                greeted = True
                self._greeted.set()
                self.opened.set()
            self._send()

    async def keep(self) -> None:
        """Sends NOOPs to the node, and drops a connection on which the node is silent; runs for ever."""
        silence = Silence(trio.current_time())
        while True:
            peer = self._session.peer if self._session.is_open else None
            interval = self._try_seconds / SILENT_INTERVALS_MAX if peer is None else peer.noop_interval_s
            if peer is None:
                with trio.move_on_after(interval / 2):
                    await self._greeted.wait()
            else:
                await trio.sleep(interval / 2)
            silent_s = silence.seconds(self._reads, trio.current_time())
            if self._transport is None:
                continue
            if silent_s > SILENT_INTERVALS_MAX * interval:
                self._transport.close()
            else:
                self._session.noop()
                self._send()

    async def look(self) -> None:
        """Watches for a later leader, and moves to it; runs for ever if there are other nodes."""
        await keep_looking(self._finder, self._session.hello, self._connect, self._waits, self._move_on)

    def _waits(self) -> bool:
        return not self._session.idle

    def _move_on(self, error: NotLeader) -> None:
        if self._transport is not None:
            self._leaves = error
            self._transport.close()

    async def tick(self) -> None:
        """Gives up requests whose deadline has passed, and sends held requests again; runs for ever."""
        while True:
            if self._session.idle:
                idle = self._idle = trio.Event()
                await idle.wait()
            await trio.sleep(TICK_SECONDS)
            self._session.expire()
            self._send()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
