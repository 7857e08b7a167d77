"""Which seq of a partition a majority of a set holds, fsynced. Pure: acknowledgements in, a seq out.

    set of five, majority 3        leader  |----------------->|  90 durable
                                   a       |------------->|      70 acknowledged
                                   b       |----------->|        60   <- the second largest: quorum seq 60
                                   c       |------>|             35

The leader is always one of the majority, so that quorum includes its disk. An acknowledgement counts only on the newest
branch of the leader's log, from the branch's base on: what a voter held under an older branch may be a dead tail that
is as long as what was acknowledged.
"""

from __future__ import annotations

from tailrace.model.failover import FailoverLog


class Acknowledgements:
    """What the voters of a set have acknowledged of one partition. The leader's own vote is not among them."""

    def __init__(self, majority: int) -> None:
        """``majority``: so many members of the set, the leader included; at least 2."""
        assert majority >= 2, "a set has two members at least"
        self._needed = majority - 1
        self._branch = b""
        self._seqs: dict[bytes, int] = {}

    def acknowledged(self, voter: bytes, branch: bytes, seq: int, log: FailoverLog) -> bool:
        """``voter`` holds everything up to ``seq``, the end of a run on ``branch``; whether that counts.

        ``log`` is the leader's. What a voter has once acknowledged it does not take back on the same branch.
        """
        self._begin(log)
        if branch != log.branch or seq < log[0].base:
            return False
        self._seqs[voter] = max(seq, self._seqs.get(voter, 0))
        return True

    def forget(self, voter: bytes) -> None:
        """``voter`` has no vote any more."""
        self._seqs.pop(voter, None)

    def quorum_seq(self, durable_seq: int, log: FailoverLog) -> int:
        """What a majority holds, where the leader has ``durable_seq`` on its own disk; 0 where that is not known."""
        self._begin(log)
        if len(self._seqs) < self._needed:
            return 0
        return min(durable_seq, sorted(self._seqs.values(), reverse=True)[self._needed - 1])

    def _begin(self, log: FailoverLog) -> None:
        """What was acknowledged of another branch is forgotten."""
        if self._branch != log.branch:
            self._branch, self._seqs = log.branch, {}
