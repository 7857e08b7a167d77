"""Reads the rows of a partition that may be due to expire, and deletes their keys.

    look ── in a thread: blocks of a range ──> due rows, of which the newest in the segments ──> expire ── on the loop:
            those without a newer row in the tree ──> a block of tombstones, in one step with this check

A row that has a newer one is no concern: that has a ttl of its own, or none. So a key that was written again is never
deleted by the ttl of its earlier value.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tailrace.block import Block
from tailrace.block.arrays import Bools, ColumnArrays, join_arrays, take
from tailrace.model.hashing import hash_keys
from tailrace_server.blocks.expiring import NO_ROWS, expiring_rows
from tailrace_server.partition.chain import Chain
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Segment
from tailrace_server.state.expiries import NEVER_US, ExpiryRange
from tailrace_server.tree.open_blocks import OpenBlocks

# The most rows that one look finds. It works by whole columns, in a thread, and takes some milliseconds for them.
ROWS_AT_ONCE = 4_096
# The most rows that one block deletes. Their check, block and append take the loop about a millisecond.
ROWS_OF_BLOCK = 1_024
# Rows with a wrong key hash are looked at again after this time: a compaction may have corrected it by then.
WRONG_US = 60_000_000
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

    due: ColumnArrays
    left: list[ExpiryRange]


def scope_of(partition: Partition, range: ExpiryRange) -> Scope:
    """Returns the segments and blocks that a look at ``range`` reads. The caller pins these segments and the chain."""
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
    due = join_arrays(look.due) if look.due else NO_ROWS
    return Looked(_newest_in(scope.chain, due), look.left)


class _Look:
    """One pass over the rows of a range."""

    def __init__(self, scope: Scope, now_us: int, default_us: int | None) -> None:
        self.due: list[ColumnArrays] = []
        self.left: list[ExpiryRange] = []
        self._range, self._now_us, self._default_us = scope.range, now_us, default_us
        self._rows = self._bytes = 0
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
        if self._rows >= ROWS_AT_ONCE or self._bytes >= READ_BYTES_MAX:
            self._leave(first, self._range.last_seq, self._range.look_us)
            self._is_over = True
            return 0
        self._bytes += block.nbytes
        room = ROWS_AT_ONCE - self._rows
        due, look_us, rest_seq = expiring_rows(block, first, last, self._now_us, self._default_us, room)
        if due.rows:
            self._rows += due.rows
            is_right = np.array(hash_keys(_keys_of(due)), "<u8") == due.hashes
            if not is_right.all():
                due, look_us = take(due, np.flatnonzero(is_right)), min(look_us, self._now_us + WRONG_US)
            if due.rows:
                self.due.append(due)
        if rest_seq:  # the rows that were found are not looked at again: they may have newer ones
            self._leave(first, rest_seq - 1, look_us)
            first, look_us = rest_seq, self._range.look_us
        self._leave(first, last, look_us)
        return 0 if due.rows else look_us

    def _leave(self, first_seq: int, last_seq: int, look_us: int) -> None:
        if look_us < NEVER_US and first_seq <= last_seq:
            self.left.append(ExpiryRange(first_seq, last_seq, look_us))


def _newest_in(chain: Chain, due: ColumnArrays) -> ColumnArrays:
    """Returns the rows of ``due`` that no row in a segment supersedes. Only hashes that occur twice are looked up."""
    if not due.rows or int(due.seqs[0]) > chain.flushed_seq:
        return due
    order = np.argsort(due.hashes)
    hashes, seqs = due.hashes[order], due.seqs[order]
    is_alone = np.ones(due.rows, np.bool_)
    for segment in chain.after(int(due.seqs[0]) - 1):
        counts = segment.counts_of(hashes)
        is_own = (seqs > segment.identity.after_seq) & (seqs <= segment.identity.last_seq)
        # A row of a later segment is not asked for in an earlier one.
        is_alone &= (counts == is_own) | (seqs > segment.identity.last_seq)
    kept: Bools = np.ones(due.rows, np.bool_)
    for row in order[~is_alone].tolist():
        found = chain.find(_key_of(due, row), int(due.hashes[row]))
        kept[row] = found is None or found.seq <= due.seqs[row]
    return due if kept.all() else take(due, np.flatnonzero(kept))


def newest_of(
    partition: Partition, due: ColumnArrays, begin: int, out_of_time: Callable[[], bool]
) -> tuple[ColumnArrays, int] | None:
    """Returns the rows of ``due`` from ``begin`` on that no row in the tree supersedes, and the place behind them.

    None if the index by key was not brought up to date in time: call it again. It takes ROWS_OF_BLOCK rows at most, and
    fewer if it has no time for more.
    """
    if not partition.index_keys(out_of_time):
        return None
    rows = take(due, slice(begin, begin + ROWS_OF_BLOCK))
    newest = partition.keys.newest_seqs(partition.tree, rows.hashes)
    is_kept = (newest == 0) | (newest == rows.seqs)
    opened, end = OpenBlocks(), rows.rows
    for row in np.flatnonzero(~is_kept).tolist():
        found = partition.keys.find(partition.tree, _key_of(rows, row), opened)
        is_kept[row] = found is None or found.seq == rows.seqs[row]
        if out_of_time():
            end = row + 1
            break
    return take(rows, np.flatnonzero(is_kept[:end])), begin + end


def _key_of(rows: ColumnArrays, row: int) -> bytes:
    begin, end = rows.key_offsets[row : row + 2].tolist()
    return rows.key_data[begin:end].tobytes()


def _keys_of(rows: ColumnArrays) -> list[bytes]:
    data = rows.key_data.tobytes()
    return [data[begin:end] for begin, end in pairwise(rows.key_offsets.tolist())]
