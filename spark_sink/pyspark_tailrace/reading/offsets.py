"""Spark's offsets, which are positions, and what becomes of one when the node's history has taken another way. Pure.

    history of the query   |----u----------|        it has read up to S, of branch u
    history of the node    |----u------|--v-----|   R: the last seq that both have; from here on another one

A seq alone names nothing after a failover. So an offset has the position of each partition with its failover log.
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
    """A partition as the node has it: its failover log, its last seq, and the last one that the level shows."""

    log: FailoverLog
    high_seq: int
    visible_seq: int


class FeedState(NamedTuple):
    """A feed as the node has it. ``is_history``: it keeps every mutation, so a range can be read again exactly."""

    cluster_id: bytes
    feed_id: bytes
    is_history: bool
    partitions: Mapping[int, PartitionState]

    @property
    def shown(self) -> Positions:
        """The positions of whoever has read all that the level shows."""
        positions = {id: Position.at(p.log, p.visible_seq) for id, p in self.partitions.items() if p.log}
        return Positions(self.cluster_id, self.feed_id, positions)


class Resumption(NamedTuple):
    """Where a query goes on in a partition. ``lost``: its own position is not in the node's history.

    ``waits``: the node knows less than the query does, as one does that was put back from an older copy.
    """

    position: Position
    lost: bool = False
    waits: bool = False


def to_offset(positions: Positions) -> dict[str, str]:
    """As Spark stores it. Equal positions give equal text."""
    return {"positions": str(positions)}


def from_offset(offset: Mapping[str, Any]) -> Positions:
    """The reverse of ``to_offset``. BadPosition for anything else."""
    text = offset.get("positions")
    if not isinstance(text, str):
        raise BadPosition(f"{str(offset)[:100]} is no offset of a feed: it has no positions")
    return Positions.parse(text)


def resume_at(position: Position, node: PartitionState) -> Resumption:
    """Where a query that has read up to ``position`` goes on with the node's history."""
    if not position.log:
        return Resumption(position)
    if node.log.term < position.log.term:
        return Resumption(position, waits=True)
    last = position.snapshot_last
    if last == SNAPSHOT_LAST_UNKNOWN:
        last = position.seq
    # What was purged the node itself tells whoever reads.
    resume = resume_point(
        position.log, position.seq, position.snapshot_first, last, position.purge_seq, node.log, node.high_seq, 0
    )
    if resume.seq == position.seq:
        return Resumption(position)
    return Resumption(Position.at(node.log, resume.seq) if resume.seq else NOTHING, lost=True)


def agree(position: Position, log: FailoverLog, seq: int) -> bool:
    """Whether the mutation ``seq``, at or below ``position``, is the same one in a history with ``log``."""
    if not seq:
        return True
    return bool(position.log) and bool(log) and position.log.branch_at(seq) == log.branch_at(seq)


def rolled_back(partition: int, position: Position, to_seq: int) -> StreamEnded:
    """The error of a query that is not to follow the node."""
    return StreamEnded(
        f"partition {partition}: the query has read up to seq {position.seq} of branch "
        f"{position.log.branch.hex()[:8]}, and the node's history agrees with that up to seq {to_seq} only: it has "
        "lost what was above, and may have written other mutations since. What was delivered above cannot be taken "
        "back. "
        f".option('on_rollback', 'follow') goes on from seq {to_seq}; a new checkpoint begins anew",
        reason=EndReason.ROLLED_BACK,
    )
