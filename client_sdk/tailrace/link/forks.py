"""Handles that belong to one process: in a process that was forked from it they are copies, and refuse every call.

Parent and child would share the socket, so each would take the other's answers. The child learns of it once, right
after the fork: in the parent a handle pays for nothing but its registration.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn

from tailrace.errors import WrongProcess

_handles: weakref.WeakSet[OfOneProcess] = weakref.WeakSet()


def _wrong_process(pid: int) -> WrongProcess:
    """Returns the error of a call in this process to a handle that belongs to process ``pid``."""
    return WrongProcess(
        f"this client or handle belongs to process {pid}, this is process {os.getpid()}, which was forked from it: "
        "connect, or make another handle, in this process"
    )


class Unpicklable:
    """A base of what has a connection: to send it to another process, or to copy it, is refused with the reason."""

    def __reduce__(self) -> NoReturn:
        """Raises TypeError, as for all that cannot be pickled."""
        raise TypeError(
            "a client, or a handle of it, cannot be pickled or copied, since its connection belongs to this process: "
            "connect in the other process, inside of the function that runs there"
        )


class OfOneProcess(Unpicklable):
    """A base of handles that call ``_register`` when they are made.

    In a forked process ``_forked_from`` is the parent's id. Nothing of the parent's trio run may be touched there:
    to wake one of its tasks would put that task into the child's run. A handle that can begin anew in the child, as
    that of a blocking client, sets it to 0 again in ``_forked``.
    """

    _forked_from = 0

    def _register(self) -> None:
        _handles.add(self)

    def check_process(self) -> None:
        """Raises WrongProcess in a forked process."""
        if self._forked_from:
            raise _wrong_process(self._forked_from)

    def _forked(self, error: WrongProcess) -> None:
        """Makes the calls raise ``error`` that do not ``check_process`` themselves. Drops sockets and locks."""


def _after_fork_in_child() -> None:
    pid = os.getppid()
    copies = [handle for handle in _handles if not handle._forked_from]
    for handle in copies:  # first of all, so that an error below leaves no handle that works
        handle._forked_from = pid
    for handle in copies:
        handle._forked(_wrong_process(pid))


os.register_at_fork(after_in_child=_after_fork_in_child)
