"""Finds the data of a partition that a program of a release before ttls cannot read, and names the refusal."""

from __future__ import annotations

from tailrace.segment.ends import VERSION_PLAIN
from tailrace_server.partition.partition import Partition

# In a packed header of a block: its version, and the one of blocks without ttls.
VERSION_AT, PLAIN = 4, 1


def first_with_ttls(partition: Partition, after_seq: int) -> int:
    """Returns the first seq of a segment or block above ``after_seq`` that has ttls or expiries; 0 if none has."""
    for segment in partition.chain.after(after_seq):
        if segment.version != VERSION_PLAIN:
            return max(segment.identity.after_seq, after_seq) + 1
    for block in partition.tree.blocks_after(max(after_seq, partition.flushed_seq)):
        if block.head[VERSION_AT] != PLAIN:
            return max(block.seqs[0], after_seq + 1)
    return 0


def unread_ttls(partition: Partition, seq: int) -> str:
    """Returns the message to a program that cannot read the rows from ``seq`` on."""
    return (
        f"partition {partition.id} of feed {partition.feed_name!r} has rows with ttls, or expired keys, from seq {seq} "
        "on, and this program was released before there were ttls: update it, then it goes on where it stands"
    )
