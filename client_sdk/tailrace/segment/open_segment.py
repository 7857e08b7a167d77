"""A segment opened for reading: blocks by seq, rows by key.

Opening reads and verifies the header, block index, identity and trailer. Blocks and pages are verified at each read, so
that damage never gives a wrong answer. An open segment takes 48 bytes of memory a block, and nothing a row.

Everything is read by pread, never through a memory map: a mapped page that the disk can't read kills the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block, Columns
from tailrace.block.arrays import U64, Indices
from tailrace.block.found import FoundRow, FoundRows, OpenRows
from tailrace.block.layout import read_layout
from tailrace.errors import BadBlock
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.file import Kept, Read, ReadableFile, read_from
from tailrace.segment.footer import Footer
from tailrace.segment.format import HEADER_BYTES
from tailrace.segment.identity import SegmentIdentity
from tailrace.segment.key_table import LOOK_ALONE, KeyTable

F = TypeVar("F", bound=ReadableFile)


class OpenSegment(Generic[F]):
    """An immutable segment. Its methods may be called by several threads at once, if those of its file may.

    ``path``, ``nbytes``, ``version`` and ``identity`` describe its file; ``blocks`` is the count of blocks. The arrays
    of u64 ``first_seqs`` and ``last_seqs`` are the bounds of each block. ``least_hash`` and ``greatest_hash`` are those
    of all keys, 0 and 0 without rows. All methods that read raise the error of the file's ``damaged`` for bytes that
    are not as they were written.
    """

    def __init__(self, file: F, footer: Footer) -> None:
        """Joins an open file and its footer. ``close`` closes the file."""
        self.path = file.path
        self.nbytes = file.nbytes
        self.identity: SegmentIdentity = footer.identity
        self.version = footer.trailer.version
        self.blocks = footer.trailer.blocks
        self.first_seqs: U64 = footer.blocks.first_seqs
        self.last_seqs: U64 = footer.blocks.last_seqs
        self.least_hash, self.greatest_hash = footer.trailer.least_hash, footer.trailer.greatest_hash
        self._file = file
        self._index = footer.blocks
        self._places = footer.blocks.places(HEADER_BYTES)
        self._row_begins = footer.blocks.row_begins
        self._keys = KeyTable(
            file, footer.trailer.table_offset, footer.identity.rows, self.least_hash, self.greatest_hash
        )

    def block_after(self, seq: int) -> int:
        """Returns the number of the first block that has a seq above ``seq``; ``blocks`` if no block has."""
        return int(self.last_seqs.searchsorted(np.uint64(seq), "right"))

    def place_of(self, number: int) -> tuple[int, int]:
        """Returns the offset of block ``number`` in the file, and the count of rows before it; of the end, too."""
        return int(self._places[number]), int(self._row_begins[number])

    def block_bytes(self, number: int) -> int:
        """Returns the length of block ``number``."""
        return int(self._places[number + 1]) - int(self._places[number])

    def read_blocks(self, index: int, bytes_max: int, read: Read = read_from) -> tuple[list[Block], int]:
        """Returns blocks from number ``index`` on, at least one and at most ``bytes_max`` bytes; and the next number.

        They are read at once, by ``read``, and keep one buffer alive together. No block for ``index == blocks``.
        """
        assert 0 <= index <= self.blocks
        if index == self.blocks:
            return [], index
        limit = int(self._places[index]) + min(bytes_max, self.nbytes)
        stop = max(index + 1, int(self._places.searchsorted(np.uint64(limit), "right")) - 1)
        return self._read(index, stop, read), stop

    def read_block(self, number: int) -> Block:
        """Reads block ``number``."""
        [block] = self._read(number, number + 1)
        return block

    @property
    def last_row_seq(self) -> int:
        """The last seq that has a row here; the begin of the run if there is no row."""
        return int(self.last_seqs[-1]) if self.blocks else self.identity.after_seq

    def find(self, key: bytes, hash_: int, read: Read = read_from, kept: Kept | None = None) -> FoundRow | None:
        """Returns the newest row of ``key``, whose hash is ``hash_``; None if there is no row of it.

        Reads by ``read`` those pages and blocks that are not in ``kept``, which keeps them.
        """
        return next(self.versions(key, hash_, read, kept), None)

    def counts_of(self, hashes: U64, read: Read = read_from) -> Indices:
        """Returns the number of rows of each of ``hashes``, which rise. Reads pages by ``read``."""
        return self._keys.counts_of(hashes, read)

    def versions(self, key: bytes, hash_: int, read: Read = read_from, kept: Kept | None = None) -> Iterator[FoundRow]:
        """Yields all rows of ``key``, whose hash is ``hash_``, newest first; reads them as they are needed."""
        last = -1
        for row in self._keys.rows_of(hash_, read, kept):
            number = int(self._row_begins.searchsorted(row, "right")) - 1
            if number >= self.blocks:
                raise self.damaged(0, f"the key table names row {row}, there are {self.identity.rows}")
            if number != last:
                opened, last = self._rows_of(number, read, kept), number
            row -= int(self._row_begins[number])
            if not opened.has_hashes([row], [hash_]):
                raise self._damaged(number, f"row {row} of the block does not have the hash that the key table says")
            found = opened.row(row, key)
            if found is not None:
                yield found

    def find_all(
        self,
        keys: Sequence[bytes],
        hashes: Sequence[int] | U64,
        room: Callable[[], int],
        read: Read = read_from,
        kept: Kept | None = None,
        out_of_time: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[list[int], FoundRows]]:
        """Yields the newest rows of ``keys``, whose hashes are ``hashes``, with the keys' numbers.

        Yields what was found if ``out_of_time()`` after a block, and before it raises an error of ``read``. Keys whose
        hash has no row are left out. Those of ``FoundRows.alone`` have to be looked up by ``find``: for others no room
        was left in ``room()`` bytes, or a small part of the table is better read by itself.
        """
        column = np.asarray(hashes, "<u8")
        order = column.argsort()
        rows = self._keys.newest_rows(column[order], read, kept)
        alone = order[rows == LOOK_ALONE].tolist()
        if alone:
            yield alone, FoundRows.none_of(len(alone))
        is_there = rows >= 0
        order, rows = order[is_there], rows[is_there]
        by_row = rows.argsort()
        order, rows = order[by_row], rows[by_row]
        blocks = self._row_begins.searchsorted(rows, "right") - 1
        if len(blocks) and blocks[-1] >= self.blocks:
            raise self.damaged(0, f"the key table names row {rows[-1]}, there are {self.identity.rows}")
        ends = (np.flatnonzero(blocks[1:] != blocks[:-1]) + 1).tolist()
        numbers, of_block = order.tolist(), (rows - self._row_begins[blocks]).tolist()
        hashes_of, asked = column[order].tolist(), [keys[number] for number in numbers]

        places = zip(blocks[[0, *ends]].tolist(), [*ends, len(rows)], strict=True) if len(rows) else ()
        begin, parts = 0, self._blocks_at(places, of_block, hashes_of, read, kept)
        while begin < len(rows):
            found, failure = FoundRows(room()), None
            try:
                end = found.look(parts, asked, of_block, out_of_time, begin=begin)
            except Exception as error:
                end, failure = begin + len(found.values), error
            if end > begin:
                yield numbers[begin:end], found
            if failure is not None:
                raise failure
            begin = end

    def _blocks_at(
        self, places: Iterable[tuple[int, int]], rows: list[int], hashes: list[int], read: Read, kept: Kept | None
    ) -> Iterator[tuple[OpenRows, int]]:
        """Yields the rows of blocks, and the index behind the last of ``rows`` that is looked at in each.

        ``places`` has the number of each block, and that index.
        """
        begin = 0
        for number, end in places:
            opened = self._rows_of(number, read, kept)
            if not opened.has_hashes(rows[begin:end], hashes[begin:end]):
                raise self._damaged(number, "a row of the block does not have the hash that the key table says")
            yield opened, end
            begin = end

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns ``nbytes`` bytes of the file from ``offset`` on, unverified."""
        return self._file.read(offset, nbytes)

    def damaged(self, offset: int, why: object) -> Exception:
        """Returns the error that gives ``why`` for the part that begins at ``offset`` of the file."""
        return self._file.damaged(offset, why)

    def close(self) -> None:
        """Closes the file. May be called again."""
        self._file.close()

    def _rows_of(self, number: int, read: Read, kept: Kept | None) -> OpenRows:
        """Returns the rows of block ``number``, verified."""
        place = self.path, int(self._places[number])
        opened: OpenRows | None = None if kept is None else kept.get(place)
        if opened is None:
            [block] = self._read(number, number + 1, read)
            columns = self._open(number, block)
            opened = OpenRows.of(columns.header, columns.raw)
            if kept is not None:
                opened = opened.measured()
                kept.put(place, opened, block.header.raw_bytes)
        return opened

    def _read(self, start: int, stop: int, read: Read = read_from) -> list[Block]:
        """Reads blocks ``start`` to ``stop`` - 1 at once."""
        *places, end = self._places[start : stop + 1].tolist()
        begin = places[0]
        data = read(self._file, begin, end - begin)
        return [self._parse(number, data, place - begin) for number, place in enumerate(places, start)]

    def _parse(self, number: int, data: bytes | memoryview, offset: int) -> Block:
        """Returns block ``number`` at ``offset`` of ``data``, verified and compared with the index."""
        try:
            block = Block.parse_at(data, offset)
            self._index.check_block(number, block, self.identity.partition)
        except (BadBlock, SegmentFormatError) as error:
            raise self._damaged(number, error) from None
        return block

    def _open(self, number: int, block: Block) -> Columns:
        """Returns the columns of a block, unchecked: the writer checked them, and their sum still holds."""
        try:
            if block.header.flags & FLAG_COMPRESSED:
                return block.open_columns()
            raw = memoryview(block.body)
            return Columns(block.header, read_layout(block.header, raw), raw)
        except BadBlock as error:
            raise self._damaged(number, error) from None

    def _damaged(self, number: int, why: object) -> Exception:
        return self._file.damaged(int(self._places[number]), why)
