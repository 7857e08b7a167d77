"""What a consumer asks with, and what it does with the answer: decisions about one partition. Pure.

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


class Record(NamedTuple):
    """What a consumer has stored of a partition, as far as decisions need it.

    ``top_seq`` is the highest seq that its ring has had, ``floor_seq`` the seq above which the ring knows every key.
    """

    position: Position
    top_seq: int
    floor_seq: int

    @classmethod
    def of(cls, position: Position, ring: Ring) -> Record:
        """The record of a consumer at ``position`` with ``ring``."""
        return cls(position, ring.top_seq, ring.floor_seq)


class Move(enum.Enum):
    """What a consumer does with an answer."""

    STREAM = "stream"  # it takes what comes
    REFETCH = "refetch"  # goes back to a seq, and reads the keys above it again
    UNCOVERED = "uncovered"  # would do so, but does not know the keys: it begins anew, unless it can truncate
    CLEAR = "clear"  # begins anew: forgets the partition, and asks from 0


class Decision(NamedTuple):
    """A move, and the seq that it leads to."""

    move: Move
    seq: int


def bare_floor(position: Position) -> int:
    """The floor of the ring of a consumer that has stored a position without a ring.

    All that it can have been given is at or below the end of its snapshot, which is also where refetched rows end.
    """
    return position.snapshot_last


def bounds(record: Record) -> tuple[int, int, int]:
    """S, A and B of the request for a stream."""
    position, top_seq, floor_seq = record
    seq, first, last, *_ = position[1:]
    if last == SNAPSHOT_LAST_UNKNOWN:
        return seq, seq, seq
    # At the start of a snapshot without a ring: rows up to its end may have been read again, and nobody knows which.
    return request_bounds(seq, first, last, max(top_seq, last if floor_seq > seq else 0))


def decide(record: Record, answer: StreamOk | RollBack) -> Decision:
    """What to do with ``answer``, the first row of the table in docs/protocol/rollback.md that fits."""
    position = record.position
    if isinstance(answer, RollBack):
        return _back_to(answer.seq, record)
    if position.seq == 0:
        applied = position.snapshot_last > 0 or record.top_seq > 0
        return Decision(Move.CLEAR if applied else Move.STREAM, 0)
    if position.snapshot_last == SNAPSHOT_LAST_UNKNOWN:
        return _back_to(position.seq, record)
    _, _, last = bounds(record)
    upper = common_seq(position.log, last, answer.log, answer.high_seq)
    if upper is None or last > upper:
        # It stands where both agree, but has rows above that are of another history: read again before.
        return _back_to(position.seq, record)
    return Decision(Move.STREAM, position.seq)


def _back_to(seq: int, record: Record) -> Decision:
    if seq == 0:
        return Decision(Move.CLEAR, 0)
    return Decision(Move.REFETCH if seq >= record.floor_seq else Move.UNCOVERED, seq)
