"""Guards a blocking connection: threads of one process use it, one at a time, and only after whole steps.

A process that was forked has a copy of its parent's connection: if both used it, each would take the other's answers.
An exception that comes from outside (KeyboardInterrupt) may leave a step half done, and a session in disorder. Both are
refused at the next call, so that no such call passes for a success. A handler of a signal that calls the client in the
middle of a call is refused at once, and the call goes on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from tailrace.errors import TailraceError, WrongProcess
from tailrace.link.forks import OfOneProcess

# The packages through whose code the errors of a connection come.
_OF_CLIENT = frozenset({"tailrace", "socket", "ssl"})


class Guard(OfOneProcess):
    """Remembers whether its process was forked, and whether a step has begun and not ended.

    ``lock`` is held around every read and every change of state that threads share. No thread waits for the node while
    it holds the lock.

    ``begin`` and ``end`` enclose what must not be interrupted. There is no ``with`` for it: an interrupt could come
    between its body and its exit, and pass for the end of the step.
    """

    def __init__(self) -> None:
        self._is_within_step = False
        self._make_lock()
        self._register()

    def _forked(self, error: WrongProcess) -> None:
        self._make_lock()  # no other thread of the parent is here to release its lock

    def _make_lock(self) -> None:
        self.lock = threading.RLock()
        self.is_held: Callable[[], bool] = self.lock._is_owned  # type: ignore[attr-defined]  # as `Condition` uses it

    def check_caller(self, is_within_call: bool = False) -> None:
        """Raises RuntimeError if this thread holds the lock already, or ``is_within_call``.

        Then a handler of a signal has called the client within a call. To be called at the beginning of each.
        """
        if is_within_call or self.is_held():
            raise RuntimeError(
                "this thread is in a call of the client, and a handler of a signal has called the client again: let "
                "the handler set a flag, and look at the flag between two calls"
            )

    def check_and_begin(self) -> None:
        """A step begins, after a ``check``: both in one call, since each request has several steps."""
        if self._forked_from or self._is_within_step:
            self.check()
        self._is_within_step = True

    def begin(self) -> None:
        """A step begins."""
        self._is_within_step = True

    def end(self) -> None:
        """A step has ended; later code may be interrupted."""
        self._is_within_step = False

    @property
    def is_broken(self) -> bool:
        """With ``lock`` held, between steps: the last one was interrupted."""
        return self._is_within_step

    def check(self) -> None:
        """Raises WrongProcess in a forked process, TailraceError after a step that was interrupted.

        To be called with ``lock`` held, between steps.
        """
        if self._forked_from:
            self.check_process()
        if self._is_within_step:
            raise TailraceError(
                "this client was interrupted in the middle of a step, and its unfinished requests may or may not "
                "be done: connect again"
            )


def raise_foreign(error: Exception) -> None:
    """Raises ``error`` if a handler of a signal has raised it, and no call of the system or of the client.

    Its way here then leads through code of the handler, also if it is an error of a socket of the handler's own.
    """
    place = error.__traceback__
    while place is not None:
        if str(place.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _OF_CLIENT:
            raise error
        place = place.tb_next


def wake(turn: threading.Lock) -> None:
    """Ends the sleep of a thread that acquires its ``turn``; it may have ended by itself."""
    with contextlib.suppress(RuntimeError):
        turn.release()
