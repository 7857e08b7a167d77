"""Reads the rows of a partition that may be due to expire, and deletes their keys.

    look ── in a thread: blocks of a range ──> due rows, of which the newest in the segments ──> expire ── on the loop:
            those without a newer row in the tree ──> a block of tombstones, in one step with this check

A row that has a newer one is no concern: that has a ttl of its own, or none. So a key that was written again is never
deleted by the ttl of its earlier value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tailrace.block import Block, encode_block
from tailrace.block.header import EXPIRED
from tailrace_server.blocks.expiring import DueRow, expiring_rows
from tailrace_server.partition.chain import Chain
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Segment
from tailrace_server.state.expiries import NEVER_US, ExpiryRange
from tailrace_server.tree.key_index import OpenBlocks

# The rows that one look finds, and that one block deletes: the check of their keys takes the loop some milliseconds.
ROWS_AT_ONCE = 512
# The bytes of segments that one look reads.
READ_BYTES_MAX = 4 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


class Scope(NamedTuple):
    """What a look reads, as of one moment: segments and blocks with the rows of ``range``, and all of the chain."""

    range: ExpiryRange
    segments: tuple[Segment, ...]
    blocks: tuple[Block, ...]
    chain: Chain


class Looked(NamedTuple):
    """The due rows that no row in a segment supersedes, and the ranges of rows that need another look."""

    due: list[DueRow]
    left: list[ExpiryRange]


def scope_of(partition: Partition, range: ExpiryRange) -> Scope:
    """Returns what a look at ``range`` reads. The caller pins the segments, and those of the chain."""
    first, last = range.first_seq, range.last_seq
    segments = [segment for segment in partition.chain.after(first - 1) if segment.identity.after_seq < last]
    blocks = []
    for block in partition.tree.blocks_after(first - 1):
        if block.seqs[0] > last:
            break
        blocks.append(block)
    return Scope(range, tuple(segments), tuple(blocks), partition.chain)


def look(scope: Scope, now_us: int, default_us: int | None) -> Looked:
    """Reads the rows of ``scope``, at most ROWS_AT_ONCE due ones. Waits for the disk: call it in a thread.

    Raises SegmentDamaged, BadBlock.
    """
    look = _Look(scope, now_us, default_us)
    for segment in scope.segments:
        if default_us is not None or segment.identity.earliest_expiry:
            look.take_segment(segment)
    for block in scope.blocks:
        look.take(block)
    return Looked([row for row in look.due if not _is_superseded(scope.chain, row)], look.left)


class _Look:
    """One pass over the rows of a range."""

    def __init__(self, scope: Scope, now_us: int, default_us: int | None) -> None:
        self.due: list[DueRow] = []
        self.left: list[ExpiryRange] = []
        self._range, self._now_us, self._default_us = scope.range, now_us, default_us
        self._bytes = 0
        self._is_over = False  # the rest was left for the next look

    def take_segment(self, segment: Segment) -> None:
        """Looks at the blocks of a segment, as far as one may have rows that are due."""
        identity, last = segment.identity, self._range.last_seq
        index = segment.block_after(self._range.first_seq - 1)
        while index < segment.blocks and int(segment.first_seqs[index]) <= last and not self._is_over:
            blocks, index = segment.read_blocks(index, _PIECE_BYTES)
            for block in blocks:
                look_us = self.take(block)
                if not identity.earliest_expiry and self._now_us < look_us < NEVER_US:
                    # No row of the segment has a ttl of its own, and stamps never fall: the others are due later.
                    self._leave(block.seqs[1] + 1, min(identity.last_seq, last), look_us)
                    return

    def take(self, block: Block) -> int:
        """Looks at a block. Returns the time of the next look; 0 if some of its rows are due now."""
        first, last = max(block.seqs[0], self._range.first_seq), min(block.seqs[1], self._range.last_seq)
        if self._is_over or first > last:
            return 0
        if len(self.due) >= ROWS_AT_ONCE or self._bytes >= READ_BYTES_MAX:
            self._leave(first, self._range.last_seq, self._range.look_us)
            self._is_over = True
            return 0
        self._bytes += block.nbytes
        room = ROWS_AT_ONCE - len(self.due)
        found = expiring_rows(block, first, last, self._now_us, self._default_us, room)
        self.due += found.due
        if found.rest_seq:  # the rows that were found are not looked at again: they may have newer ones
            self._leave(first, found.rest_seq - 1, found.look_us)
            first, found = found.rest_seq, found._replace(look_us=0)
        self._leave(first, last, found.look_us)
        return 0 if found.due else found.look_us

    def _leave(self, first_seq: int, last_seq: int, look_us: int) -> None:
        if look_us < NEVER_US and first_seq <= last_seq:
            self.left.append(ExpiryRange(first_seq, last_seq, look_us))


def _is_superseded(chain: Chain, row: DueRow) -> bool:
    """Returns whether a segment has a newer row of the key."""
    if row.seq > chain.flushed_seq:
        return False
    found = chain.find(row.key, row.hash)
    return found is not None and found.seq > row.seq


def newest_of(
    partition: Partition, due: Sequence[DueRow], begin: int, out_of_time: Callable[[], bool]
) -> tuple[list[DueRow], int] | None:
    """Returns the rows of ``due`` from ``begin`` on that no row in the tree supersedes, and the place behind them.

    None if the index by key was not brought up to date in time: call it again. It takes the rows that it has time for.
    """
    if not partition.index_keys(out_of_time):
        return None
    opened, kept, place = OpenBlocks(), [], begin
    while place < len(due):
        row = due[place]
        found = partition.keys.find(partition.tree, row.key, opened)
        if found is None or found.seq == row.seq:
            kept.append(row)
        place += 1
        if out_of_time():
            break
    return kept, place


def tombstones_of(partition: Partition, rows: Sequence[DueRow]) -> Block:
    """Returns the block that deletes the keys of ``rows``, as expiries."""
    keys, hashes = [row.key for row in rows], [row.hash for row in rows]
    nothing: list[bytes | None] = [None] * len(rows)
    return encode_block(keys, nothing, partition=partition.id, hashes=hashes, ttls=[EXPIRED] * len(rows))
