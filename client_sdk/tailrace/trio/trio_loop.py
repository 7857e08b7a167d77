"""Tells about the next step of trio's loop. trio does not, so this reads fields of it.

If a release of trio has others, `TrioLoop.of_this_run` finds it out, and trio waits as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import trio


class TrioLoop:
    """The parts of trio's loop that tell its next step."""

    def __init__(
        self,
        runnable: Collection[object],
        next_deadline: Callable[[], float],
        sleep_seconds: Callable[[float], float],
        epoll: int,
    ) -> None:
        """``sleep_seconds`` returns how long a deadline is ahead. ``epoll`` is the descriptor of trio's set."""
        self.runnable = runnable
        self.next_deadline = next_deadline
        self.sleep_seconds = sleep_seconds
        self.epoll = epoll

    @classmethod
    def of_this_run(cls) -> TrioLoop | None:
        """Returns that of the present run of trio; None if it has other fields, or waits in another thread."""
        try:
            run: Any = trio._core._run
            runner = run.GLOBAL_RUN_CONTEXT.runner
            if runner.is_guest:
                return None
            epoll = runner.io_manager._epoll.fileno()
            return cls(runner.runq, runner.deadlines.next_deadline, runner.clock.deadline_to_sleep_time, epoll)
        except AttributeError:
            return None


_UNKNOWN = 1 << 40


class TasksToRun(trio.abc.Instrument):
    """Counts the tasks that are to run beside the present one, from a ``begin`` to its ``end``.

    trio runs the tasks that are ready together one after the other, and its queue does not have those that are left of
    such a pass. The count is not known, and great, until trio has waited once. A run of trio has one for all who want
    the count: each step of a task calls it.
    """

    def __init__(self) -> None:
        self.count = 0
        self._begun = 0

    def begin(self) -> None:
        """Begins to count, unless it counts already."""
        self._begun += 1
        if self._begun == 1:
            self.count = _UNKNOWN
            trio.lowlevel.add_instrument(self)

    def end(self) -> None:
        """Ends the counting, if each that has begun has ended."""
        self._begun -= 1
        if not self._begun:
            trio.lowlevel.remove_instrument(self)

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        self.count += 1

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count -= 1

    def before_io_wait(self, timeout: float) -> None:
        if timeout > 0:  # else a task is to run
            self.count = 0
