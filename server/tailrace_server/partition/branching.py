"""How a partition gets a new branch: where its leader begins to lead, or cannot prove that it has lost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.journal.controls import LogRecord
from tailrace_server.journal.format import RecordKind
from tailrace_server.partition.replica_apply import settle_producers

if TYPE_CHECKING:
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition


def new_branch(partition: Partition, branch: bytes, term: int | None = None) -> FailoverLog:
    """The failover log as it will be when a branch begins where the partition ends; it is to be made durable first.

    ``term``: that of the branch, the next one by default.
    """
    return partition.log.with_entry(FailoverEntry(branch, term or partition.log.term + 1, partition.high_seq))


def begin_branch(
    partition: Partition, branch: bytes, journal: Journal, term: int | None = None, *, now: float = 0.0
) -> None:
    """Begins a new branch where the partition ends, with the next term, or with this one.

    The entry stands in the journal after the blocks up to its base. ``now``: monotonic seconds.
    """
    settle_producers(partition, journal, now)
    log = new_branch(partition, branch, term)
    payload = LogRecord(log, partition.rollbacks).encode()
    place = journal.append(RecordKind.FAILOVER_ENTRY, partition.feed_id, partition.id, payload)
    partition.homes.control(journal.file_of(place))
    # Whoever begins a branch leads: what a leader before has told is not what there is to follow any more, and what it
    # had above is of another history.
    partition.log, partition.leader_log = log, None
    partition.forget_above(partition.high_seq)
