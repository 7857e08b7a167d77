"""Finds the seqs at which a stream or a read of a partition may stop. Pure."""

from __future__ import annotations

from tailrace_server.partition.chain import Chain
from tailrace_server.state.published_batches import PublishedBatches
from tailrace_server.tree.tree import Tree


def end_at(tree: Tree, published: PublishedBatches, chain: Chain, seq: int) -> int:
    """Returns the last end of a block, of a published batch or of a segment at or below ``seq``."""
    if seq <= tree.base_seq:
        return chain.end_at(seq)
    block = tree.find(seq)
    assert block is not None, "a visible seq is in the tree or in segments"
    first_seq, last_seq = block.seqs
    seq = seq if last_seq == seq else first_seq - 1
    batch = published.around(seq)
    return seq if batch is None else batch.after_seq
