"""Waits for a lent socket in the place of trio's loop, if trio has nothing else to do than to wait for sockets, too.

A wait under trio alone is a pass of its loop, a system call that arms the wait, and two switches of tasks: as much as
`send`, a wait and `recv` take together. Here it is one call that waits for the lent socket, trio's set and that of the
connections' tasks. No task is to run meanwhile, and no deadline is due, so to let others run would change nothing.
"""

from __future__ import annotations

import select
import socket

from tailrace.socket_poll import SocketPoll
from tailrace.trio.trio_loop import TasksToRun, TrioLoop

# The most seconds of a wait. Then trio waits, and serves those that wait until no task runs.
WAIT_SECONDS = 0.005
# The most waits in a row. Then trio has a pass of its loop, which may do more than tasks, deadlines and sockets need.
WAITS_MAX = 64


class LentWait:
    """Waits for one socket. ``loop`` is None if the fields of trio's loop are not known: it never waits then."""

    def __init__(self, loop: TrioLoop | None, sock: socket.socket, epoll: int, tasks: TasksToRun) -> None:
        """``epoll`` is the descriptor of the set of the connections' tasks. ``tasks`` is for all sockets of the run."""
        self._loop = loop
        self._poll = SocketPoll()
        self._number = sock.fileno()
        self._waits = 0
        self._tasks = tasks
        if loop is not None:
            for number in (self._number, loop.epoll, epoll):
                self._poll.register(number, select.POLLIN)

    def begin(self) -> None:
        """Notes that the socket is lent: it counts the tasks that are to run."""
        if self._loop is not None:
            self._tasks.begin()

    def end(self) -> None:
        """Notes that the socket is not lent any more."""
        if self._loop is not None:
            self._tasks.end()

    def wait(self) -> bool:
        """Waits until something comes. Returns True if that is for the socket, and trio still has nothing to do."""
        loop = self._loop
        self._waits += 1
        if loop is None or loop.runnable or self._tasks.count or self._waits > WAITS_MAX:
            self._waits = 0
            return False
        seconds = loop.sleep_seconds(loop.next_deadline())
        if seconds <= 0:
            return False
        ready = self._poll.wait(min(seconds, WAIT_SECONDS))
        return len(ready) == 1 and ready[0][0] == self._number
