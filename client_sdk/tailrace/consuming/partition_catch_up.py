"""One partition that catches up by segments: what is asked for next, and what has come for the program. Sans-IO.

segments    [A: open] [B: its footer is on the way]           asked for in their order
steps       start of A's snapshot, blocks, blocks, end        handed out in their order, as they come
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tailrace.consuming.fetched_range import BlockRange, FetchedRange
from tailrace.model.failover import SEQ_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace.consuming.fetched_segment import FetchedSegment
    from tailrace.consuming.partition import ConsumedPartition
    from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint

# The segments of a partition that are open or are being opened: the footer of one comes with the blocks of the other.
_SEGMENTS_OPEN_MAX = 2


class SnapshotBegin(NamedTuple):
    """A snapshot up to ``last_seq`` begins."""

    last_seq: int


class SnapshotStop(NamedTuple):
    """The snapshot that began ends at ``last_seq``."""

    last_seq: int


CopyStep: TypeAlias = SnapshotBegin | BlockRange | SnapshotStop


class PartitionCatchUp:
    """The segments of one checkpoint that a partition reads. Only its own methods change its fields.

    ``told`` is the checkpoint; None until it has come. ``is_over``: the answers that are under way do not count.
    ``snapshot_last`` is the last seq of the snapshot that the program is in, and ``is_announced`` tells whether the
    program knows of it. ``held_bytes`` are those that were asked for, or have come, and were not handed out.
    ``damaged`` are the ids of segments whose bytes were wrong.
    """

    def __init__(self, partition: ConsumedPartition) -> None:
        self.partition = partition
        self.told: PartitionCheckpoint | None = None
        self.is_over = False
        self.snapshot_last = 0
        self.is_announced = False
        self.held_bytes = 0
        self.damaged: tuple[bytes, ...] = ()
        self._place = b"", 0
        self._stop_seq = SEQ_MAX
        self._files: collections.deque[tuple[CheckpointFile, int]] = collections.deque()
        self._segments: collections.deque[FetchedSegment] = collections.deque()
        self._steps: collections.deque[CopyStep] = collections.deque()
        self._begun_last = 0  # the end of the snapshot whose beginning is the last one among all steps

    def begin(
        self, told: PartitionCheckpoint, files: Iterable[tuple[CheckpointFile, int]], stop_seq: int = SEQ_MAX
    ) -> None:
        """Takes the segments to read, oldest first, each with the last seq of its snapshot.

        Blocks that begin above ``stop_seq`` are left out. The snapshot that has them does not end then.
        """
        self._stop_seq = stop_seq
        self.told = told
        self._place = told.feed_id, told.partition
        self._files.extend(files)

    def end(self) -> int:
        """Drops everything. Returns the bytes that it held."""
        self.is_over = True
        held_bytes, self.held_bytes = self.held_bytes, 0
        self._files.clear()
        self._segments.clear()
        self._steps.clear()
        return held_bytes

    @property
    def is_done(self) -> bool:
        """Whether everything was handed out."""
        if self.told is None or self.is_over:
            return False
        return not self._files and not self._segments and not self._steps

    # Asked for

    def next_range(self, nbytes: int) -> FetchedRange | None:
        """Returns the next range to ask for, of ``nbytes`` bytes or one block; None if answers have to come first."""
        found = self._next_range(nbytes)
        if found is not None:
            self.held_bytes += found.held_bytes
        return found

    def _next_range(self, nbytes: int) -> FetchedRange | None:
        if self._segments and self._segments[0].is_open:
            found = self._segments[0].next_blocks(nbytes)
            self._steps.append(found)
            self._pass_asked()
            return found
        for segment in self._segments:
            footer = segment.next_of_footer()
            if footer is not None:
                return footer
        if self._files and len(self._segments) < _SEGMENTS_OPEN_MAX:
            from tailrace.consuming.fetched_segment import FetchedSegment  # needs numpy, which takes 0.1 s to load

            told, snapshot_last = self._files.popleft()
            self._segments.append(FetchedSegment(told, *self._place, snapshot_last, self._stop_seq))
            return self._segments[-1].next_of_footer()
        return None

    def took_footer(self, range: FetchedRange) -> None:
        """Takes a range of a footer that has come. Raises BadSegment if it is not that of the checkpoint's segment."""
        segment = next(segment for segment in self._segments if segment.told.id == range.segment_id)
        position = self.partition.position
        assert position is not None, "a partition without a position does not catch up"
        segment.took(range, position.seq)
        if segment.is_open and segment is self._segments[0]:
            self._pass_asked()

    def _pass_asked(self) -> None:
        """Passes over segments that are open and have no blocks to ask for. The first one then has some, or waits."""
        while self._segments and self._segments[0].is_open:
            segment = self._segments[0]
            if segment.snapshot_last != self._begun_last:
                self._begun_last = segment.snapshot_last
                self._steps.append(SnapshotBegin(segment.snapshot_last))
            local = segment.local_blocks()
            footer_bytes = segment.drop_footer()
            if local is None:
                self.held_bytes -= footer_bytes
            else:
                local.held_bytes = footer_bytes  # until its blocks are handed out
                self._steps.append(local)
            if segment.has_more:
                return
            self._segments.popleft()
            if segment.told.last_seq == segment.snapshot_last and not segment.is_cut:
                self._steps.append(SnapshotStop(segment.snapshot_last))

    # Handed out

    @property
    def has_steps(self) -> bool:
        """Whether there is a step to hand out, now or once it has come."""
        return bool(self._steps)

    @property
    def next_step(self) -> CopyStep | None:
        """The next step; None if it has not come."""
        if not self._steps:
            return None
        step = self._steps[0]
        return None if isinstance(step, BlockRange) and step.data is None else step

    def pass_step(self) -> None:
        """Drops the next step: all of it was handed out."""
        step = self._steps.popleft()
        if isinstance(step, BlockRange):
            self.held_bytes -= step.held_bytes

    def enter_snapshot(self, last_seq: int) -> None:
        """Notes that the program is in a snapshot up to ``last_seq``, of which it does not know yet."""
        self.snapshot_last, self.is_announced = last_seq, False

    def note_damaged(self, segment_id: bytes) -> None:
        """Notes that the bytes of a segment were wrong."""
        self.damaged = (segment_id,)

    def note_announced(self) -> None:
        """Notes that the program knows of the snapshot."""
        self.is_announced = True
