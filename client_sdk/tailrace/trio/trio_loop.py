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
