"""Lends a connection's socket to the task of a lone call, which then reads its answer by itself.

Otherwise the task that reads has to wake the caller: a pass of the loop and two system calls for each answer. While the
socket is lent, the caller waits at it, and hands the bytes to the session as the reading task would.

    read ── LONE_CALLS calls one after the other, nothing beside them ──> lent
      ^                                                                    │
      └── another call or a writer, a cancelled call, a tick between two calls, or the connection ends ──┘

The connection stays lent between two calls, because to give it back and to lend it again takes two system calls. No
task reads meanwhile, until the next tick at most. So a call after a pause first reads the bytes that wait.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import trio

from tailrace.trio.ready_sockets import ReadySockets

if TYPE_CHECKING:
    from tailrace.trio.lent_wait import LentWait

# The lone calls in a row after which the socket is lent: a few calls of a program that does other things do not pay.
LONE_CALLS = 4
# The seconds since the last call after which a call reads first, because the node may have ended the connection.
UNREAD_SECONDS = 0.005
# The passes of the loop in which the task of a connection that has ended leaves it, with a layer such as TLS.
PASSES = 4


class LendingTransport(Protocol):
    """The side of a Transport that lends its socket while a task is in ``receive_each``.

    A Transport that can be lent has it as its ``lending``. One around another has that of the other.
    """

    def lend(self) -> bool:
        """Lends the socket, or leaves it lent. Returns False if no task is in ``receive_each``."""
        ...

    def wait_in_place(self) -> bool:
        """Waits for the lent socket in the place of trio's loop, for a moment at most.

        Returns False if trio has something to do, or nothing came: call ``wait_lent`` then. If it returns True, no
        other task could have run, and no deadline is due: a checkpoint would have changed nothing.
        """
        ...

    def wait_lent(self) -> Awaitable[None]:
        """Waits until the lent socket has something to read. One task may wait.

        Always a checkpoint. Raises trio.ClosedResourceError after ``close`` or ``recall``.
        """
        ...

    def recall(self) -> None:
        """Ends the wait of the task in ``wait_lent``."""
        ...

    def read_lent(self) -> bool:
        """Reads once, for the task in ``receive_each``, whose errors and end these are. Never waits or raises.

        Returns False if the socket is not lent any more.
        """
        ...

    def take_back(self) -> None:
        """Lets the task in ``receive_each`` read again. No-op if the socket is not lent."""
        ...


def lending_of(transport: object) -> LendingTransport | None:
    """Returns the part of a Transport that lends its socket; None if it has none."""
    found: LendingTransport | None = getattr(transport, "lending", None)
    return found


class Reader:
    """A task in ``receive_each``. ``on_ready`` is called for it, unless the socket is lent."""

    # A node with many idle connections has one for each.
    __slots__ = ("_on_ready", "_sock", "_sockets", "error", "has_ended", "is_lent", "take", "task", "wait")

    def __init__(
        self,
        sockets: ReadySockets,
        sock: socket.socket,
        on_ready: Callable[[], bool],
        take: Callable[[bytes | memoryview], bool],
    ) -> None:
        self._sockets = sockets
        self._sock = sock
        self._on_ready = on_ready
        self.wait: LentWait | None = None
        self.take = take
        self.task = trio.lowlevel.current_task()
        self.is_lent = False
        self.has_ended = False
        self.error: Exception | None = None
        sockets.watch(sock, on_ready)

    def lend(self) -> None:
        """Leaves the socket to another task."""
        if not self.is_lent:
            self.is_lent = True
            self._sockets.forget(self._sock)
            if self.wait is not None:
                self.wait.begin()

    def begin_wait(self) -> LentWait:
        """Returns what waits for the lent socket in the place of trio's loop. It is made once, as ``wait``."""
        self.wait = self._sockets.lent_wait(self._sock)
        self.wait.begin()
        return self.wait

    def take_back(self) -> None:
        """Ends the lending."""
        if self.is_lent:
            self.is_lent = False
            self._end_wait()
            self._sockets.watch(self._sock, self._on_ready)

    def end(self) -> None:
        """Forgets the socket: the task leaves ``receive_each``."""
        if self.is_lent:
            self._end_wait()
        else:
            self._sockets.forget(self._sock)

    def _end_wait(self) -> None:
        if self.wait is not None:
            self.wait.end()


class Lender:
    """Decides when the socket of the present connection is lent. A link has one, and its runner tells it of each call.

    Attributes:
        has_woken: A read before a call has woken the task of the connection, as its end does. Call ``let_run`` before
            anything is sent: a request on an ended connection would count as sent.
    """

    def __init__(self) -> None:
        self.has_woken = False
        self._transport: LendingTransport | None = None
        self._lone_calls = 0  # in a row
        self._is_used = False  # a call waits at the socket
        self._began_at = 0.0  # when the last call that was alone began

    def connected(self, transport: object) -> None:
        """Notes the transport of a new connection."""
        self._transport = lending_of(transport)
        self._is_used = False

    def borrow(self, now: float) -> LendingTransport | None:
        """Returns the transport for a call that is alone; None if the call waits for the task that reads.

        Call it at the beginning of each such call, and ``ended`` at its end.
        """
        transport = self._transport
        if self._lone_calls < LONE_CALLS or transport is None or not transport.lend():
            return None
        paused_s, self._began_at = now - self._began_at, now
        if paused_s >= UNREAD_SECONDS and not transport.read_lent():
            self.has_woken = True
            return None
        self._is_used = True
        return transport

    async def let_run(self) -> None:
        """Lets the task of the connection run, which a read has woken, until it waits again or has left."""
        self.has_woken = False
        for _ in range(PASSES):
            await trio.lowlevel.checkpoint()

    def end_unused(self) -> None:
        """Notes that the call that has borrowed the transport does not use it."""
        self._is_used = False

    def ended(self, *, was_alone: bool) -> None:
        """Notes the end of a call that began alone. ``was_alone``: nothing else waits for an answer now."""
        self._is_used = False
        if was_alone:
            self._lone_calls += 1
        else:
            self.take_back()

    def take_back(self) -> None:
        """Lets the task of the connection read again, and counts lone calls anew."""
        self._lone_calls = 0
        if self._transport is not None:
            self._transport.take_back()

    def recall(self) -> None:
        """Ends the wait of the call at the socket: it goes on by the general way."""
        if self._transport is not None:
            self._transport.recall()

    def take_back_unused(self) -> None:
        """Lets the task of the connection read again, unless a call waits at the socket."""
        if not self._is_used and self._transport is not None:
            self._transport.take_back()
