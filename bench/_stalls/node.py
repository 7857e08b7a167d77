"""``tailrace serve`` with an eye on how long its loop does one thing.

    python bench/_stalls/node.py REPORT serve --data DIR ...

To the file REPORT the node writes JSON lines: each
turn of the loop that took longer than _NOTED_SECONDS, with the step in it that took longest and where the task stood
before and after it; and every _TOLD_EVERY_S what it has done so far. Times are of the monotonic clock, which all
processes share.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TextIO

import trio

from tailrace.cli import main
from tailrace_server.config import Config
from tailrace_server.node import command
from tailrace_server.node.node import Node

_NOTED_SECONDS = 0.010
_TOLD_EVERY_S = 0.25


class Turns(trio.abc.Instrument):
    """Measures turns of the loop (from one wait for events to the next), and the steps of tasks in them."""

    def __init__(self, report: TextIO) -> None:
        self._report = report
        self._turn = self._turn_cpu = self._step = self._step_cpu = self._search = 0.0
        self._steps = 0
        self._before = ""
        self._longest: tuple[float, float, str] = (0.0, 0.0, "")

    def after_io_wait(self, timeout: float) -> None:
        self._turn, self._turn_cpu = time.monotonic(), time.thread_time()
        self._longest, self._steps = (0.0, 0.0, ""), 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._before = _place(task)
        self._step, self._step_cpu = time.monotonic(), time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        wall = time.monotonic() - self._step
        self._steps += 1
        if wall > self._longest[0]:
            cpu = time.thread_time() - self._step_cpu
            self._longest = wall, cpu, f"{task.name.rpartition('.')[2]}: {self._before} -> {_place(task)}"

    def before_io_wait(self, timeout: float) -> None:
        wall = time.monotonic() - self._turn
        if self._turn and wall >= _NOTED_SECONDS:
            cpu = time.thread_time() - self._turn_cpu
            step = dict(zip(("wall", "cpu", "where"), self._longest, strict=True))
            self.tell({"kind": "turn", "at": self._turn, "wall": wall, "cpu": cpu, "steps": self._steps, "step": step})

    def collected(self, phase: str, info: dict[str, Any]) -> None:
        """For `gc.callbacks`: a search for garbage begins or ends, whichever task it interrupts."""
        if phase == "start":
            self._search = time.thread_time()
            return
        cpu = time.thread_time() - self._search
        if cpu >= _NOTED_SECONDS:
            self.tell({"kind": "search", "at": time.monotonic(), "cpu": cpu, "generation": info["generation"]})

    def tell(self, value: dict[str, Any]) -> None:
        """Writes a line."""
        self._report.write(json.dumps(value) + "\n")
        self._report.flush()


def _place(task: trio.lowlevel.Task) -> str:
    """The innermost two frames in which a task stands."""
    places: list[str] = []
    here: Any = task.coro
    while here is not None:
        frame = getattr(here, "cr_frame", None) or getattr(here, "gi_frame", None) or getattr(here, "ag_frame", None)
        if frame is not None and "tailrace" in frame.f_code.co_filename:
            places.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}")
        here = getattr(here, "cr_await", None) or getattr(here, "gi_yieldfrom", None) or getattr(here, "ag_await", None)
    return "/".join(places[-2:])


def _counts(node: Node) -> Iterator[tuple[str, float]]:
    flusher, journal = node.storage.flusher.statistics(), node.storage.journal.statistics()
    yield "flushes", flusher.flushes
    yield "compactions", node.storage.compactor.statistics().compactions
    yield "files", journal.files
    yield "file", journal.file
    yield "syncs", journal.syncs
    yield "commits", node.storage.committer.syncs
    yield "usual_sync", node.storage.committer.usual_sync_seconds
    yield "dirty", len(node.storage.flusher._dirty)
    yield "high", sum(partition.high_seq for partition in node.feeds.partitions())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield "cpu", usage.ru_utime + usage.ru_stime


async def _tell_counts(node: Node, turns: Turns) -> None:
    while True:
        loop_cpu = time.thread_time()
        turns.tell({"kind": "counts", "at": time.monotonic(), "loop_cpu": loop_cpu, **dict(_counts(node))})
        await trio.sleep(_TOLD_EVERY_S)


def run(report: Path) -> None:
    """Runs the command line."""
    open_node = command.open_node

    @asynccontextmanager
    async def watched(config: Config) -> AsyncIterator[Node]:
        async with open_node(config) as node:
            with report.open("a") as file:
                turns = Turns(file)
                trio.lowlevel.add_instrument(turns)
                gc.callbacks.append(turns.collected)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_tell_counts, node, turns)
                    yield node
                    nursery.cancel_scope.cancel()
                trio.lowlevel.remove_instrument(turns)
                gc.callbacks.remove(turns.collected)

    command.open_node = watched  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    del sys.argv[1:2]
    run(where)
