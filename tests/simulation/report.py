"""What happened in a run: counts of operations, faults and crosses, and a digest of all of it in its order."""

from __future__ import annotations

from collections import Counter

import xxhash

from .crosses import Crosses


class Report:
    """``trace`` is called with a line for each thing that happens, where it is given. ``now`` gives the time."""

    def __init__(self, trace=None):
        self.operations = Counter()
        self.faults = Counter()
        self.crosses = Counter()
        self.now = lambda: 0.0
        self._trace = trace
        self._digest = xxhash.xxh3_128()
        self.bytes = 0
        self._crosses = Crosses(lambda: self.now(), self._cross)
        self.feed_id = None  # of the feed that is looked at; others come and go
        self.lost_rows = 0

    def note(self, what):
        """One more line of the trace."""
        line = f"{self.now():.6f} {what}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def operation(self, name, detail=""):
        self.operations[name] += 1
        self.note(f"{name} {detail}")

    def fault(self, name, detail=""):
        self.faults[name] += 1
        self.note(f"fault: {name} {detail}")

    def _cross(self, name):
        self.crosses[name] += 1
        self.note(f"cross: {name}")

    def arrived(self, connection, client, server, upward, data):
        """Bytes have come to the other side of a connection."""
        self.bytes += len(data)
        if upward:
            self._crosses.heard(connection, client, data, self.feed_id)
        way = ">" if upward else "<"
        self.note(f"{client} {way} {server} {connection} {len(data)} {xxhash.xxh3_64_hexdigest(data)}")

    def appended(self, partition, last_seq):
        self._crosses.appended(partition)
        self.operation("block", f"{partition}/{last_seq}")

    def compacted(self, task, result):
        *_, feed_id, partition, _ = task.output.split("/")
        if bytes.fromhex(feed_id) == self.feed_id:
            self._crosses.compacted(int(partition), purged=bool(result.purged))
        self.operation("purge" if result.purged else "fold", f"{partition} {result.rows} {result.purged}")

    def lost(self, rows):
        self.lost_rows += rows

    def node_died(self, how):
        self._crosses.died()
        self.operation("node dies", how)

    def rolled_back(self, client, partition, detail):
        self._crosses.rolled_back(client, partition)
        self.note(f"rollback: {client} {partition} {detail}")

    def rested(self, client, partition):
        """It is between snapshots, with all that it was promised."""
        self._crosses.rested(client, partition)

    def barrier_begins(self, client):
        self.operation("barrier asked for", client)
        return self._crosses.barrier_begins()

    def barrier_ends(self, client, begun):
        self._crosses.barrier_ends(client, begun)
        self.operation("barrier", client)

    @property
    def digest(self):
        """Of the whole trace: two runs with the same one have done the same, byte for byte."""
        return self._digest.hexdigest()

    def add(self, other):
        """Takes another run's counts over."""
        self.operations += other.operations
        self.faults += other.faults
        self.crosses += other.crosses
        self.lost_rows += other.lost_rows
        self.bytes += other.bytes

    def __str__(self):
        def line(name, counts):
            return f"{name}: " + (", ".join(f"{what} {count}" for what, count in sorted(counts.items())) or "none")

        return (
            "\n".join((line("operations", self.operations), line("faults", self.faults), line("crosses", self.crosses)))
            + f"\nrows lost with level memory: {self.lost_rows}; bytes on the network: {self.bytes}"
        )
