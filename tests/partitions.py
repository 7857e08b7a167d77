"""Reads partitions of a node that runs in the process of the test."""

from __future__ import annotations


def blocks_of(partition):
    """Returns the blocks of the segments, and then those of the tree."""
    for segment in partition.chain.segments:
        number = 0
        while number < segment.blocks:
            blocks, number = segment.read_blocks(number, 1 << 20)
            yield from blocks
    yield from partition.tree.blocks_after(partition.flushed_seq)
