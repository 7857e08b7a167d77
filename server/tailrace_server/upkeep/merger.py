"""The merging of small blocks: the stable blocks of a write queue become few as they age.

Until then they take twice their bytes, and a reader takes a step for each. A merge changes no row.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

import trio

from tailrace.block import Block
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.tree.aging import MergePlan
from tailrace_server.upkeep.flush_failures import error_of
from tailrace_server.upkeep.flushed_segment import flushable_seq
from tailrace_server.upkeep.lulls import Lulls

# The time that one call gives to merges: due flushes wait for it.
PASS_SECONDS = 1.0
# A queue with this number of unmerged blocks has no time to wait for lulls; nor have more queues: a few hundred lulls a
# second, as of many writers that share their fsyncs, would not be enough for them.
BEHIND_BLOCKS = 8_192
QUEUES_IN_LULLS = 16
# The partitions that one turn of the loop checks: a millisecond or two.
LOOKS_AT_ONCE = 512


class Merger:
    """Merges the small blocks of a node's partitions. The flusher tells which may have some."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.lulls = Lulls(host.clock.monotonic)
        self._waiting = 0  # partitions of the last call of `merge_all`
        self.has_left = False  # a call of `merge_all` since `begin_pass` has had no time for all

    def begin_pass(self) -> None:
        """Notes that all partitions that may have something to merge are merged from now on."""
        self.has_left = False

    async def merge_all(self, waiting: dict[Partition, None], *, keep_unstable: bool = True) -> str:
        """Merges the stable blocks of the partitions ``waiting``. Returns the error of one, "" if all succeeded.

        Removes a partition from ``waiting`` once all of it is merged; with ``keep_unstable`` it stays for blocks that
        become stable. After PASS_SECONDS the rest waits for the next call: after a start there may be a minute's work,
        and due flushes do not wait for it.
        """
        failure, until = "", self._host.clock.monotonic() + PASS_SECONDS
        self._waiting = len(waiting)
        for number, partition in enumerate(list(waiting), 1):
            failure = await error_of(functools.partial(self.merge, partition, until), partition) or failure
            if self._host.clock.monotonic() >= until:
                self.has_left = True
                break
            if not keep_unstable or partition.is_dropped or flushable_seq(partition) == partition.high_seq:
                waiting.pop(partition, None)
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return failure

    async def merge(self, partition: Partition, until: float = math.inf) -> None:
        """Merges many small stable blocks into few, in short steps, between which other tasks run.

        Begins no step after ``until`` (monotonic seconds), but the first.
        """
        while partition.tree.is_merge_due(flushable_seq(partition)):
            plans: list[MergePlan] = []
            steps = _merge_steps(partition, plans)
            if self._waiting <= QUEUES_IN_LULLS and partition.tree.unmerged_blocks < BEHIND_BLOCKS:
                await self.lulls.run(steps)
            else:
                for _ in steps:
                    await trio.lowlevel.checkpoint()
            for plan in plans:  # with compressed blocks
                _replace(partition, plan, await self._host.workers.in_thread(plan.merge))
            if self._host.clock.monotonic() >= until:
                return


def _merge_steps(partition: Partition, in_threads: list[MergePlan]) -> Iterator[None]:
    """Does a merge in steps, or adds its plan to ``in_threads`` if a step with compressed blocks would take long."""
    plan = partition.tree.merge_plan(flushable_seq(partition), partition.merge_cuts)
    if plan is None:  # a rollback came before
        return
    if plan.is_compressed:
        in_threads.append(plan)
        return
    yield
    merged = []
    for block in plan.steps():
        if block is not None:
            merged.append(block)
        yield
    _replace(partition, plan, merged)


def _replace(partition: Partition, plan: MergePlan, merged: Sequence[Block]) -> None:
    partition.replace_tree(partition.tree.replaced(plan, merged, partition.merge_cuts))
