"""Sorts the rows of a share that is too large for one record into buckets by key hash, in a scratch file.

    blocks in any order of hashes ──add──> buckets of rows in memory ──write──> blocks of one bucket each, in the file

Within a bucket, and so within a key, rows keep the order in which they were added. Memory holds ``HELD_BYTES_MAX`` of
rows, for any number of rows. All methods are for a thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace.errors import BadBlock, UnknownStage
from tailrace_server.blocks import BlockBuilder, ColumnArrays, join_arrays, join_blocks, reorder, take
from tailrace_server.host.disk import File, raise_if_no_space
from tailrace_server.publishing.joining import JOINED_BYTES_MAX

# Raw bytes of rows in memory before they are written: 1,024 buckets then get blocks of some 32 KiB.
HELD_BYTES_MAX = 32 * 1024 * 1024
# Raw bytes that are sorted or filtered in one step.
STEP_BYTES = 4 * 1024 * 1024
# Buckets of one share. Each has an entry in memory for each time that rows are written.
BUCKETS_MAX = 1_024
# Buckets of a part: with evenly spread hashes, at most one bucket's share of a part stays empty.
BUCKETS_A_PART = 8
# Bytes of a row beside key and value: the hash, both offsets, and the numbers for sorting.
_ROW_BYTES = 32


class ScratchBlock(NamedTuple):
    """A block in the scratch file."""

    offset: int
    nbytes: int


class Bucket:
    """The rows with key hashes from ``first_hash`` to ``last_hash``."""

    __slots__ = ("extents", "first_hash", "last_hash", "nbytes", "pieces")

    def __init__(self, first_hash: int, last_hash: int) -> None:
        self.first_hash = first_hash
        self.last_hash = last_hash
        self.extents: list[ScratchBlock] = []
        self.nbytes = 0  # of the blocks that are written
        self.pieces: list[ColumnArrays] = []  # rows that are not written yet


class Spread:
    """Sorts rows with key hashes from ``first_hash`` to ``last_hash`` into ``count`` buckets; skips other rows."""

    def __init__(self, file: File, partition: int, first_hash: int, last_hash: int, count: int) -> None:
        self._file = file
        self._partition = partition
        self._first_hash, self._last_hash = first_hash, last_hash
        width = self._width = -(-(last_hash - first_hash + 1) // count)
        begins = range(first_hash, last_hash + 1, width)
        self.buckets = [Bucket(begin, min(begin + width - 1, last_hash)) for begin in begins]
        self._end = 0
        self._held_bytes = 0
        self._compress = False

    def add(self, blocks: Iterable[Block]) -> None:
        """Adds blocks that have no seqs. Raises BadBlock if one is damaged, NoSpace, UnknownStage."""
        for group in steps(blocks):
            self._compress |= any(block.header.flags & FLAG_COMPRESSED for block in group)
            self._sort(join_blocks(group))
            if self._held_bytes >= HELD_BYTES_MAX:
                self.write()

    def _sort(self, arrays: ColumnArrays) -> None:
        rows = rows_between(arrays, self._first_hash, self._last_hash)
        if not len(rows):
            return
        places = (arrays.hashes[rows] - np.uint64(self._first_hash)) // np.uint64(self._width)
        numbers = places.astype(np.uint16)
        order = np.argsort(numbers, kind="stable")
        taken = reorder(arrays, rows[order])
        numbers = numbers[order]
        begins = np.flatnonzero(np.diff(numbers, prepend=np.uint16(0) if numbers[0] else np.uint16(1)))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(numbers)], strict=True):
            self.buckets[int(numbers[begin])].pieces.append(take(taken, slice(begin, end)))
        self._held_bytes += len(taken.key_data) + len(taken.value_data) + _ROW_BYTES * taken.rows

    def write(self) -> None:
        """Writes the rows that are held in memory. Raises NoSpace, UnknownStage."""
        self._held_bytes = 0
        for bucket in self.buckets:
            if not bucket.pieces:
                continue
            pieces, bucket.pieces = bucket.pieces, []
            for block in encode_rows(pieces, self._partition, compress=self._compress):
                try:
                    self._file.write_at(self._end, (block.head, block.body), block.nbytes)
                except OSError as error:
                    raise_if_no_space(error, "for the parts of a publish")
                    raise UnknownStage(f"the parts of a publish cannot be written: {error.strerror}") from error
                bucket.extents.append(ScratchBlock(self._end, block.nbytes))
                bucket.nbytes += block.nbytes
                self._end += block.nbytes

    def read(self, bucket: Bucket) -> Iterator[Block]:
        """Yields the written blocks of ``bucket``. Raises UnknownStage if one cannot be read."""
        for extent in bucket.extents:
            try:
                yield Block.parse(self._file.read_at(*extent))
            except (BadBlock, OSError) as error:
                raise UnknownStage(f"the parts of a publish cannot be read: {error}") from error


def steps(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Yields ``blocks`` in groups of at most ``STEP_BYTES`` raw bytes, or of one block."""
    group: list[Block] = []
    raw_bytes = 0
    for block in blocks:
        if group and raw_bytes + block.header.raw_bytes > STEP_BYTES:
            yield group
            group, raw_bytes = [], 0
        group.append(block)
        raw_bytes += block.header.raw_bytes
    if group:
        yield group


def rows_between(arrays: ColumnArrays, first_hash: int, last_hash: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Returns the indices of the rows with a key hash from ``first_hash`` to ``last_hash``."""
    hashes = arrays.hashes
    return np.flatnonzero((hashes >= np.uint64(first_hash)) & (hashes <= np.uint64(last_hash)))


def encode_rows(pieces: Sequence[ColumnArrays], partition: int, *, compress: bool) -> list[Block]:
    """Returns the rows of ``pieces``, none of them empty, in blocks like those of a producer."""
    blocks: list[Block] = []
    builder = BlockBuilder(partition, JOINED_BYTES_MAX, compress=compress, on_block=blocks.append)
    rows = join_arrays(pieces)
    builder.add(rows._replace(seqs=np.arange(1, rows.rows + 1, dtype="<u8"), timestamps=np.ones(rows.rows, "<u8")))
    builder.finish()
    return blocks
