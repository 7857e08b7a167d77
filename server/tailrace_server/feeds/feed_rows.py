"""The rows of ``_feeds``, the feed that lists the feeds, so that replicas get the list like any other rows.

key      the feed's id, 16 bytes; it is never used again
value    the payload of the journal's record of the creation (feed.creation_to_bytes); a deletion: the feed was dropped

Rows with other keys are of tokens (token_rows.py), and of named consumers and groups (consumer_rows.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tailrace.block import Block, encode_block
from tailrace.model import FEED_ID_BYTES
from tailrace_server.feeds.consumer_rows import CONSUMER_PREFIX, ConsumerRows
from tailrace_server.feeds.token_rows import TokenRows
from tailrace_server.partition.partition import Partition

# Rows of a block, about 300 bytes each.
BLOCK_ROWS_MAX = 1_000
# Bytes of one read of a segment.
READ_BYTES = 1024 * 1024


class FeedRow(NamedTuple):
    """The newest row of a feed; ``creation`` is None if the feed was dropped."""

    seq: int
    creation: bytes | None


def system_blocks(rows: Mapping[bytes, bytes | None]) -> Iterator[Block]:
    """Yields blocks of ``rows``: the payload of a creation by the feed's id, None for a drop."""
    items = list(rows.items())
    for begin in range(0, len(items), BLOCK_ROWS_MAX):
        keys, values = zip(*items[begin : begin + BLOCK_ROWS_MAX], strict=True)
        yield encode_block(keys, values, partition=0)


class FeedRows:
    """The newest row of each feed. Rows are read once; ``read`` adds the rows that came since.

    ``unsettled`` are the ids of feeds that may differ from their rows, in the order of the rows: `Catalog.reconcile`
    looks at no other feed. So a new row costs the same with ten thousand feeds as with ten.
    """

    def __init__(self, partition: Partition) -> None:
        self.unsettled: dict[bytes, None] = {}
        self.tokens = TokenRows()
        self.consumers = ConsumerRows()
        self._partition = partition
        self._rows: dict[bytes, FeedRow] = {}
        self._seq = self._rollbacks = 0

    def unsettle(self, feed_id: bytes) -> None:
        """Notes that a feed may differ from its row, or may have none."""
        self.unsettled[feed_id] = None

    def settle(self, feed_id: bytes) -> None:
        """Notes that a feed is as its row says."""
        self.unsettled.pop(feed_id, None)

    def read(self) -> Mapping[bytes, FeedRow]:
        """Returns the rows up to the high seq, by feed id. Reads segments that were not read yet. SegmentDamaged."""
        partition = self._partition
        if self._rollbacks != partition.rollbacks or self._seq > partition.high_seq:
            self.unsettled.update(dict.fromkeys(self._rows))
            self._rows, self._seq, self._rollbacks = {}, 0, partition.rollbacks
            self.tokens.clear()
            self.consumers.clear()
        for block in _blocks_after(partition, self._seq):
            columns = block.open_columns()
            for key, value, seq in zip(columns.keys(), columns.values(), columns.seqs(), strict=True):
                if seq <= self._seq:
                    continue
                if len(key) == FEED_ID_BYTES:
                    self._rows[key] = FeedRow(seq, value)
                    self.unsettled.pop(key, None)  # so that the newest row is the last
                    self.unsettled[key] = None
                elif key.startswith(CONSUMER_PREFIX):
                    self.consumers.take(key, value)
                else:
                    self.tokens.take(key, value)
        self._seq = partition.high_seq
        return self._rows


def _blocks_after(partition: Partition, seq: int) -> Iterator[Block]:
    for segment in partition.chain.after(seq):
        index = segment.block_after(seq)
        while index < segment.blocks:
            blocks, index = segment.read_blocks(index, READ_BYTES)
            yield from blocks
    yield from partition.tree.blocks_after(max(seq, partition.flushed_seq))
