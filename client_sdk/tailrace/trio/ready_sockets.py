"""Calls a function for each socket that has bytes to read: one task and one epoll set for all of them.

Under trio alone each message costs a wait, a system call that arms the wait, and a switch of tasks. Here a socket stays
in the set, and its function handles the bytes at once. A node may also wait for them in the place of trio's loop.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tailrace.trio.direct_wait import DirectWait
    from tailrace.trio.lent_wait import LentWait
    from tailrace.trio.trio_loop import TasksToRun

HAS_EPOLL = hasattr(select, "epoll")  # Linux
# The sockets that are handled before other tasks have the loop. The set returns the others then.
READY_MAX = 64
# Nor does it look for further ones after so many seconds: each may take 2 ms, and others wait for an fsync, or the end
# of one.
TURN_SECONDS = 0.002


class ReadySockets:
    """The sockets of one run of trio that wait for bytes."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], bool]] = {}
        self._direct: DirectWait | None = None
        self._tasks: TasksToRun | None = None

    def watch(self, sock: socket.socket, on_ready: Callable[[], bool]) -> None:
        """Calls ``on_ready`` each time that ``sock`` has bytes, its end, or an error to read, until `forget`.

        ``on_ready`` must not raise. It returns False if other tasks should have the loop now.
        """
        self._epoll.register(sock, select.EPOLLIN)
        self._calls[sock.fileno()] = on_ready

    def forget(self, sock: socket.socket) -> None:
        """Watches ``sock`` no more. Call it before the socket is closed: a fork may keep the socket in the set."""
        if self._calls.pop(sock.fileno(), None) is not None and not self._epoll.closed:
            self._epoll.unregister(sock)

    def wait_directly(self, busy_poll_s: float) -> None:
        """Waits in the place of trio's loop while requests come one soon after the other.

        It polls for ``busy_poll_s`` at most before it sleeps, while that finds the next request.
        """
        from tailrace.trio.direct_wait import DirectWait  # for nodes only
        from tailrace.trio.trio_loop import TrioLoop

        loop = TrioLoop.of_this_run()
        if loop is not None:
            self._direct = DirectWait(self._epoll, self._calls, loop, READY_MAX, busy_poll_s)

    def lent_wait(self, sock: socket.socket) -> LentWait:
        """Makes what waits for a lent socket in the place of trio's loop."""
        from tailrace.trio.lent_wait import LentWait  # for lone calls only
        from tailrace.trio.trio_loop import TasksToRun, TrioLoop

        if self._tasks is None:
            self._tasks = TasksToRun()
        return LentWait(TrioLoop.of_this_run(), sock, self._epoll.fileno(), self._tasks)

    async def run(self) -> None:
        """Calls for ever."""
        try:
            while True:
                began = time.perf_counter()
                await trio.lowlevel.wait_readable(self._epoll)
                now = time.perf_counter()
                self._call_ready(now + TURN_SECONDS)
                if self._direct is not None and self._direct.is_due(now - began):
                    await self._direct.run()
        finally:
            self._epoll.close()

    def _call_ready(self, until: float) -> None:
        """Calls for the sockets that are ready, and until then for those that become ready, `READY_MAX` in all.

        A turn of the loop takes some 20 µs. With many busy peers, each would otherwise find a few ready sockets only.
        """
        left = READY_MAX
        while left > 0:
            events = self._epoll.poll(0, left)
            left -= len(events)
            for number, _ in events:
                on_ready = self._calls.get(number)
                if on_ready is not None and not on_ready():  # None: a call before it has closed the socket
                    return  # the set returns the others again
            # A lone peer waits for its answer, and sends nothing before.
            if len(events) < 2 or time.perf_counter() >= until:
                break


_of_this_run: trio.lowlevel.RunVar[ReadySockets] = trio.lowlevel.RunVar("tailrace ready sockets")


def ready_sockets() -> ReadySockets | None:
    """Returns the set of this run of trio; None on a platform without epoll."""
    if not HAS_EPOLL:
        return None
    try:
        return _of_this_run.get()
    except LookupError:
        sockets = ReadySockets()
        _of_this_run.set(sockets)
        trio.lowlevel.spawn_system_task(sockets.run, name="tailrace ready sockets")
        return sockets
