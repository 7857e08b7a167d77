"""Bugs of one node in what clients are told: by acknowledgements, streams, barriers and rollbacks."""

from __future__ import annotations

from tailrace.consuming.ring import Ring, RingChange
from tailrace.model import failover
from tailrace.model.failover import Resume, ResumeReason
from tailrace_server.compaction import worker
from tailrace_server.stream import stream_barriers
from tailrace_server.upkeep.committer import Committer

from .bug import Bug

_identity_of = worker.identity_of


def _answer_before_fsync(self, callback):
    """Answers a write as soon as it is in the journal, before the fsync."""
    callback(None)


def _resume_beyond_the_base(consumer, seq, first, last, server, high_seq):
    """Compares by `>` in place of `>=`: a consumer at the first seq of a branch that it does not know stays there."""
    if not consumer:
        return Resume(0, ResumeReason.NOTHING_STORED)
    upper = failover.common_seq(consumer, last, server, high_seq)
    if upper is None:
        return Resume(0, ResumeReason.NO_COMMON_BRANCH)
    next_branch = upper + 1
    if not last > next_branch:
        return Resume(seq, ResumeReason.STANDS)
    if not first > next_branch:
        return Resume(first, ResumeReason.STANDS if first == seq else ResumeReason.HALF_SNAPSHOT)
    return Resume(upper, ResumeReason.FORKED)


def _covered_by_this_round(stream, accepted):
    """Answers a barrier after this round, though accepted rows come with the next one."""
    visible_seq = stream.partition.visible_seq(stream.level)
    return visible_seq if stream.end_seq is None else min(visible_seq, stream.end_seq)


def purge_in_silence(task, identities, decision=worker._ALL_STAY):
    """Drops deletions, and leaves the purge seq as it was."""
    return _identity_of(task, identities, decision)._replace(purge_seq=0)


def _drop_after_refetch(ring, seq, by_seq, keys):
    """Forgets keys that were read again, though they may be lost again."""
    return RingChange(ring.floor_seq, seq)


BUGS = {
    "an acknowledgement before fsync": Bug([(Committer, "when_durable", _answer_before_fsync)], seed=20),
    "`>` for `>=` at a base": Bug([(failover, "_resume_in_history", _resume_beyond_the_base)], seed=0),
    "a barrier answered one round early": Bug([(stream_barriers, "_covered", _covered_by_this_round)], seed=2),
    "a purge without raising the purge seq": Bug([(worker, "identity_of", purge_in_silence)], seed=112),
    "a ring dropped after a refetch": Bug([(Ring, "replacing", _drop_after_refetch)], seed=11),
}
