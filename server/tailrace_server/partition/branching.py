"""Begins a new branch in a partition: when its leader begins to lead, or cannot prove that it has lost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.journal.controls import LogRecord
from tailrace_server.journal.format import RecordKind
from tailrace_server.partition.replica_apply import settle_producers

if TYPE_CHECKING:
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition

# The term of a feed's first branch, and the lowest term of a leader: no earlier leader has written to that branch.
FIRST_TERM = 1


def with_branch(log: FailoverLog, branch: bytes, base: int, term: int | None = None) -> FailoverLog:
    """Returns ``log`` with a new branch that begins at seq ``base``, in ``term`` or by default in the next one."""
    return log.with_entry(FailoverEntry(branch, term or log.term + 1, base))


def begin_branch(
    partition: Partition, branch: bytes, journal: Journal, term: int | None = None, *, now: float = 0.0
) -> None:
    """Begins ``branch`` at the partition's high seq, in ``term`` or by default in the next one.

    Its entry stands in the journal behind the blocks up to its base. ``now`` is monotonic seconds. NoSpace, NotDurable.
    """
    settle_producers(partition, journal, now)
    log = with_branch(partition.log, branch, partition.high_seq, term)
    payload = LogRecord(log, partition.rollbacks).encode()
    place = journal.append(RecordKind.FAILOVER_ENTRY, partition.feed_id, partition.id, payload)
    partition.begin_branch(log, journal.file_of(place))
