"""Folding a partition's segments, in a process of its own (docs/internals/compaction.md).

policy.py     what is folded, and what of a history goes, pure
task.py       what a compaction is told and what it answers, as JSON, pure
dedup.py      which rows survive, pure
foreign.py    rows whose hash is not that of their key
reading.py    the rows of several segments, in batches
worker.py     a compaction
limiter.py    how fast it may go
__main__.py   the process
process.py    the process seen from the node, under trio
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
