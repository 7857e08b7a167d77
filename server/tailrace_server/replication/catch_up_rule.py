"""Decides whether a follower copies a partition's segments before it streams the partition. Pure.

    lacked    (common seq, flushed seq of the leader]: the rows that the stream would read from segments

The first row that fits decides:

| case             | the leader, and what the follower lacks                                | copies   |
|------------------|------------------------------------------------------------------------|----------|
| DAMAGED          | any; the follower cannot read its own segments                         | segments |
| TURNED_OFF       | any; ``bytes_min`` is None                                             | stream   |
| OLD_NODE         | does not tell of its segments: an older version                        | stream   |
| OTHER_STATE      | has another role, a lower term, or another branch of the same term     | stream   |
| NOTHING_FLUSHED  | its segments end at or below the common seq, or the follower's last    | stream   |
| BEGINS_AT_0      | has purged or trimmed rows above the common seq: a stream begins at 0  | segments |
| FEW_BYTES        | the lacked rows have fewer than ``bytes_min`` bytes                    | stream   |
| SMALL_SHARE      | they are less than 1/ADVANTAGE of all bytes of the segments            | stream   |
| FAR_BEHIND       | anything else                                                          | segments |

Each node compacts for itself, so a follower that was away has to fetch nearly all segments, whatever it lacks. A
follower takes ADVANTAGE bytes as files in the time of one byte of a stream that it has to flush (bench/catch_up.py).
Below ``bytes_min`` a stream stays in the write queue, nothing is flushed meanwhile, and both take the same time.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from tailrace.errors import ProtocolError
from tailrace.model.failover import FailoverLog, common_seq
from tailrace.wire.bodies import field, log_field, seq_field

# Measured as 1.5 to 3.5, the more the larger the partition (bench/README.md).
ADVANTAGE = 3


class CatchUpCase(enum.Enum):
    """The rows of the table above; the value tells whether segments are copied."""

    DAMAGED = enum.auto()
    TURNED_OFF = enum.auto()
    OLD_NODE = enum.auto()
    OTHER_STATE = enum.auto()
    NOTHING_FLUSHED = enum.auto()
    BEGINS_AT_0 = enum.auto()
    FEW_BYTES = enum.auto()
    SMALL_SHARE = enum.auto()
    FAR_BEHIND = enum.auto()

    @property
    def by_segments(self) -> bool:
        """Whether the follower copies segments first."""
        return self in (CatchUpCase.DAMAGED, CatchUpCase.BEGINS_AT_0, CatchUpCase.FAR_BEHIND)


class LeaderPartition(NamedTuple):
    """A partition as its leader's partition map tells it. ``flushed_seq`` is None if the map is of an older version."""

    state: str
    high_seq: int
    log: FailoverLog
    flushed_seq: int | None = None
    purge_seq: int = 0
    trim_seq: int = 0
    segment_bytes: int = 0

    @classmethod
    def from_json(cls, value: Any) -> LeaderPartition:
        """Reads an object of ``partitions``. Raises ProtocolError."""
        what = "the partition map"
        if not isinstance(value, dict):
            raise ProtocolError(f"{what}: a partition is {value!r:.60}, not an object")
        found = cls(field(value, "state", str, what), seq_field(value, "high_seq", what), log_field(value, what))
        if "flushed_seq" not in value:
            return found
        return found._replace(
            flushed_seq=seq_field(value, "flushed_seq", what),
            purge_seq=seq_field(value, "purge_seq", what),
            trim_seq=seq_field(value, "trim_seq", what),
            segment_bytes=seq_field(value, "segment_bytes", what),
        )


def choose(high_seq: int, log: FailoverLog, leader: LeaderPartition, bytes_min: int | None, state: str) -> CatchUpCase:
    """Returns the case of a follower that stands at ``high_seq`` of ``log``; the leader should be in ``state``."""
    if bytes_min is None:
        return CatchUpCase.TURNED_OFF
    flushed_seq = leader.flushed_seq
    if flushed_seq is None:
        return CatchUpCase.OLD_NODE
    is_other = high_seq > 0 and (
        leader.log.term < log.term or (leader.log.term == log.term and leader.log.branch != log.branch)
    )
    if leader.state != state or is_other or not leader.log:
        return CatchUpCase.OTHER_STATE
    common = common_seq(log, high_seq, leader.log, leader.high_seq) or 0 if high_seq else 0
    if flushed_seq <= common:
        return CatchUpCase.NOTHING_FLUSHED
    if 0 < common < max(leader.purge_seq, leader.trim_seq):
        return CatchUpCase.BEGINS_AT_0
    lacked_bytes = leader.segment_bytes * (flushed_seq - common) // flushed_seq
    if lacked_bytes < bytes_min:
        return CatchUpCase.FEW_BYTES
    return CatchUpCase.SMALL_SHARE if lacked_bytes * ADVANTAGE < leader.segment_bytes else CatchUpCase.FAR_BEHIND
