"""Acknowledges the durable rows of one feed to the node that it is pulled from, on that node's newest branches.

its log           ──> adopted as far as the held rows reach its entries    ──fsync──> held
durable rows      ──> acknowledged, if the newest branch of the held log is that of the other node's log
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.model.failover import FailoverLog
from tailrace_server.partition.replica_apply import follow_log

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode


class ReplicaAcknowledgements:
    """The logs that the other node has told, and the acknowledged seqs. Nothing is acknowledged before ``begin``."""

    def __init__(self, node: LocalNode, on_acknowledged: Callable[[], None] | None) -> None:
        """``on_acknowledged`` is called after each acknowledgement."""
        self.seqs: dict[int, int] = {}  # by partition, on the other node's newest branch
        self._node = node
        self._on_acknowledged = on_acknowledged
        self._send: Callable[[int, bytes, int], None] | None = None
        self._logs: dict[int, FailoverLog] = {}
        self._held_logs: dict[int, FailoverLog] = {}  # of our own partitions, as far as they are on the disk
        self._ended = False

    def begin(self, send: Callable[[int, bytes, int], None]) -> None:
        """From now on durable rows are acknowledged by ``send``, which takes partition, branch and seq."""
        self._send = send

    def end(self) -> None:
        """Acknowledges nothing any more."""
        self._send, self._ended = None, True

    def discard(self) -> None:
        """Lets go of its owner, of which nothing is acknowledged any more."""
        self._on_acknowledged = None

    def agreed(self, partition: Partition, found: FailoverLog) -> None:
        """Notes the other node's log of a stream that begins, and adopts it as far as the held rows reach."""
        self._logs[partition.id] = found
        self.forget(partition)  # the last stream may have been over when it was acknowledged
        self.adopt(partition)

    def knows(self, partition: Partition) -> bool:
        """Returns whether a stream of the partition has begun."""
        return partition.id in self._logs

    def log_of(self, partition: Partition) -> FailoverLog:
        """Returns the other node's log. A stream of the partition must have begun."""
        return self._logs[partition.id]

    def forget(self, partition: Partition) -> None:
        """Forgets what is held and acknowledged: the partition is asked for anew."""
        self._held_logs.pop(partition.id, None)
        self.seqs.pop(partition.id, None)

    def adopt(self, partition: Partition) -> None:
        """Adopts the entries of the other node's log that have begun at or below the held rows.

        They are acknowledged once durable.
        """
        node, found = self._node, self._logs[partition.id]
        if partition.log != found:
            follow_log(partition, found, node.storage.journal, node.clock.monotonic())
        if self._held_logs.get(partition.id) != partition.log:
            node.storage.committer.when_durable(partial(self._is_durable, partition, partition.log))

    def acknowledge(self, partition: Partition) -> None:
        """Acknowledges the durable seq of the partition, if that is on the other node's newest branch."""
        wanted = self._logs.get(partition.id)
        if self._send is None or not wanted:
            return
        held = self._held_logs.get(partition.id)
        seq = partition.durable_seq
        if held is None or held.branch != wanted.branch or seq < wanted[0].base:
            return
        if self.seqs.get(partition.id) != seq:
            self.seqs[partition.id] = seq
            self._send(partition.id, wanted.branch, seq)
            if self._on_acknowledged is not None:
                self._on_acknowledged()

    def _is_durable(self, partition: Partition, found: FailoverLog, error: TailraceError | None) -> None:
        if error is None and not self._ended:
            self._held_logs[partition.id] = found
            self.acknowledge(partition)
