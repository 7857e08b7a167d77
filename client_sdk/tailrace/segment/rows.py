"""Reads the rows of several segments, numbered over all of them, in batches of neighbouring blocks.

    segment      A: block block block block      B: block block
    batch        0            1                  2
    row          0            5,000              9,000

A batch is about 1 MiB that is read, verified and opened together, which is fast for small blocks, too. A batch can be
read again for the keys of a few of its rows.
"""

from __future__ import annotations

from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash

from tailrace.block.arrays import I64, U8, U32, U64, ColumnArrays, arrays_of, join_blocks, take
from tailrace.block.check import uniform_width
from tailrace.block.columns import slice_differing, slice_uniform
from tailrace.errors import BadBlock
from tailrace.model.hashing import HASH_SEED
from tailrace.segment.superseded import Keys, RowNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tailrace.block import Block
    from tailrace.segment.open_segment import OpenSegment

READ_BYTES = 1 << 20
# The bytes that are opened together, unless one block has more: a block may be 255 times as large as its file bytes.
RAW_BYTES = 8 << 20


class RowBatch(NamedTuple):
    """Neighbouring ``blocks`` of ``segment``. The first has number ``number``, and is at ``offset`` of the file.

    ``row`` is the number of its first row over all segments.
    """

    segment: OpenSegment[Any]
    number: int
    offset: int
    row: int
    blocks: Sequence[Block]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(block.rows for block in self.blocks)

    def arrays(self) -> ColumnArrays:
        """Returns the columns of all rows. Raises the error of the file, with the place of the block, if one is bad."""
        try:
            return join_blocks(self.blocks)
        except BadBlock:
            self._find_bad_block()
            raise

    def producers(self) -> U64:
        """Returns the producer id of each row; 0 if its block was merged from others."""
        ids = np.array([block.header.producer_id for block in self.blocks], np.uint64)
        return np.repeat(ids, [block.rows for block in self.blocks])

    def _find_bad_block(self) -> None:
        offset = self.offset
        for block in self.blocks:
            try:
                arrays_of(block)
            except BadBlock as error:
                raise self.segment.damaged(offset, error) from None
            offset += block.nbytes


class SegmentRows:
    """The rows of ``segments``, which follow each other, from block ``first_block`` of the first one on.

    ``on_bytes`` is called with the bytes of each read.
    """

    def __init__(
        self,
        segments: Sequence[OpenSegment[Any]],
        on_bytes: Callable[[int], None] = lambda _: None,
        first_block: int = 0,
    ) -> None:
        self._segments = segments
        self._on_bytes = on_bytes
        self._first_block = first_block
        self._places: list[tuple[OpenSegment[Any], int, int]] = []  # the place of each batch that was read
        self._row_begins: list[int] = []

    @property
    def count(self) -> int:
        """The number of rows."""
        rows = sum(segment.identity.rows for segment in self._segments)
        return rows - self._segments[0].place_of(self._first_block)[1] if self._first_block else rows

    def batches(self) -> Iterator[RowBatch]:
        """Yields all rows in order. Raises the error of the file."""
        self._places.clear()
        self._row_begins.clear()
        row, number = 0, self._first_block
        for segment in self._segments:
            offset, _ = segment.place_of(number)
            while number < segment.blocks:
                self._places.append((segment, number, offset))
                self._row_begins.append(row)
                batch = self._read(len(self._places) - 1)
                yield batch
                row += batch.rows
                number += len(batch.blocks)
                offset += sum(block.nbytes for block in batch.blocks)
            number = 0

    def keys_of(self, rows: RowNumbers | I64) -> Keys:
        """Returns the keys of rising row numbers. Reads only batches with such rows. Raises the error of the file."""
        begins = np.array(self._row_begins, np.int64)
        cuts = [*np.searchsorted(rows, begins).tolist(), len(rows)]
        pieces = [
            _keys_in(self._read(index), rows[start:stop])
            for index, (start, stop) in enumerate(pairwise(cuts))
            if start < stop
        ]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.concatenate([lengths for lengths, _ in pieces]), out=offsets[1:])
        return Keys(offsets, np.concatenate([data for _, data in pieces]))

    def _read(self, index: int) -> RowBatch:
        segment, number, offset = self._places[index]
        blocks, _ = segment.read_blocks(number, READ_BYTES)
        self._on_bytes(sum(block.nbytes for block in blocks))
        sizes = accumulate(block.header.raw_bytes for block in blocks)
        count = sum(size <= RAW_BYTES for size in sizes)
        return RowBatch(segment, number, offset, self._row_begins[index], blocks[: max(1, count)])


def hashes_of_keys(arrays: ColumnArrays) -> U64:
    """Returns the hash of each key, computed from its bytes."""
    offsets, data, rows = arrays.key_offsets.data.cast("B"), arrays.key_data.data, arrays.rows
    width = uniform_width(offsets, rows)
    keys = slice_differing(offsets, data, rows) if width is None else slice_uniform(data, rows, width)
    return np.fromiter(map(xxhash.xxh64_intdigest, keys, repeat(HASH_SEED)), np.uint64, rows)


def _keys_in(batch: RowBatch, rows: RowNumbers | I64) -> tuple[U32, U8]:
    """Returns the lengths and the bytes of the keys of ``rows``, which are in this batch."""
    arrays = batch.arrays()
    no_values = arrays._replace(value_offsets=np.zeros(arrays.rows + 1, np.uint32), value_data=np.zeros(0, np.uint8))
    taken = take(no_values, rows.astype(np.intp) - batch.row)
    return np.diff(taken.key_offsets), taken.key_data
