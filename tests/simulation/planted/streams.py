"""Bugs to plant: each breaks one promise, and a few seeds of the simulator have to find it."""

from __future__ import annotations

from tailrace.consuming.ring import Ring, RingChange
from tailrace.model import failover
from tailrace.model.failover import Resume, ResumeReason
from tailrace_server.compaction import worker
from tailrace_server.partition import published as appending
from tailrace_server.publishing.stages import Stages
from tailrace_server.state.last_batches import LastBatches
from tailrace_server.state.published_batches import PublishedBatch, PublishedBatches
from tailrace_server.stream import rounds
from tailrace_server.upkeep.committer import Committer

from .bug import Bug

_identity_of = worker.identity_of
_append_batch = appending.append_batch
_finish_seal = Stages.finish_seal


def _answer_before_fsync(self, callback):
    """A write is answered as soon as it is in the journal."""
    callback(None)


def _resume_beyond_the_base(consumer, seq, first, last, server, high_seq):
    """`>` for `>=`: whoever has come to just the first seq of a branch that he does not know need not go back."""
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
    """A barrier waits for what this round delivers, not for what was accepted and the next one will."""
    visible_seq = stream.partition.visible_seq(stream.level)
    return visible_seq if stream.end_seq is None else min(visible_seq, stream.end_seq)


def _purge_in_silence(task, identities, decision=worker._ALL_STAY):
    """Deletions are dropped, and the purge seq says nothing of it."""
    return _identity_of(task, identities, decision)._replace(purge_seq=0)


def _drop_after_refetch(ring, seq, by_seq, keys):
    """What was read again is forgotten, though it may be lost in its turn."""
    return RingChange(ring.floor_seq, seq)


def _forget_the_batch(partition, blocks, sinks, journal):
    """A publish writes its rows, and not which batch they are."""
    return _append_batch(partition, blocks, {}, journal)


def _leave_out_the_batches(self, seq):
    """A manifest says nothing of sinks; the journal's records are trimmed."""
    return {}


def _write_apart(partition, blocks, sinks, journal):
    """Each block of a publish is a record of its own; the last one says of which batch it is."""
    first_seq = partition.high_seq + 1
    for block in blocks[:-1]:
        _append_batch(partition, [block], {}, journal)
    versions = _append_batch(partition, blocks[-1:], sinks, journal)._replace(first_seq=first_seq)
    partition.published.drop_above(first_seq - 1)
    partition.published.add(PublishedBatch(first_seq - 1, versions.last_seq, len(blocks)))
    return versions


def _remember_no_run(self, run):
    """Where a publish begins and ends is forgotten: whoever counts blocks may stop inside of it."""


def _seal_without_sync(self, stage):
    """A stage gets its name before its content is durable."""
    stage.file.sync = lambda: None
    return _finish_seal(self, stage)


BUGS = {
    "an acknowledgement before fsync": Bug([(Committer, "when_durable", _answer_before_fsync)], seed=22),
    "`>` for `>=` at a base": Bug([(failover, "_resume_in_history", _resume_beyond_the_base)], seed=0),
    "a barrier answered one round early": Bug([(rounds, "_covered", _covered_by_this_round)], seed=3),
    "a purge without raising the purge seq": Bug([(worker, "identity_of", _purge_in_silence)], seed=112),
    "a ring dropped after a refetch": Bug([(Ring, "replacing", _drop_after_refetch)], seed=102),
    "a publish that forgets its batch": Bug([(appending, "append_batch", _forget_the_batch)], seed=5),
    "a manifest without the last batches": Bug([(LastBatches, "as_of", _leave_out_the_batches)], seed=3),
    "a publish that is journaled block by block": Bug([(appending, "append_batch", _write_apart)], seed=58),
    "a publish that anybody may stand inside of": Bug([(PublishedBatches, "add", _remember_no_run)], seed=6),
    "a stage that is sealed before it is durable": Bug([(Stages, "finish_seal", _seal_without_sync)], seed=8),
}
