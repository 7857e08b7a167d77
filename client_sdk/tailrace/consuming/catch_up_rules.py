"""The rules of catching up: which partition asks for a checkpoint, and which of its segments are read. Pure.

    far behind? ──> checkpoint ──> segments above the position ──> snapshots ──> the stream, from the last one's end
                                      (0, 900]  (900, 1200]         one for each segment

A segment is read as the node's stream would read it: it is a run, a snapshot of its own. So each position means the
same, wherever a consumer resumes with it. Source: docs/protocol/streams.md, "Segments first".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.lazy import numpy_or_none
from tailrace.consuming.resume import ResumeAction, bounds, decide
from tailrace.model import Level
from tailrace.model.failover import SEQ_MAX, SNAPSHOT_LAST_UNKNOWN, common_seq, resume_point
from tailrace.wire.stream_messages import StreamOk

if TYPE_CHECKING:
    from tailrace.consuming.partition import ConsumedPartition
    from tailrace.consuming.subscription import Subscription
    from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint

# With "auto": below this many seqs no checkpoint is asked for, and below this many bytes its segments are not read.
# The stream has sent as much before the third round trip of a copy is over.
SEQS_MIN = 100_000
BYTES_MIN = 16 * 1024 * 1024


class SegmentPlan(NamedTuple):
    """The segments that are read now, oldest first; none if the stream is asked for, and ``reason`` says why."""

    files: tuple[CheckpointFile, ...]
    reason: str = ""


def is_far_behind(subscription: Subscription, partition: ConsumedPartition, high_seq: int) -> bool:
    """Tells whether a checkpoint of the partition is asked for.

    Args:
        subscription: The subscription of the consumer.
        partition: The partition.
        high_seq: The newest seq of the node.
    """
    mode, position = subscription.catch_up, partition.position
    is_timed = subscription.since_us is not None or subscription.until_us is not None
    if mode == "stream" or position is None or is_timed or position.snapshot_last == SNAPSHOT_LAST_UNKNOWN:
        return False
    last_seq = high_seq if partition.end_seq is None else min(high_seq, partition.end_seq)
    if mode == "segments":
        return last_seq > position.seq
    # The node sends only the rows of a prefix. All rows would have to come otherwise.
    is_whole = not subscription.filter.selects
    return is_whole and last_seq - position.seq >= SEQS_MIN and numpy_or_none() is not None


def checkpoint_level(visibility: Level) -> Level:
    """Returns the level of the checkpoint for a consumer: rows that may still be lost are in no segment."""
    return Level.QUORUM if visibility == Level.QUORUM else Level.DISK


def plan_segments(
    mode: str, partition: ConsumedPartition, told: PartitionCheckpoint, *, exact_end: bool = False
) -> SegmentPlan:
    """Returns the segments of a checkpoint that a partition reads.

    With ``exact_end`` the last one may reach above the end, and is read up to there.

    The node decides about everything else than going on at the position: rollbacks, trimmed rows, its own delay. Then
    the stream is asked for.
    """
    position = partition.position
    assert position is not None, "is_far_behind was asked before"
    if not told.log or told.log.term < position.log.term:
        return SegmentPlan((), "the node of the checkpoint is behind")
    state = partition.resume_state
    seq, first, last = bounds(state)
    resume = resume_point(position.log, seq, first, last, position.purge_seq, told.log, told.seq, told.purge_seq)
    decision = decide(state, StreamOk(partition.id, seq, told.log, told.seq))
    if resume.seq != seq or decision.action is not ResumeAction.STREAM:
        return SegmentPlan(
            (), f"the checkpoint ends at {told.seq}, and its history is not the consumer's ({resume.why.value})"
        )
    if 0 < seq < told.trim_seq:
        return SegmentPlan((), f"rows up to seq {told.trim_seq} were trimmed")
    end_seq = _end_in(partition, told, last)
    files = tuple(
        file
        for file in told.segments
        if seq < file.last_seq and (file.first_seq if exact_end else file.last_seq) <= end_seq
    )
    if not files or files[-1].last_seq < last:
        return SegmentPlan((), f"the segments end at seq {told.seq}, and none is above seq {seq} and below the end")
    nbytes = sum(file.nbytes for file in files)
    if mode == "auto" and nbytes < BYTES_MIN:
        return SegmentPlan((), f"the segments have {nbytes} bytes only")
    return SegmentPlan(files)


def _end_in(partition: ConsumedPartition, told: PartitionCheckpoint, last: int) -> int:
    """Returns the last seq that a segment may have; a part of a segment is read by the stream."""
    if partition.end_seq is None:
        return SEQ_MAX
    end_log = partition.end_log
    if end_log and common_seq(end_log, partition.end_seq, told.log, SEQ_MAX) != partition.end_seq:
        return 0  # the end is of another history: the stream finds the right one
    return max(partition.end_seq, last)


def snapshots_of(files: tuple[CheckpointFile, ...], promised_seq: int) -> Iterator[tuple[CheckpointFile, int]]:
    """Yields each segment with the last seq of its snapshot. The first snapshot ends at or above ``promised_seq``."""
    first_end = next(file.last_seq for file in files if file.last_seq >= promised_seq)
    for file in files:
        yield file, max(file.last_seq, first_end) if file.last_seq <= first_end else file.last_seq
