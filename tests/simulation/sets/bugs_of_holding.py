"""Bugs in what a majority holds: what is acknowledged, counted and shown."""

from __future__ import annotations

from tailrace_server.replication.quorum import Acknowledgements
from tailrace_server.replication.taking import Taker

_agreed = Taker._agreed


def _acknowledge_at_once(taker, event, partition):
    """Who comes to a leader acknowledges what it has on its disk, whatever branch that is of."""
    branch, seq = partition.log.branch, partition.durable_seq
    _agreed(taker, event, partition)
    if branch and taker._stream is not None and taker._until is None:
        taker._stream.acknowledge(partition.id, branch, min(seq, event.high_seq))


def _count_any_branch(acknowledgements, voter, branch, seq, log):
    """What a voter holds is counted, whatever branch it is of."""
    acknowledgements._begin(log)
    acknowledgements._seqs[voter] = max(seq, acknowledgements._seqs.get(voter, 0))
    return True


BUGS = {
    "acknowledgements of another branch": [
        (Taker, "_agreed", _acknowledge_at_once),
        (Acknowledgements, "acknowledged", _count_any_branch),
    ],
}
