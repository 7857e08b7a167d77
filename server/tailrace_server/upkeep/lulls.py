"""The moments right after answers, in which work is done that would hold up requests at other times.

A client that sends one request after the other sends nothing for some 100 µs after an answer. A step of that length
holds up none of its requests then, and at any other moment nearly always one.

    answers were sent ── begins ──> one step
    no answers for LATE_SECONDS ──> the steps, one after the other, with other tasks in between
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import trio

# Work does not wait longer for a lull, and does not wait if the last one was that long ago.
LATE_SECONDS = 0.005
# If a step was shorter than this, another one follows in the same lull.
SHORT_SECONDS = 0.00003


class _Work:
    """Steps that are taken here and there."""

    __slots__ = ("_steps", "done", "error", "taken")

    def __init__(self, steps: Iterator[object]) -> None:
        self._steps = steps
        self.taken = 0
        self.error: Exception | None = None
        self.done = trio.Event()

    def step(self) -> None:
        """Takes the next step. Notes the end, or the error that a step has raised."""
        self.taken += 1
        try:
            next(self._steps)
        except StopIteration:
            self.done.set()
        except Exception as error:
            self.error = error
            self.done.set()


class Lulls:
    """The lulls of a node. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_at = -math.inf  # the last one
        self._works: list[_Work] = []

    def begins(self) -> None:
        """Takes a step of the work that waits. Call it right after answers were sent."""
        self._began_at = now = self._clock()
        works = self._works
        while works:
            works[0].step()
            if works[0].done.is_set():
                del works[0]
            if self._clock() - now >= SHORT_SECONDS:
                return

    async def run(self, steps: Iterator[object]) -> None:
        """Takes all ``steps``, most of them in lulls while there are some. Raises the error of a step.

        A cancellation leaves the rest undone; no step is cut.
        """
        work = _Work(steps)
        self._works.append(work)
        try:
            while not work.done.is_set():
                taken = work.taken
                if self._clock() - self._began_at < LATE_SECONDS:
                    with trio.move_on_after(LATE_SECONDS):
                        await work.done.wait()
                else:
                    await trio.lowlevel.checkpoint()
                if work.taken == taken:
                    work.step()
        finally:
            if work in self._works:
                self._works.remove(work)
        if work.error is not None:
            raise work.error
