"""Compacts a partition's segments, in a separate process (docs/internals/compaction.md).

policy.py     chooses the segments to compact, and those of a history to drop, pure
task.py       the task and the result of a compaction, as JSON, pure
foreign.py    rows with a wrong key hash
tombstones.py finds tombstones that may go, pure
worker.py     runs a compaction
limiter.py    limits its rate
__main__.py   the process
process.py    runs the process from the node, under trio
"""

from __future__ import annotations

from tailrace_server.compaction.errors import BadTask, CompactionFailed
from tailrace_server.compaction.limiter import RATE_WHILE_WRITES_WAIT
from tailrace_server.compaction.policy import (
    CompactionLimits,
    CompactionPlan,
    PartitionRetention,
    Reason,
    Trim,
    choose,
    trim,
)
from tailrace_server.compaction.process import Rate, run_compaction
from tailrace_server.compaction.task import CompactionResult, CompactionTask, Foreign
from tailrace_server.compaction.worker import compact, discard

__all__ = [
    "RATE_WHILE_WRITES_WAIT",
    "BadTask",
    "CompactionFailed",
    "CompactionLimits",
    "CompactionPlan",
    "CompactionResult",
    "CompactionTask",
    "Foreign",
    "PartitionRetention",
    "Rate",
    "Reason",
    "Trim",
    "choose",
    "compact",
    "discard",
    "run_compaction",
    "trim",
]
