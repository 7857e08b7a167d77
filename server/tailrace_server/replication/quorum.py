"""Computes the seq of a partition that a majority of a set holds, fsynced. Pure: acknowledgements in, a seq out.

    set of five, majority 3        leader  |----------------->|  90 durable
                                   a       |------------->|      70 acknowledged
                                   b       |----------->|        60   <- the second largest: quorum seq 60
                                   c       |------>|             35

Quorum includes the leader's disk, which counts for the majority if it is a voter's. An acknowledgement counts only on
the newest branch of the leader's log, from the branch's base on. On an older branch a voter may hold a dead tail that
is as long as the acknowledged history.
"""

from __future__ import annotations

from tailrace.model.failover import FailoverLog


class Acknowledgements:
    """The acknowledgements of one partition by the voters of a set. The leader's own vote is not among them."""

    def __init__(self, needed: int) -> None:
        """``needed``: the number of other voters that make a majority, with the leader if that is a voter."""
        self.need(needed)
        self._branch = b""
        self._seqs: dict[bytes, int] = {}

    def need(self, needed: int) -> None:
        """Counts by another record of the voters from now on."""
        assert needed >= 1, "a set has two members at least"
        self._needed = needed

    def acknowledged(self, voter: bytes, branch: bytes, seq: int, log: FailoverLog) -> bool:
        """Notes that ``voter`` holds all up to ``seq``, the end of a run on ``branch``. Returns whether that counts.

        ``log`` is the leader's. A voter never takes back an acknowledgement on the same branch.
        """
        self._begin(log)
        if branch != log.branch or seq < log[0].base:
            return False
        self._seqs[voter] = max(seq, self._seqs.get(voter, 0))
        return True

    def forget(self, voter: bytes) -> None:
        """Forgets the acknowledgements of ``voter``, which has lost its vote."""
        self._seqs.pop(voter, None)

    def quorum_seq(self, durable_seq: int, log: FailoverLog) -> int:
        """Returns the seq that a majority holds, or 0 if that is not known.

        The leader's own disk holds ``durable_seq``.
        """
        self._begin(log)
        if len(self._seqs) < self._needed:
            return 0
        return min(durable_seq, sorted(self._seqs.values(), reverse=True)[self._needed - 1])

    def _begin(self, log: FailoverLog) -> None:
        """Forgets the acknowledgements of other branches than the newest one."""
        if self._branch != log.branch:
            self._branch, self._seqs = log.branch, {}
