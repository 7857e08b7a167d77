"""Decides which ranges of a batch are planned by segments, and cuts them into tasks. Pure.

    range       (start ............................................ end]      of one partition of a history
    segments  [A              ][B        ][C                    ]             of the checkpoint that the driver takes
    tasks       (64 MiB ......](64 MiB .......](64 MiB .............]         the last one ends by stream

The first row that fits decides:

| case            | the job and the range                                            | tasks                       |
|-----------------|------------------------------------------------------------------|-----------------------------|
| TURNED_OFF      | option catch_up is "stream"                                      | one a partition, by stream  |
| NOTHING_FLUSHED | no segment has rows of it; or the node tells of none             | one a partition, by stream  |
| ASKED_FOR       | option catch_up is "segments"                                    | by the size of the segments |
| FILTERED        | the node would send a part only: keys of a prefix, or no values  | one a partition, by stream  |
| FEW_BYTES       | its rows have fewer than BYTES_MIN bytes in segments             | one a partition, by stream  |
| LARGE           | anything else                                                    | by the size of the segments |

Only ranges that may be cut are planned so: those of a history, whose rows stay as they are. Each task may then read any
checkpoint of the node, and gives the same rows when it runs again. A compact feed is one task a partition, because
which rows count is known only to a reader of all of them. Its tasks take checkpoints of their own.
"""

from __future__ import annotations

import enum
import math

from pyspark_tailrace.reading.offsets import PartitionState, agree
from pyspark_tailrace.reading.options import SEGMENTS, STREAM
from pyspark_tailrace.reading.splits import SeqRange
from tailrace.consuming.catch_up_rules import BYTES_MIN
from tailrace.model.position import Position
from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint

# The bytes of segments that a task reads. A task costs Spark some 20 ms, and reads this much in 0.2 s or more.
TASK_BYTES = 64 * 1024 * 1024


class PlanCase(enum.Enum):
    """The rows of the table above."""

    TURNED_OFF = enum.auto()
    NOTHING_FLUSHED = enum.auto()
    ASKED_FOR = enum.auto()
    FILTERED = enum.auto()
    FEW_BYTES = enum.auto()
    LARGE = enum.auto()

    @property
    def by_segments(self) -> bool:
        """Whether the driver takes a checkpoint for the range."""
        return self in (PlanCase.ASKED_FOR, PlanCase.LARGE)


def plan_case(catch_up: str, part: SeqRange, node: PartitionState, *, is_filtered: bool) -> PlanCase:
    """Returns the first row of the table that fits.

    Args:
        catch_up: The option.
        part: A whole range.
        node: The node's state of its partition.
        is_filtered: Whether the node would leave out rows of a stream, or their values.
    """
    if catch_up == STREAM:
        return PlanCase.TURNED_OFF
    nbytes = flushed_bytes(part, node)
    if not nbytes:
        return PlanCase.NOTHING_FLUSHED
    if catch_up == SEGMENTS:
        return PlanCase.ASKED_FOR
    if is_filtered:
        return PlanCase.FILTERED
    return PlanCase.LARGE if nbytes >= BYTES_MIN else PlanCase.FEW_BYTES


def flushed_bytes(part: SeqRange, node: PartitionState) -> int:
    """Returns about how many bytes of the node's segments have rows of ``part``, as if all rows had the same size."""
    trim_seq = node.trim_seq or 0
    begin, end = max(part.start.seq, trim_seq), min(part.stop_seq, node.flushed_seq)
    if end <= begin:
        return 0
    return math.ceil(node.segment_bytes * (end - begin) / (node.flushed_seq - trim_seq))


def fits(told: PartitionCheckpoint, part: SeqRange) -> bool:
    """Returns whether the segments of a checkpoint begin ``part``, in the history that it was planned in."""
    begin, end = part.start.seq, min(part.stop_seq, told.seq)
    return told.trim_seq <= begin < end and agree(part.end, told.log, end)


def cut_by_segments(part: SeqRange, told: PartitionCheckpoint, task_bytes: int) -> list[SeqRange]:
    """Returns the pieces of ``part``, which ``fits``: each has at most about ``task_bytes`` of the segments.

    The last one also has the rows above the segments.
    """
    sizes = [(file, _bytes_in(file, part)) for file in told.segments]
    total = sum(nbytes for _, nbytes in sizes)
    count = min(math.ceil(total / task_bytes), part.rows)
    bounds, before = [part.start.seq], 0
    for file, nbytes in sizes:
        # The bounds within this segment, as if all its rows had the same size.
        first, last = max(part.start.seq, file.first_seq - 1), min(part.stop_seq, file.last_seq)
        while nbytes and len(bounds) < count and (goal := total * len(bounds) // count) <= before + nbytes:
            seq = first + (last - first) * (goal - before) // nbytes
            bounds.append(max(seq, bounds[-1]))
        before += nbytes
    bounds = sorted({seq for seq in bounds if seq < part.stop_seq})
    starts = [part.start, *(Position.at(part.end.log, seq) for seq in bounds[1:])]
    stops = [*bounds[1:], part.stop_seq]
    return [part._replace(start=start, stop_seq=stop) for start, stop in zip(starts, stops, strict=True)]


def _bytes_in(file: CheckpointFile, part: SeqRange) -> int:
    """Returns about how many bytes of a segment have rows of ``part``."""
    first, last = max(part.start.seq, file.first_seq - 1), min(part.stop_seq, file.last_seq)
    return max(0, file.nbytes * (last - first) // (file.last_seq - file.first_seq + 1))
