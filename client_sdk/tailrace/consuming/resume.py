"""How a consumer resumes: the numbers of its request, and the decision that follows from the answer. Pure.

Source: docs/protocol/rollback.md, "How a consumer goes back".
The node decides by `tailrace.model.failover.resume_point`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, common_seq, request_bounds
from tailrace.wire.stream_messages import RollBack, StreamOk

if TYPE_CHECKING:
    from tailrace.consuming.ring import Ring
    from tailrace.model.position import Position


class ResumeState(NamedTuple):
    """The stored state of a partition that decides how the consumer resumes.

    Attributes:
        position: The position.
        top_seq: The highest seq that was ever in the ring.
        floor_seq: The ring has every key that was delivered above this seq.
    """

    position: Position
    top_seq: int
    floor_seq: int

    @classmethod
    def of(cls, position: Position, ring: Ring) -> ResumeState:
        """Returns the state of a consumer at ``position`` with ``ring``."""
        return cls(position, ring.top_seq, ring.floor_seq)


class ResumeAction(enum.Enum):
    """The action of a consumer on the node's answer."""

    STREAM = "stream"  # it takes the stream
    REFETCH = "refetch"  # it goes back to a seq, and reads the keys above it again
    UNCOVERED = "uncovered"  # as REFETCH, but its ring does not have all keys: it begins anew, unless it can truncate
    CLEAR = "clear"  # it forgets the partition, and begins anew at seq 0


class ResumeDecision(NamedTuple):
    """An action, and the seq that it leads to."""

    action: ResumeAction
    seq: int


def floor_without_ring(position: Position) -> int:
    """Returns the floor of the ring of a consumer that has stored a position and no ring.

    All rows that it may have applied are at or below the end of its snapshot. Refetched rows end there, too.
    """
    return position.snapshot_last


def bounds(stored: ResumeState) -> tuple[int, int, int]:
    """Returns ``seq``, ``snapshot_first`` and ``snapshot_last`` of the request for a stream (S, A and B)."""
    position, top_seq, floor_seq = stored
    seq, first, last, *_ = position[1:]
    if last == SNAPSHOT_LAST_UNKNOWN:
        return seq, seq, seq
    # At the start of a snapshot, without a ring: rows up to its end may have been read again.
    return request_bounds(seq, first, last, max(top_seq, last if floor_seq > seq else 0))


def decide(stored: ResumeState, answer: StreamOk | RollBack) -> ResumeDecision:
    """Returns the first row of the table in docs/protocol/rollback.md that matches ``answer``."""
    position = stored.position
    if isinstance(answer, RollBack):
        return _go_back_to(answer.seq, stored)
    if position.seq == 0:
        applied = position.snapshot_last > 0 or stored.top_seq > 0
        return ResumeDecision(ResumeAction.CLEAR if applied else ResumeAction.STREAM, 0)
    if position.snapshot_last == SNAPSHOT_LAST_UNKNOWN:
        return _go_back_to(position.seq, stored)
    _, _, last = bounds(stored)
    upper = common_seq(position.log, last, answer.log, answer.high_seq)
    if upper is None or last > upper:
        # Both histories have its seq, but it has applied rows above that only the old one has.
        return _go_back_to(position.seq, stored)
    return ResumeDecision(ResumeAction.STREAM, position.seq)


def _go_back_to(seq: int, stored: ResumeState) -> ResumeDecision:
    if seq == 0:
        return ResumeDecision(ResumeAction.CLEAR, 0)
    return ResumeDecision(ResumeAction.REFETCH if seq >= stored.floor_seq else ResumeAction.UNCOVERED, seq)
