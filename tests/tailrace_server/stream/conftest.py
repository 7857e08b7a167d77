from __future__ import annotations

import pytest

from tailrace.block import encode_block
from tailrace.failover import FailoverEntry
from tailrace_server.partition import Partition

FEED_ID = b"f" * 16


class WritablePartition(Partition):
    """A partition that is written to without a journal."""

    def __init__(self, id):
        super().__init__(FEED_ID, id, 0, 2**64 - 1)
        self.log = self.log.with_entry(FailoverEntry(bytes([id + 1]) * 16, 1, 0))

    def write(self, rows=1, value_bytes=1):
        """Appends a block; it is in memory only."""
        block = encode_block([b"k"] * rows, [bytes(value_bytes)] * rows, partition=self.id, compress=False)
        self.recover_block(block.stamped(self.high_seq + 1, 1), 0.0)

    def sync(self):
        """Everything is durable."""
        self.durable_through(self.high_seq)


@pytest.fixture
def make_partition():
    """A function from an id to a partition without a journal."""
    return WritablePartition
