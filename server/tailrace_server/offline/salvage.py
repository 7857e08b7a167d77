"""What can be read of a damaged segment, as a new segment of the same run.

    damaged   [ block ][ bad ][ block ]          new   [ block ][ from the journal, if it is still there ][ block ]

Where the block index can be read it says where each block lies, and which seqs a bad one had. Otherwise blocks are
followed by their lengths, and the first bad header ends it: nothing is searched for, since a value may hold what looks
like a block.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.block import BODY_BYTES_MAX, Block, BlockHeader, Columns
from tailrace.block.header import FLAG_COMPRESSED
from tailrace.block.header import HEADER_BYTES as BLOCK_HEADER_BYTES
from tailrace.block.layout import read_layout
from tailrace.errors import BadBlock
from tailrace.model.hashing import key_hash
from tailrace_server.blocks.arrays import arrays_of, encode_arrays, take
from tailrace_server.offline.journal_walk import ReadableFile
from tailrace_server.segment import SegmentDamaged
from tailrace_server.segment.block_index import BlockIndex
from tailrace_server.segment.file import SegmentFile
from tailrace_server.segment.footer import Footer
from tailrace_server.segment.format import HEADER_BYTES

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class BadStretch(NamedTuple):
    """Bytes of a segment that are no block. The seqs, both included, and rows that were here: 0 where unknown.

    ``keys`` are those that can still be told: their hash stands in another place, and is right.
    """

    offset: int
    first_seq: int
    last_seq: int
    rows: int
    keys: tuple[bytes, ...]
    why: str


class LostRange(NamedTuple):
    """Seqs, both included, of which nothing was found; where and why, and what is known of the rows."""

    first_seq: int
    last_seq: int
    rows: int | None
    keys: tuple[bytes, ...]
    offset: int | None
    why: str


def read_segment(disk: Disk, path: str, partition: int) -> Iterator[Block | BadStretch]:
    """The blocks of a segment, and the stretches in between that are none, in order. OSError: it can't be opened."""
    index = _index_of(disk, path)
    with contextlib.closing(disk.open(path)) as file:
        readable = ReadableFile(file)
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


def _by_index(file: ReadableFile, index: BlockIndex, partition: int) -> Iterator[Block | BadStretch]:
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


def _by_length(file: ReadableFile, partition: int) -> Iterator[Block | BadStretch]:
    offset, size = HEADER_BYTES, file.size()
    while offset + BLOCK_HEADER_BYTES <= size:
        head = file.read_at(offset, BLOCK_HEADER_BYTES)
        try:
            header = BlockHeader.unpack(head)
        except BadBlock as error:
            # Zeros and the key table follow the last block, and nothing tells where that is.
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
    """Keys in a damaged block that are right for certain: their hash, in another column, is that of the key."""
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
    """Puts the rows of a run (``after_seq``, ``last_seq``] together again, in seq order.

    ``sink`` takes the blocks. ``spare`` gives blocks of the partition that hold any of a range of seqs, both included,
    in seq order: those of the journal. ``lost`` is what was not found, once ``finish`` was called.
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
        """The next of a damaged segment; a block that lies outside of what is left of the run does not count."""
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
        """The segment ends here. ``why`` says why there may be more where nothing else does; "": there is none.

        ``rows`` is how many there have to be, where that is known: with all of them nothing is lost.
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
        """Seqs up to ``last_seq`` are missing because of the bad stretches: what the journal has, and what is lost."""
        bad, self._bad = self._bad, []
        known = [stretch for stretch in bad if stretch.first_seq]
        if len(known) != len(bad):  # nobody knows what was in one of them
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
    """The keys of several stretches."""
    return tuple(key for stretch in stretches for key in stretch.keys)


def cut_rows(block: Block, first: int, last: int) -> Block | None:
    """The rows of a block with seqs from ``first`` to ``last``; None where it has none."""
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
