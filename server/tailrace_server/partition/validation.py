"""The checks at the door: what a producer's block must pass before it gets its seqs.

After them nothing of the block is looked at again on the way to journal, tree and streams, and a broken one would be
refused by every consumer for ever. Header and body sums were verified by ``Block.parse``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.block import BODY_BYTES_MAX, FLAG_SEQS, FLAG_TIMESTAMPS
from tailrace.errors import BadBlock, TooLarge

if TYPE_CHECKING:
    from tailrace.block import Block

# Rows that a filter leaves of a block have gaps between their seqs, and so a column of these.
_SEQ_BYTES = 8


def validate_block(block: Block, hash_first: int, hash_last: int) -> None:
    """BadBlock where ``block`` may not enter a partition that owns the hashes ``hash_first`` to ``hash_last``.

    Both ends are included. The block must be as a producer makes it: without seqs and timestamps, its key hashes inside
    the range, its columns whole. TooLarge where a part of its rows might be no block any more. No row is looked at:
    under 50 µs for 1,000 rows that are not compressed.
    """
    header = block.header
    if header.flags & (FLAG_SEQS | FLAG_TIMESTAMPS):
        raise BadBlock("a producer's block must not have columns of seqs or timestamps: the server gives them")
    if header.first_seq or header.last_seq or header.timestamp:
        raise BadBlock("a producer's block must not have seqs or a timestamp in its header: the server gives them")
    if header.least_hash < hash_first or header.greatest_hash > hash_last:
        raise BadBlock(
            f"the block's key hashes {header.least_hash} to {header.greatest_hash} are outside of partition "
            f"{header.partition}, which owns {hash_first} to {hash_last}: route keys by the partitions of this feed"
        )
    if header.raw_bytes + header.rows * _SEQ_BYTES > BODY_BYTES_MAX:
        raise TooLarge(
            f"the body has {header.raw_bytes} bytes for {header.rows} rows, and with {_SEQ_BYTES} more for each row at "
            f"most {BODY_BYTES_MAX} are permitted: make several blocks"
        )
    block.open_columns()
