"""Spark's offsets, which are positions, and the seq to resume from after the node's history has branched. Pure.

    history of the query   |----u----------|        it has read up to S, of branch u
    history of the node    |----u------|--v-----|   R: the last seq that both have; above it the histories differ

After a failover a seq alone is ambiguous. So an offset has the position of each partition with its failover log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.errors import BadPosition, StreamEnded
from tailrace.model import EndReason
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog, resume_point
from tailrace.model.position import Position, Positions

NOTHING = Position.at(FailoverLog(), 0)


class PartitionState(NamedTuple):
    """A node's state of a partition: its failover log, its last seq, and the last seq that the level shows.

    ``segment_bytes`` are the bytes of its segments, which have the rows above ``trim_seq`` up to ``flushed_seq``.
    ``trim_seq`` is None if the node does not tell it.
    """

    log: FailoverLog
    high_seq: int
    visible_seq: int
    flushed_seq: int = 0
    trim_seq: int | None = None
    segment_bytes: int = 0


class FeedState(NamedTuple):
    """A node's state of a feed. ``is_history``: it keeps every mutation, so a range can be read again exactly."""

    cluster_id: bytes
    feed_id: bytes
    is_history: bool
    partitions: Mapping[int, PartitionState]

    @property
    def shown(self) -> Positions:
        """The positions of a reader that has read all that the level shows."""
        positions = {id: Position.at(p.log, p.visible_seq) for id, p in self.partitions.items() if p.log}
        return Positions(self.cluster_id, self.feed_id, positions)


class Resumption(NamedTuple):
    """The position from which a query resumes in a partition.

    ``lost``: the query's own position is not in the node's history. ``waits``: the node is behind the query, for
    example because it was restored from an older copy.
    """

    position: Position
    lost: bool = False
    waits: bool = False


def to_offset(positions: Positions) -> dict[str, str]:
    """Returns positions as the offset that Spark stores. Equal positions have equal text."""
    return {"positions": str(positions)}


def from_offset(offset: Mapping[str, Any]) -> Positions:
    """Reverses ``to_offset``. Raises BadPosition for anything else."""
    text = offset.get("positions")
    if not isinstance(text, str):
        raise BadPosition(f"{str(offset)[:100]} is no offset of a feed: it has no positions")
    return Positions.parse(text)


def resume_at(position: Position, node: PartitionState) -> Resumption:
    """Returns the position in the node's history from which a query resumes that has read up to ``position``."""
    if not position.log:
        return Resumption(position)
    if node.log.term < position.log.term:
        return Resumption(position, waits=True)
    last = position.snapshot_last
    if last == SNAPSHOT_LAST_UNKNOWN:
        last = position.seq
    # The last argument, purge_seq, is 0: the node itself tells a reader that rows were purged.
    resume = resume_point(
        position.log, position.seq, position.snapshot_first, last, position.purge_seq, node.log, node.high_seq, 0
    )
    if resume.seq == position.seq:
        return Resumption(position)
    return Resumption(Position.at(node.log, resume.seq) if resume.seq else NOTHING, lost=True)


def agree(position: Position, log: FailoverLog, seq: int) -> bool:
    """Returns whether a history with ``log`` has the same mutation ``seq``, which is at or below ``position``."""
    if not seq:
        return True
    return bool(position.log) and bool(log) and position.log.branch_at(seq) == log.branch_at(seq)


def rolled_back(partition: int, position: Position, to_seq: int) -> StreamEnded:
    """Returns the error of a query with option ``on_rollback`` 'fail'."""
    return StreamEnded(
        f"partition {partition}: the query has read up to seq {position.seq} of branch "
        f"{position.log.branch.hex()[:8]}, and the node's history agrees with that up to seq {to_seq} only: it has "
        "lost the mutations above, and may have written others since. Rows that were delivered cannot be taken back. "
        f".option('on_rollback', 'follow') resumes from seq {to_seq}; a new checkpoint starts from the beginning",
        reason=EndReason.ROLLED_BACK,
    )
