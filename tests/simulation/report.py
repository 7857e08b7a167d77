"""The report of a run: counts of operations, faults and crosses, and a digest of all events in their order."""

from __future__ import annotations

from collections import Counter

import xxhash

from .crosses import Crosses


class Report:
    """The record of one run, or of several.

    Attributes:
        now: Returns the simulated time.
        feed_id: The feed whose crosses count; None: none do.
        undecided: How many keys took too long to judge.
        calm_seconds: For how long nothing but a lasting cut went on, from ten seconds after it on.
        calm_changes: How many times a node came to lead in these seconds.
        calm_changes_most: How many of these were in one run at most, a minute.
        violation: A broken promise that a program has raised; an error that it causes may hide it.
    """

    def __init__(self, trace=None, *, crosses=True):
        """``trace`` is called with a line for each event. ``crosses``: those of one node are noted."""
        self.operations = Counter()
        self.faults = Counter()
        self.crosses = Counter()
        self.now = lambda: 0.0
        self._trace = trace
        self._digest = xxhash.xxh3_128()
        self.bytes = 0
        self._crosses = Crosses(lambda: self.now(), self._cross) if crosses else None
        self.feed_id = None
        self.lost_rows = 0
        self.undecided = 0
        self.calm_seconds = 0.0
        self.calm_changes = 0
        self.calm_changes_most = 0.0
        self.violation = None

    def note(self, what):
        """Adds a line to the trace."""
        line = f"{self.now():.6f} {what}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    def operation(self, name, detail=""):
        """Counts and notes something that a node or a program has done."""
        self.operations[name] += 1
        self.note(f"{name} {detail}")

    def fault(self, name, detail=""):
        """Counts and notes a fault."""
        self.faults[name] += 1
        self.note(f"fault: {name} {detail}")

    def _cross(self, name):
        self.crosses[name] += 1
        self.note(f"cross: {name}")

    def arrived(self, connection, client, server, upward, data):
        """Notes bytes that have come to the other side of a connection."""
        self.bytes += len(data)
        if upward and self._crosses:
            self._crosses.heard(connection, client, data, self.feed_id)
        way = ">" if upward else "<"
        self.note(f"{client} {way} {server} {connection} {len(data)} {xxhash.xxh3_64_hexdigest(data)}")

    def appended(self, partition, last_seq):
        """Notes a block that a partition has taken; ``partition``: its number, or its name in a set."""
        if self._crosses:
            self._crosses.appended(partition)
        self.operation("block", f"{partition}/{last_seq}")

    def compacted(self, task, result):
        """Notes a compaction."""
        *_, feed_id, partition, _ = task.output.split("/")
        if self._crosses and bytes.fromhex(feed_id) == self.feed_id:
            self._crosses.compacted(int(partition), purged=bool(result.purged))
        self.operation("purge" if result.purged else "compaction", f"{partition} {result.rows} {result.purged}")

    def lost(self, rows):
        """Notes rows that a crash has taken."""
        self.lost_rows += rows

    def node_died(self, how):
        """Notes the death of a node's process."""
        if self._crosses:
            self._crosses.died()
        self.operation("node dies", how)

    def rolled_back(self, client, partition, detail):
        """Notes that a program was told to roll back."""
        if self._crosses:
            self._crosses.rolled_back(client, partition)
        self.operation("rollback", f"{client} {partition} {detail}")

    def at_snapshot_end(self, client, partition):
        """Notes that a program is between snapshots, with all that it was promised."""
        self._crosses.at_snapshot_end(client, partition)

    def barrier_begins(self, client):
        """Returns a mark of the request, for `barrier_ends`."""
        self.operation("barrier asked for", client)
        return self._crosses.barrier_begins()

    def barrier_ends(self, client, begun):
        """Notes a barrier that has returned."""
        self._crosses.barrier_ends(client, begun)
        self.operation("barrier", client)

    def calm(self, seconds, changes):
        """Notes how many times a node came to lead in some seconds in which nothing happened."""
        self.calm_seconds += seconds
        self.calm_changes += changes
        self.calm_changes_most = max(self.calm_changes_most, 60 * changes / seconds)

    @property
    def digest(self):
        """The digest of the whole trace. Two runs with one digest have done the same, byte for byte."""
        return self._digest.hexdigest()

    def add(self, other):
        """Adds the counts of another run."""
        self.operations += other.operations
        self.faults += other.faults
        self.crosses += other.crosses
        self.lost_rows += other.lost_rows
        self.bytes += other.bytes
        self.undecided += other.undecided
        self.calm_seconds += other.calm_seconds
        self.calm_changes += other.calm_changes
        self.calm_changes_most = max(self.calm_changes_most, other.calm_changes_most)

    def __str__(self):
        def line(name, counts):
            return f"{name}: " + (", ".join(f"{what} {count}" for what, count in sorted(counts.items())) or "none")

        lines = [line("operations", self.operations), line("faults", self.faults), line("crosses", self.crosses)]
        lines.append(f"rows lost with level memory: {self.lost_rows}; bytes on the network: {self.bytes}")
        if self.calm_seconds:
            lines.append(
                f"changes of leader from 10 s after a lasting cut on: {self.calm_changes} in {self.calm_seconds:g} s, "
                f"{self.calm_changes_most:g} a minute in one run at most"
            )
        return "\n".join(lines)
