"""Runs long work beside the loop: in threads, and in processes of their own. A simulator runs it on the spot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

from tailrace_server.compaction.process import Rate, run_compaction
from tailrace_server.compaction.task import CompactionResult, CompactionTask
from tailrace_server.compaction.worker import compact_or_discard
from tailrace_server.host.disk import RealDisk

T = TypeVar("T")

# Reads of segments and flushes: enough that one slow disk read holds up no other, few enough for two cores.
THREADS_MAX = 4


class Workers(Protocol):
    """Runs blocking functions beside the loop."""

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Returns ``function()``, run in a thread. A cancellation waits until it has ended."""
        ...

    async def in_own_thread(self, function: Callable[[], T]) -> T:
        """As ``in_thread``, without waiting for a thread that other work has: for the fsync that writers wait for."""
        ...

    async def compact(self, task: CompactionTask, rate: Rate) -> CompactionResult:
        """Does ``task`` no faster than ``rate``. Raises as ``compaction.process.run_compaction``."""
        ...

    async def compact_small(self, task: CompactionTask) -> CompactionResult:
        """Does ``task``, which takes some milliseconds of processor, in a thread. Raises as ``compact``.

        A cancellation waits until it has ended.
        """
        ...


class ThreadWorkers:
    """Threads of this process, a bounded number of them, and a process for each compaction."""

    def __init__(self, threads_max: int = THREADS_MAX) -> None:
        self._threads_max = threads_max
        self._limiter: trio.CapacityLimiter | None = None

    async def in_thread(self, function: Callable[[], T]) -> T:
        if self._limiter is None:  # a limiter belongs to the loop that it is made in
            self._limiter = trio.CapacityLimiter(self._threads_max)
        # Not abandoned at a cancellation: no file may be closed while a thread reads it.
        return await trio.to_thread.run_sync(function, abandon_on_cancel=False, limiter=self._limiter)

    async def in_own_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function, abandon_on_cancel=False)

    async def compact(self, task: CompactionTask, rate: Rate) -> CompactionResult:
        return await run_compaction(task, rate)

    async def compact_small(self, task: CompactionTask) -> CompactionResult:
        return await self.in_thread(lambda: compact_or_discard(task, RealDisk()))
