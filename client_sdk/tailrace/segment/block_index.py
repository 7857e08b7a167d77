"""The block index of a segment: the place, the seqs and the count of rows of each block. Pure.

The entries are stored as columns, so that opening takes them as they are, without work by block:

    offset u64 | first seq u64 | last seq u64 | bytes u32 | rows u32, each once for every block
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.block import BODY_BYTES_MAX, HEADER_BYTES, ROWS_MAX, Block
from tailrace.block.arrays import I64, U32, U64, Bools
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.identity import SegmentIdentity

ENTRY_BYTES = 8 + 8 + 8 + 4 + 4


class BlockIndex(NamedTuple):
    """One entry a block in each column, in seq order. ``offsets`` are from the file's beginning."""

    offsets: U64
    first_seqs: U64
    last_seqs: U64
    nbytes: U32
    rows: U32

    @classmethod
    def of(cls, entries: list[tuple[int, int, int, int, int]]) -> BlockIndex:
        """Returns the index of entries (offset, first seq, last seq, bytes, rows)."""
        table = np.array(entries, "<u8").reshape(-1, 5)
        offsets, first_seqs, last_seqs, nbytes, rows = (np.ascontiguousarray(table[:, i]) for i in range(5))
        return cls(offsets, first_seqs, last_seqs, nbytes.astype("<u4"), rows.astype("<u4"))

    def pack(self) -> bytes:
        """Returns ENTRY_BYTES for each block."""
        return b"".join(column.tobytes() for column in self)

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> BlockIndex:
        """Returns the columns as views of ``data``, which has ENTRY_BYTES for each block."""
        count = len(data) // ENTRY_BYTES
        return cls(
            np.frombuffer(data, "<u8", count),
            np.frombuffer(data, "<u8", count, 8 * count),
            np.frombuffer(data, "<u8", count, 16 * count),
            np.frombuffer(data, "<u4", count, 24 * count),
            np.frombuffer(data, "<u4", count, 28 * count),
        )

    def check(self, begin: int, identity: SegmentIdentity) -> None:
        """Raises SegmentFormatError unless blocks lie back to back from ``begin``, seqs rise, and ``identity`` fits."""
        ends = self.offsets + self.nbytes
        firsts = np.concatenate((np.array([begin], np.uint64), ends[:-1])) if len(ends) else ends
        self._check_all(self.offsets == firsts, "does not begin at the end of the one before it")
        sizes = (self.nbytes > HEADER_BYTES) & (self.nbytes <= HEADER_BYTES + BODY_BYTES_MAX)
        self._check_all(sizes, "has a length that can't be")
        self._check_all((self.rows >= 1) & (self.rows <= ROWS_MAX), "has a count of rows that can't be")
        self._check_all(self.first_seqs >= 1, "begins at seq 0")
        self._check_all(self.last_seqs >= self.first_seqs, "ends at a lower seq than it begins at")
        self._check_all(self.last_seqs - self.first_seqs >= self.rows - np.uint32(1), "has more rows than seqs")
        before = np.concatenate((np.array([identity.after_seq], np.uint64), self.last_seqs[:-1])) if len(ends) else ends
        self._check_all(self.first_seqs > before, "begins at a seq that is not above what comes before it")
        self._check_all(self.last_seqs <= identity.last_seq, "ends above the segment's last seq")
        rows = int(self.rows.sum(dtype=np.uint64))
        if rows != identity.rows:
            raise SegmentFormatError(f"the blocks have {rows} rows, the identity says {identity.rows}")

    def check_block(self, number: int, block: Block, partition: int) -> None:
        """Raises SegmentFormatError unless ``block`` is the one that entry ``number`` describes."""
        header = block.header
        found = (header.first_seq, header.last_seq, block.nbytes, header.rows, header.partition)
        entry = (*(int(column[number]) for column in self[1:]), partition)
        if found != entry:
            raise SegmentFormatError(
                f"seqs, bytes, rows and partition of this block are {found}, the index says {entry} of block {number}"
            )

    @property
    def row_begins(self) -> I64:
        """The number of each block's first row in the segment, and at the end the count of all rows."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.rows, dtype=np.int64)))

    def places(self, begin: int) -> U64:
        """Returns the offset of each block, and of the last one's end: ``begin`` if there is no block."""
        if not len(self.offsets):
            return np.array([begin], np.uint64)
        return np.append(self.offsets, self.offsets[-1:] + self.nbytes[-1:])

    def _check_all(self, is_good: Bools, what: str) -> None:
        if not is_good.all():
            block = int(np.argmin(is_good))
            raise SegmentFormatError(f"block {block} of {len(is_good)} in the block index {what}")
