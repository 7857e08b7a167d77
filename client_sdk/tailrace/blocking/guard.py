"""Guards a blocking connection: threads of one process use it, one at a time, and only after whole steps.

A process that was forked has a copy of its parent's connection: if both used it, each would take the other's answers.
An exception that comes from outside (KeyboardInterrupt) may leave a step half done, and a session in disorder. Both are
refused at the next call, so that no such call passes for a success.
"""

from __future__ import annotations

import threading

from tailrace.errors import TailraceError, WrongProcess
from tailrace.link.forks import OfOneProcess


class Guard(OfOneProcess):
    """Remembers whether its process was forked, and whether a step has begun and not ended.

    ``lock`` is held around every read and every change of state that threads share. No thread waits for the node while
    it holds the lock.

    ``begin`` and ``end`` enclose what must not be interrupted. There is no ``with`` for it: an interrupt could come
    between its body and its exit, and pass for the end of the step.
    """

    def __init__(self) -> None:
        self._is_within_step = False
        self.lock = threading.RLock()
        self._register()

    def _forked(self, error: WrongProcess) -> None:
        self.lock = threading.RLock()  # no other thread of the parent is here to release its lock

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
