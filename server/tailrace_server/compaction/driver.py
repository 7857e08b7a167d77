"""Runs a compaction by one of two threads: beside writes by one that gives way to every other program at once.

A low priority alone is no help to a write. If the node wakes up on the processor of a compaction, Linux lets the
compaction go on until the next tick of the clock, up to 4 ms, whatever its niceness. Only a thread of the policy
SCHED_IDLE gives way at once. But it gets nearly nothing while others want all processors, and without privileges it
cannot leave the policy again. So each step is run by the thread of the present policy:

    the calling thread   nice 10       no writes come in, or compactions are behind
    the gentle thread    SCHED_IDLE    writes come in
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

T = TypeVar("T")

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeAlias

    # Work that yields, after each step, whether the next one is long.
    Steps: TypeAlias = Generator[bool, None, T]


class Driver(Generic[T]):
    """Runs ``steps``.

    A long step is for the calling thread: the gentle one might never come to its end. One thread calls ``run``, any
    other may set ``is_gentle``.
    """

    def __init__(self, steps: Steps[T]) -> None:
        self.is_gentle = False  # read after each step
        self._steps = steps
        self._is_next_long = False
        self._end: BaseException | None = None  # what the gentle thread has got from the steps
        self._gentle_turn = threading.Semaphore(0)
        self._own_turn = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def run(self) -> T:
        """Runs all steps. Returns what they return, or raises their error."""
        try:
            while True:
                if self._goes_gently:
                    self._hand_over()
                self._step()
        except StopIteration as end:
            value: T = end.value
            return value

    @property
    def _goes_gently(self) -> bool:
        return self.is_gentle and not self._is_next_long

    def _step(self) -> None:
        self._is_next_long = next(self._steps)

    def _hand_over(self) -> None:
        """Lets the gentle thread run steps, as long as they are for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_gently, daemon=True)
            self._thread.start()
        self._gentle_turn.release()
        self._own_turn.acquire()
        if self._end is not None:
            raise self._end

    def _run_gently(self) -> None:
        give_way()
        while self._end is None:
            self._gentle_turn.acquire()
            try:
                while self._goes_gently:
                    self._step()
            except BaseException as error:
                self._end = error
            self._own_turn.release()


def give_way() -> None:
    """Has this thread run only while no other one wants its processor, if the system can do that."""
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):  # a container may forbid it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
