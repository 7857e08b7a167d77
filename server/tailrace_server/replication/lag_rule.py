"""Decides when a follower looks whether a partition that lags is far behind by now. Pure.

    the last row of the stream is the leader's last one, or behind it    ──> LEVEL: counts from 0 again
    it is below, and fewer bytes than the wait came since                ──> LAGGING
    it is below, and as many bytes as the wait came since                ──> DUE: the partition map decides

    near                                  counts from 0 again
    far, but a stream is cheaper          the wait doubles
    far, and its segments are copied      the wait doubles, until the partition is level

The leader tells its durable seq behind the blocks that it has sent. If that is higher than the last sent row, the
stream lags. The rule for the partition map is in catch_up_rule.py. Between two copies the partition was level for a
moment, or twice as many bytes of the stream come as before the last copy. So a partition does not go to and fro, and a
stream that always lags is looked at less often.
"""

from __future__ import annotations

import enum


class LagAnswer(enum.Enum):
    """What the leader's partition map has shown of a partition that was due."""

    NEAR = enum.auto()
    STREAM = enum.auto()
    SEGMENTS = enum.auto()


class Lag:
    """The lag of one partition. Invariant: 0 <= ``received_bytes``, and ``wait_bytes`` >= the first one."""

    __slots__ = ("_first_wait_bytes", "_leader_seq", "received_bytes", "received_seq", "wait_bytes")

    def __init__(self, wait_bytes: int) -> None:
        """``wait_bytes``: of the stream, before the first look."""
        self._first_wait_bytes = self.wait_bytes = max(wait_bytes, 1)
        self._leader_seq = 0
        self.received_seq = 0  # the last row that the stream has brought, also inside of a run
        self.received_bytes = 0

    def received(self, seq: int, nbytes: int) -> bool:
        """Notes a block that ends at ``seq``. Returns whether the partition is due."""
        self.received_seq = seq
        self.received_bytes += nbytes
        return self._is_due()

    def told(self, leader_seq: int) -> bool:
        """Notes the leader's durable seq. Returns whether the partition is due."""
        self._leader_seq = leader_seq
        return self._is_due()

    def restarted(self) -> None:
        """Notes that a new stream begins, perhaps at a lower seq."""
        self._leader_seq = self.received_seq = self.received_bytes = 0

    def _is_due(self) -> bool:
        if self._leader_seq > self.received_seq:
            return self.received_bytes >= self.wait_bytes
        if self.received_seq:
            self.received_bytes, self.wait_bytes = 0, self._first_wait_bytes
        return False

    def answered(self, answer: LagAnswer) -> None:
        """Notes what the leader's map has shown."""
        self.received_bytes = 0
        if answer is not LagAnswer.NEAR:
            self.wait_bytes *= 2
