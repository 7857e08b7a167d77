"""Verifies a segment: reads it front to back, and compares every part with the others.

The file's checksum finds any change since the file was written. The other checks tell its place. They also find errors
of the writer: a row that the key table does not lead to, or a wrong count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xxhash

from tailrace.block import Block
from tailrace.errors import BadBlock
from tailrace.segment import page as pages
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.footer import Footer
from tailrace.segment.format import FILE_SUM_OFFSET, HEADER_BYTES, file_sum_in
from tailrace.segment.page import Page
from tailrace_server.segment.errors import SegmentDamaged
from tailrace_server.segment.file import SegmentFile
from tailrace_server.segment.totals import RowTotals

# A file that was overwritten has a problem in each block; more than these are no use to a reader.
PROBLEMS_MAX = 100

# The rest of the file, apart from blocks and pages, is read in pieces of this size.
READ_BYTES = 1 << 20


class Problem(NamedTuple):
    """A problem found at ``offset`` (bytes) of the file."""

    offset: int
    why: str


def verify_segment(file: SegmentFile, progress: Callable[[int], None] | None) -> list[Problem]:
    """Returns the problems of the segment in ``file``, at most PROBLEMS_MAX."""
    try:
        footer = Footer.read(file)
    except SegmentDamaged as error:
        return [Problem(error.offset, error.why)]
    return _Verification(file, footer, progress).run()


class _Verification:
    """One pass over a file, front to back."""

    def __init__(self, file: SegmentFile, footer: Footer, progress: Callable[[int], None] | None) -> None:
        self._file = file
        self._footer = footer
        self._progress = progress
        self._problems: list[Problem] = []
        self._sum = xxhash.xxh3_128()
        self._offset = 0
        self._is_unread = False  # a part could not be read, so that the file's checksum can't be told
        self._totals = RowTotals()
        self._hashes = np.zeros(footer.identity.rows, np.uint64)
        self._is_known = np.zeros(footer.identity.rows, np.bool_)  # whether ``_hashes`` has the row

    def run(self) -> list[Problem]:
        """Does all checks; returns the problems."""
        trailer = self._footer.trailer
        self._take(HEADER_BYTES)
        self._check_blocks()
        end = self._offset
        if any(self._take(trailer.table_offset - end)):
            self._add(end, "between the blocks and the key table not all is zero")
        self._check_pages()
        self._check_totals()
        self._check_sum()
        return self._problems

    def _add(self, offset: int, why: object) -> None:
        if len(self._problems) < PROBLEMS_MAX:
            self._problems.append(Problem(offset, str(why)))

    def _take(self, nbytes: int) -> bytes:
        """Reads the next bytes. If the disk can't read them, notes a problem and returns no bytes."""
        offset, self._offset = self._offset, self._offset + nbytes
        try:
            data = self._file.read(offset, nbytes)
        except SegmentDamaged as error:
            self._add(error.offset, error.why)
            self._is_unread = True
            data = b""
        self._sum.update(data)
        if self._progress is not None:
            self._progress(nbytes)
        return data

    def _check_blocks(self) -> None:
        index, partition = self._footer.blocks, self._footer.identity.partition
        row = 0
        for number, (nbytes, rows) in enumerate(zip(index.nbytes.tolist(), index.rows.tolist(), strict=True)):
            offset = self._offset
            data = self._take(nbytes)
            try:
                block = Block.parse(data)
                index.check_block(number, block, partition)
                columns = block.open_columns()
            except (BadBlock, SegmentFormatError) as error:
                if data:
                    self._add(offset, f"block {number}: {error}")
            else:
                self._totals.add(columns)
                self._hashes[row : row + rows] = np.frombuffer(columns.hash_buffer, "<u8")
                self._is_known[row : row + rows] = True
            row += rows

    def _check_pages(self) -> None:
        """Checks that the key table leads to every row: its entries rise, one for each row, and each is right."""
        rows = self._footer.identity.rows
        before: tuple[int, int] = (-1, -1)
        for number in range(self._footer.trailer.pages):
            offset = self._offset
            data = self._take(pages.PAGE_BYTES)
            if not data:
                continue
            try:
                page = Page(data, number, pages.entries_in(number, rows))
                self._check_entries(page, before)
            except SegmentFormatError as error:
                self._add(offset, error)
            else:
                before = int(page.hashes[-1]), int(page.rows[-1])

    def _check_entries(self, page: Page, before: tuple[int, int]) -> None:
        """Raises SegmentFormatError if the entries of a page don't rise, from ``before`` on, or name other rows."""
        hashes, rows = page.hashes, page.rows
        falls = (hashes[1:] < hashes[:-1]) | ((hashes[1:] == hashes[:-1]) & (rows[1:] <= rows[:-1]))
        if falls.any() or (int(hashes[0]), int(rows[0])) <= before:
            raise SegmentFormatError(f"the entries of page {page.number} of the key table do not rise")
        if int(rows.max()) >= len(self._hashes):
            raise SegmentFormatError(
                f"page {page.number} of the key table names row {rows.max()} of {len(self._hashes)}"
            )
        wrong = (self._hashes[rows] != hashes) & self._is_known[rows]
        if wrong.any():
            row = int(rows[np.argmax(wrong)])
            raise SegmentFormatError(f"page {page.number} of the key table gives row {row} a hash that it has not")

    def _check_totals(self) -> None:
        """Compares identity and trailer with the rows, if all rows could be read."""
        footer, totals = self._footer, self._totals
        if not self._is_known.all():
            return
        counted = totals.fill(footer.identity)
        for name, told, found in zip(counted._fields, footer.identity, counted, strict=True):
            if told != found:
                self._add(footer.trailer.identity_offset, f"the identity's {name} is {told}, the rows have {found}")
        bounds = footer.trailer.least_hash, footer.trailer.greatest_hash
        if bounds != (totals.least_hash, totals.greatest_hash):
            self._add(footer.trailer.trailer_offset, "the trailer's least and greatest hash are not those of the rows")

    def _check_sum(self) -> None:
        """Checks the file's checksum."""
        place = self._footer.trailer.trailer_offset + FILE_SUM_OFFSET
        while self._offset < place:
            self._take(min(READ_BYTES, place - self._offset))
        found = self._sum.intdigest()
        told = self._take(self._file.nbytes - place)
        if not self._is_unread and file_sum_in(told) != found:
            self._add(0, f"the file's checksum is {file_sum_in(told):032x}, its bytes have {found:032x}")
