"""Bugs of compacted runs: a copy stops, counts or leads inside a run, where no state exists."""

from __future__ import annotations

from tests.tailrace_server.replication.slow_path import never_now

from tailrace_server.partition.partition import Partition
from tailrace_server.replication.membership import Membership
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.upkeep import rollback
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

from .bug import Bug

_take = ReplicaPuller._take


async def _keep_what_came(puller, event):
    """Keeps, shows and acknowledges each block of a run before the rest has come."""
    await _take(puller, event)
    node, number, partition = puller._node, event.partition, puller.feed.partitions[event.partition]
    filling = puller._snapshots.runs.get(number)
    if filling is None or filling._seq == filling.last_seq:
        return
    last_seq, filling.last_seq = filling.last_seq, filling._seq
    await filling.finish(puller._acknowledgements.log_of(partition))
    puller._acknowledgements.adopt(partition)
    puller._snapshots.runs[number] = SnapshotSegment(
        node.storage, partition, partition.high_seq, last_seq, filling._purge_seq
    )
    puller._acknowledgements.acknowledge(partition)


async def _acknowledge_inside(puller, event):
    """Acknowledges each block of a run when it comes."""
    await _take(puller, event)
    filling = puller._snapshots.runs.get(event.partition)
    wanted = puller._acknowledgements.log_of(puller.feed.partitions[event.partition])
    if filling is not None and puller._stream is not None and puller._until is None and filling._seq >= wanted[0].base:
        puller._stream.acknowledge(event.partition, wanted.branch, filling._seq)


def _cut_anywhere(chain, seq):
    """Cuts a segment inside a run, though rows are missing that later ones superseded."""
    return next((segment for segment in chain.after(seq)[:1] if segment.identity.after_seq < seq), None)


def _owe_nothing(membership, debts):
    """Owes no data that was acknowledged and is rolled back with a run."""
    return membership


_ABOVE_QUORUM = (
    Partition,
    "stable_seq",
    Partition.safe_seq,
)  # a follower compacts rows that its leader has on its disk

BUGS = {
    "a run that is kept as far as it has come": Bug(
        [(ReplicaPuller, "_take", _keep_what_came), (ReplicaPuller, "_take_now", never_now)],
        {"half_a_run": 0, "leader_of_half_a_run": 2},
    ),
    "a rollback into the middle of a run": Bug([(rollback, "straddling", _cut_anywhere)], {"fork_in_a_run": 0}),
    "acknowledgements inside of a run, of what no majority has": Bug(
        [
            (ReplicaPuller, "_take", _acknowledge_inside),
            (ReplicaPuller, "_take_now", never_now),
            _ABOVE_QUORUM,
        ],
        {"run_without_an_end": 2},
    ),
    "folding of what no majority has, and a debt that is forgotten": Bug(
        [
            _ABOVE_QUORUM,
            (Membership, "owing", _owe_nothing),
        ],
        {"folded_tail": 0},
    ),
}
