"""Compares a copy with a checkpoint of a node: decides about the copy, and finds missing files. Pure.

the newest branches                        their history, and the seqs         decided
-----------------------------------------  ----------------------------------  -----------------------------------
the copy has no rows                       any                                 TAKE
the node's has a lower term, or none       any                                 KEEP: the node is behind
the same, or the node's has a higher term  the same; the node's is not lower   TAKE
the same, or the node's has a higher term  the same; the node's is lower       KEEP: the node is behind
the node's has a higher term               the copy's ended below its seq      ROLL_BACK: the copy's rest was lost
of one term and not the same               any                                 REFUSE: another history
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tailrace.copies.layout import SEGMENT_SUFFIX, TEMPORARY_SUFFIX, PartitionCopy, SegmentCopy
from tailrace.model.failover import common_seq
from tailrace.wire.file_parts import PART_BYTES_MAX
from tailrace.wire.segment_messages import PartitionCheckpoint

# The bytes that one partition asks for at a time: at first, at least, and at most.
WINDOW_BYTES_FIRST = 1024 * 1024
WINDOW_BYTES_MIN = 64 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
# The parts that one partition asks for at a time: a node lets 64 of a connection wait, and refuses others for now.
WINDOW_PARTS_MAX = 16
FAST_SECONDS = 0.5
SLOW_SECONDS = 4.0

_ID_CHARS = 32


class Action(enum.Enum):
    """The outcome for the copy."""

    TAKE = "take"
    KEEP = "keep"
    ROLL_BACK = "roll back"
    REFUSE = "refuse"


class Comparison(NamedTuple):
    """An action, and the last seq that copy and node have in common."""

    action: Action
    common_seq: int


def compare(held: PartitionCopy | None, told: PartitionCheckpoint) -> Comparison:
    """Compares the copy ``held`` with the checkpoint ``told`` of a node, by the table of the module."""
    if held is None or not held.seq:
        return Comparison(Action.TAKE, 0)
    if told.log.term < held.log.term:
        return Comparison(Action.KEEP, 0)
    if told.log.term == held.log.term and told.log.branch != held.log.branch:
        return Comparison(Action.REFUSE, 0)
    # Without a branch in common, everything of the copy was lost, or there were too many branches since.
    common = common_seq(held.log, held.seq, told.log, told.seq) or 0
    if common < held.seq and told.log.branch != held.log.branch:
        return Comparison(Action.ROLL_BACK, common)
    # The files of a node may end below the base of its newest branch.
    return Comparison(Action.TAKE if told.seq >= held.seq else Action.KEEP, common)


def copy_of(told: PartitionCheckpoint) -> PartitionCopy:
    """Returns the copy that has exactly the segments of a checkpoint."""
    segments = tuple(SegmentCopy(*segment) for segment in told.segments)
    return PartitionCopy(told.partition, told.seq, told.purge_seq, told.log, segments)


def missing_segments(copy: PartitionCopy, sizes: Mapping[str, int]) -> list[SegmentCopy]:
    """Returns the segments whose files a directory lacks, oldest first; ``sizes`` are those of its files, by name."""
    return [segment for segment in copy.segments if sizes.get(segment.file_name) != segment.nbytes]


def surplus_files(copy: PartitionCopy, names: Iterable[str]) -> list[str]:
    """Returns the files of ``names`` that a fetch has made, and that ``copy`` does not have."""
    kept = {segment.file_name for segment in copy.segments}
    return sorted(name for name in names if name not in kept and is_of_a_segment(name))


def unused_files(copies: Iterable[PartitionCopy], names: Iterable[str]) -> list[str]:
    """Returns the files of ``names`` that a fetch has made, and that are neither whole nor half ones of ``copies``."""
    used = {segment.file_name for copy in copies for segment in copy.segments}
    return sorted(name for name in names if name.removesuffix(TEMPORARY_SUFFIX) not in used and is_of_a_segment(name))


def is_of_a_segment(name: str) -> bool:
    """Tells whether a file of this name is a segment, or the beginning of one."""
    text = name.removesuffix(TEMPORARY_SUFFIX).removesuffix(SEGMENT_SUFFIX)
    is_named = name in (text + SEGMENT_SUFFIX, text + SEGMENT_SUFFIX + TEMPORARY_SUFFIX)
    return is_named and len(text) == _ID_CHARS and not set(text) - set("0123456789abcdef")


class Part(NamedTuple):
    """A part of a segment's file that is asked for at once."""

    segment: SegmentCopy
    offset: int
    nbytes: int


class PartCutter:
    """Cuts files into parts, one file after the other, each from the byte that it begins with to its last."""

    def __init__(self, files: Iterable[tuple[SegmentCopy, int]]) -> None:
        """``files`` are segments, and the count of bytes that are there of each."""
        self._files = collections.deque(files)

    def next_parts(self, window_bytes: int, part_bytes_max: int) -> list[Part]:
        """Returns parts of ``window_bytes`` together, of ``part_bytes_max`` at most each; none at the end.

        Returns WINDOW_PARTS_MAX parts at most.
        """
        parts: list[Part] = []
        while self._files and window_bytes > 0 and len(parts) < WINDOW_PARTS_MAX:
            segment, offset = self._files.popleft()
            nbytes = min(segment.nbytes - offset, part_bytes_max, window_bytes)
            if nbytes > 0:
                parts.append(Part(segment, offset, nbytes))
                window_bytes -= nbytes
            if offset + nbytes < segment.nbytes:
                self._files.appendleft((segment, offset + nbytes))
        return parts


def part_bytes(window_bytes: int) -> int:
    """Returns the bytes of one part. A slow link, or one that breaks often, gets small ones, and so makes progress."""
    return min(max(window_bytes // 8, WINDOW_BYTES_MIN), PART_BYTES_MAX)


def next_window(window_bytes: int, seconds: float) -> int:
    """Returns how many bytes to ask for next, if ``window_bytes`` took this time: a slow link gets small windows.

    A request has to be answered within ``retry_for`` seconds, and a fast link should never be idle.
    """
    if seconds < FAST_SECONDS:
        return min(2 * window_bytes, WINDOW_BYTES_MAX)
    if seconds > SLOW_SECONDS:
        return max(window_bytes // 4, WINDOW_BYTES_MIN)
    return window_bytes
