"""What happened in a run of a set."""

from __future__ import annotations

import xxhash

from .report import Report


class SetReport(Report):
    """As that of a single node, but for the crosses, which are of one node and one feed."""

    def __init__(self, trace=None):
        super().__init__(trace)
        self.undecided = 0
        self.violation = None  # raised within a program of a client, where another error may hide it

    def arrived(self, connection, client, server, upward, data):
        self.bytes += len(data)
        way = ">" if upward else "<"
        self.note(f"{client} {way} {server} {connection} {len(data)} {xxhash.xxh3_64_hexdigest(data)}")

    def appended(self, partition, last_seq):
        self.operation("block", f"{partition}/{last_seq}")

    def compacted(self, task, result):
        self.operation("purge" if result.purged else "fold", f"{result.rows} {result.purged}")

    def node_died(self, how):
        self.operation("node dies", how)

    def rolled_back(self, client, partition, detail):
        self.operation("rollback of a reader", f"{client} {partition} {detail}")
