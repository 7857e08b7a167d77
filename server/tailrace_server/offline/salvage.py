"""Reads the good blocks of a damaged segment, and fills the gaps from the journal.

    damaged   [ block ][ bad ][ block ]          new   [ block ][ from the journal, if it still has it ][ block ]

If the block index can be read, it has the place of each block, and the seqs of a bad one. Otherwise the lengths in the
blocks' headers lead from block to block, up to the first bad header. It does not search for headers, because a value
may have bytes that look like a block.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.block import BODY_BYTES_MAX, Block, BlockHeader, Columns
from tailrace.block.arrays import arrays_of, encode_arrays, take
from tailrace.block.header import FLAG_COMPRESSED
from tailrace.block.header import HEADER_BYTES as BLOCK_HEADER_BYTES
from tailrace.block.layout import read_layout
from tailrace.errors import BadBlock
from tailrace.model.hashing import key_hash
from tailrace.segment.block_index import BlockIndex
from tailrace.segment.footer import Footer
from tailrace.segment.format import HEADER_BYTES
from tailrace_server.offline.journal_walk import TolerantFile
from tailrace_server.segment import SegmentDamaged
from tailrace_server.segment.file import SegmentFile

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class BadStretch(NamedTuple):
    """Bytes of a segment that are no block. Its seqs, both included, and its number of rows are 0 if unknown.

    ``keys`` are readable keys that match their hash in another column.
    """

    offset: int
    first_seq: int
    last_seq: int
    rows: int
    keys: tuple[bytes, ...]
    why: str


class LostRange(NamedTuple):
    """Lost seqs, both included: place and reason, and the number of rows and some keys, if known."""

    first_seq: int
    last_seq: int
    rows: int | None
    keys: tuple[bytes, ...]
    offset: int | None
    why: str


def read_segment(disk: Disk, path: str, partition: int) -> Iterator[Block | BadStretch]:
    """Yields the blocks of a segment and the bad stretches between them, in order. Raises OSError if it cannot open."""
    index = _index_of(disk, path)
    with contextlib.closing(disk.open(path)) as file:
        readable = TolerantFile(file)
        if index is not None:
            yield from _by_index(readable, index, partition)
        else:
            yield from _by_length(readable, partition)


def _index_of(disk: Disk, path: str) -> BlockIndex | None:
    with contextlib.closing(SegmentFile(disk, path)) as file:
        try:
            return Footer.read(file).blocks
        except SegmentDamaged:
            return None


def _by_index(file: TolerantFile, index: BlockIndex, partition: int) -> Iterator[Block | BadStretch]:
    for number, (offset, first_seq, last_seq, nbytes, rows) in enumerate(
        zip(*(c.tolist() for c in index), strict=True)
    ):
        data = file.read_at(offset, nbytes)
        try:
            block = Block.parse(data)
            index.check_block(number, block, partition)
            block.open_columns()
        except (BadBlock, ValueError) as error:
            yield BadStretch(offset, first_seq, last_seq, rows, tuple(proven_keys(data)), str(error))
        else:
            yield block


def _by_length(file: TolerantFile, partition: int) -> Iterator[Block | BadStretch]:
    offset, size = HEADER_BYTES, file.size()
    while offset + BLOCK_HEADER_BYTES <= size:
        head = file.read_at(offset, BLOCK_HEADER_BYTES)
        try:
            header = BlockHeader.unpack(head)
        except BadBlock as error:
            # Zeros and the key table follow the last block, whose end is unknown.
            yield BadStretch(offset, 0, 0, 0, (), f"no block begins here, or its header is damaged: {error}")
            return
        if header.partition != partition or header.stored_bytes > BODY_BYTES_MAX:
            yield BadStretch(offset, 0, 0, 0, (), "a block of another partition")
            return
        nbytes = BLOCK_HEADER_BYTES + header.stored_bytes
        data = file.read_at(offset, nbytes)
        try:
            block = Block.parse(data)
            block.open_columns()
        except BadBlock as error:
            keys = tuple(proven_keys(data))
            yield BadStretch(offset, header.first_seq, header.last_seq, header.rows, keys, str(error))
        else:
            yield block
        offset += nbytes
    yield BadStretch(min(offset, size), 0, 0, 0, (), "the file ends here, before its block index")


def proven_keys(data: bytes) -> list[bytes]:
    """Returns the keys of a damaged block that are right: each matches its hash in another column."""
    try:
        header = BlockHeader.unpack(data)
        if header.flags & FLAG_COMPRESSED:
            return []
        raw = memoryview(data)[BLOCK_HEADER_BYTES:]
        columns = Columns(header, read_layout(header, raw), raw)
        offsets = np.frombuffer(columns.key_offsets, "<u4").tolist()
        hashes, keys = columns.hashes(), columns.key_data
    except (BadBlock, ValueError):
        return []
    found = (bytes(keys[begin:end]) for begin, end in itertools.pairwise(offsets))
    return [key for key, hash_ in zip(found, hashes, strict=True) if key_hash(key) == hash_]


class Salvage:
    """Restores the rows (``after_seq``, ``last_seq``] of a segment, in seq order.

    ``sink`` takes the blocks. ``spare`` returns the blocks of the journal that have any seq of a range, both ends
    included, in seq order. ``lost`` has the missing seqs after ``finish``.
    """

    def __init__(
        self,
        after_seq: int,
        last_seq: int,
        sink: Callable[[Block], None],
        spare: Callable[[int, int], Iterable[Block]],
    ) -> None:
        self._seq = after_seq
        self._last_seq = last_seq
        self._sink = sink
        self._spare = spare
        self._bad: list[BadStretch] = []
        self._rows = 0
        self.lost: list[LostRange] = []

    def add(self, item: Block | BadStretch) -> None:
        """Adds the next item of a damaged segment; ignores a block outside of the seqs that are still missing."""
        if isinstance(item, BadStretch):
            self._bad.append(item)
            return
        header = item.header
        if not self._seq < header.first_seq <= header.last_seq <= self._last_seq:
            return
        if self._bad:
            self._close_gap(header.first_seq - 1)
        self._put(item)

    def finish(self, why: str, rows: int | None = None) -> None:
        """Ends the segment. ``why`` is the reason if rows at its end are missing without a bad stretch; "": none are.

        ``rows`` is the segment's number of rows, if known: with all of them nothing is lost.
        """
        if self._seq < self._last_seq and (self._bad or why) and self._rows != rows:
            if not self._bad:
                self._bad.append(BadStretch(0, 0, 0, 0, (), why))
            self._close_gap(self._last_seq)

    def _put(self, block: Block) -> None:
        self._sink(block)
        self._seq = block.header.last_seq
        self._rows += block.rows

    def _close_gap(self, last_seq: int) -> None:
        """Fills the missing seqs up to ``last_seq`` from the journal, and notes the others as lost."""
        bad, self._bad = self._bad, []
        known = [stretch for stretch in bad if stretch.first_seq]
        if len(known) != len(bad):  # the seqs of a stretch are unknown
            known = [bad[0]._replace(first_seq=self._seq + 1, last_seq=last_seq, rows=0, keys=sum_keys(bad))]
        for stretch in known:
            first = max(stretch.first_seq, self._seq + 1)
            last = min(stretch.last_seq, last_seq)
            if first <= last:
                self._fill(first, last, stretch)

    def _fill(self, first: int, last: int, stretch: BadStretch) -> None:
        wanted = first
        for block in self._spare(first, last):
            cut = cut_rows(block, wanted, last)
            if cut is None:
                continue
            if cut.header.first_seq > wanted:
                self._lose(wanted, cut.header.first_seq - 1, stretch)
            self._put(cut)
            wanted = cut.header.last_seq + 1
        if wanted <= last:
            self._lose(wanted, last, stretch)

    def _lose(self, first: int, last: int, stretch: BadStretch) -> None:
        is_whole = (first, last) == (stretch.first_seq, stretch.last_seq)
        rows = stretch.rows if is_whole and stretch.rows else None
        self.lost.append(LostRange(first, last, rows, stretch.keys, stretch.offset or None, stretch.why))


def sum_keys(stretches: Iterable[BadStretch]) -> tuple[bytes, ...]:
    """Returns the keys of several stretches."""
    return tuple(key for stretch in stretches for key in stretch.keys)


def cut_rows(block: Block, first: int, last: int) -> Block | None:
    """Returns the rows of a block with seqs from ``first`` to ``last``, or None if it has none of them."""
    header = block.header
    if first <= header.first_seq and header.last_seq <= last:
        return block
    if header.first_seq > last or header.last_seq < first:
        return None
    arrays = arrays_of(block)
    begin, end = np.searchsorted(arrays.seqs, [first, last + 1])
    if begin >= end:
        return None
    compress = bool(header.flags & FLAG_COMPRESSED)
    return encode_arrays(take(arrays, slice(int(begin), int(end))), header.partition, compress=compress)
