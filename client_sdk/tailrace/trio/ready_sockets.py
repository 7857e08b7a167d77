"""Calls a function for each socket that has bytes to read: one task and one epoll set for all of them.

Under trio alone each message costs a wait, a system call that arms the wait, and a switch of tasks. Here a socket stays
in the set, and its function handles the bytes at once.

A node may also ask for polling, for a peer that sends one request after the other. Its next request comes some 100 µs
after an answer. A processor that sleeps in between wakes late, and finds its caches cold:

    sleeping ── LONE_TURNS turns of one ready socket after a short sleep ──> polling
        └────────── no socket for `busy_poll_s`, or several at once ────────────┘
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tailrace.trio.direct_wait import DirectWait

HAS_EPOLL = hasattr(select, "epoll")  # Linux
# The sockets that are handled before other tasks have the loop. The set returns the others then.
READY_MAX = 64
# Nor does it look for further ones after so many seconds: each may take 2 ms, and others wait for an fsync, or the end
# of one.
TURN_SECONDS = 0.002
# Polling begins after so many turns in a row that came soon: a pair of requests is no stream of them.
LONE_TURNS = 4
# Between two turns of the loop it polls for so many seconds: other tasks wait no longer.
POLL_SECONDS = 0.00005


class BusyPolling:
    """Decides when to poll, for ``seconds`` at most at a time; never if that is 0. Pure."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._turns = 0  # in a row

    @property
    def is_due(self) -> bool:
        """Whether the next socket is likely to be ready soon."""
        return self.seconds > 0 and self._turns >= LONE_TURNS

    def turn_ended(self, ready: int, waited: float) -> None:
        """Notes that ``ready`` sockets were handled in a turn, after ``waited`` seconds."""
        if ready == 1 and waited <= self.seconds:
            self._turns += 1
        else:
            self._turns = 0

    def missed(self) -> None:
        """Notes that nothing came in time."""
        self._turns = 0


class ReadySockets:
    """The sockets of one run of trio that wait for bytes."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], bool]] = {}
        self._polling = BusyPolling()
        self._direct: DirectWait | None = None

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

    def poll_busily(self, seconds: float) -> None:
        """Polls for so many seconds at most before the task sleeps, while lone requests come that close together.

        A process with one processor does not: the peer could not run meanwhile. 0 ends it.
        """
        self._polling = BusyPolling(seconds if len(os.sched_getaffinity(0)) > 1 else 0.0)

    def wait_directly(self) -> None:
        """Waits in the place of trio's loop while requests come one soon after the other, unless it polls busily."""
        from tailrace.trio.direct_wait import DirectWait, TrioLoop  # for nodes only

        loop = TrioLoop.of_this_run()
        if loop is not None:
            self._direct = DirectWait(self._epoll, self._calls, loop, READY_MAX)

    async def run(self) -> None:
        """Calls for ever."""
        try:
            while True:
                began = time.perf_counter()
                await self._wait()
                now = time.perf_counter()
                waited = now - began
                self._polling.turn_ended(self._call_ready(now + TURN_SECONDS), waited)
                if self._direct is not None and not self._polling.seconds and self._direct.is_due(waited):
                    await self._direct.run()
        finally:
            self._epoll.close()

    async def _wait(self) -> None:
        """Waits until a socket is ready. Other tasks have the loop in any case."""
        if self._polling.is_due:
            until = time.perf_counter() + self._polling.seconds
            while time.perf_counter() < until:
                await trio.lowlevel.checkpoint()
                if self._poll():
                    return
            self._polling.missed()
        await trio.lowlevel.wait_readable(self._epoll)

    def _poll(self) -> bool:
        """Polls for POLL_SECONDS. Returns whether a socket is ready."""
        until = time.perf_counter() + POLL_SECONDS
        while not self._epoll.poll(0, 1):
            if time.perf_counter() >= until:
                return False
        return True

    def _call_ready(self, until: float) -> int:
        """Calls for the sockets that are ready, and until then for those that become ready, `READY_MAX` in all.

        A turn of the loop takes some 20 µs. With many busy peers, each would otherwise find a few ready sockets only.
        Returns the number of sockets.
        """
        left = READY_MAX
        while left > 0:
            events = self._epoll.poll(0, left)
            left -= len(events)
            for number, _ in events:
                on_ready = self._calls.get(number)
                if on_ready is not None and not on_ready():  # None: a call before it has closed the socket
                    return READY_MAX - left  # the set returns the others again
            # A lone peer waits for its answer, and sends nothing before.
            if len(events) < 2 or time.perf_counter() >= until:
                break
        return READY_MAX - left


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
