"""The key table of a segment: every row, sorted by the hash of its key, in pages.

    page 0                page 1                     page n - 1
    hash hash hash ...    hash hash hash ...    ...  hash hash
    row  row  row         row  row  row              row  row

Only the table's place and the least and the greatest hash are in memory. Hashes are spread evenly, so the place of a
hash is calculated, and the page there tells by how much that was wrong: a look-up reads about two pages, in a table of
any size. If hashes were chosen so that this does not work, bisection takes over after a few pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tailrace.block.arrays import I64, U32, U64, Indices
from tailrace.segment import page as pages
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.file import Kept, Read, ReadableFile, read_from
from tailrace.segment.page import Page

# Pages that are calculated before bisection takes over. With evenly spread hashes, the second or third one is right.
GUESSES_MAX = 4

# Pages made, or looked up in, at once: about a MiB, one write, or a millisecond to verify.
_SLAB_PAGES = 256
# Hashes in one slab that are worth verifying it whole, most often from memory. Each by itself reads about two pages.
SLAB_HASHES_MIN = 16
# What stands for a row: there is none; it has to be looked up by itself.
NO_ROW, LOOK_ALONE = -1, -2


def build(hashes: Sequence[U64]) -> Iterator[memoryview]:
    """Yields the table of all rows as buffers of whole pages, in order. ``hashes`` are the hash columns, in row order.

    Works by columns; takes about 36 bytes of memory a row while it runs.
    """
    if not hashes:
        return
    column = np.concatenate(hashes)
    order = sorted_rows(column)
    step = _SLAB_PAGES * pages.PAGE_ENTRIES
    for begin in range(0, len(order), step):
        rows = order[begin : begin + step]
        yield pages.pack_pages(begin // pages.PAGE_ENTRIES, column[rows], rows.astype(np.uint32))


def sorted_rows(column: U64) -> U64:
    """Returns the rows of a hash column in the order of (hash, row), at most 2**32 of them.

    Gives the result of ``np.argsort(column, kind="stable")`` about five times faster. It sorts numbers that have the
    hash's upper bits above and the row below. The few rows that share these bits are put in order afterwards.
    """
    row_bits = np.uint64(max(1, (len(column) - 1).bit_length()))
    numbers = (column >> row_bits) << row_bits
    numbers |= np.arange(len(column), dtype=np.uint64)
    numbers.sort()
    upper = numbers >> row_bits
    equal = upper[1:] == upper[:-1]
    tied = np.zeros(len(column), np.bool_)
    tied[1:] |= equal
    tied[:-1] |= equal
    rows = numbers
    rows &= (np.uint64(1) << row_bits) - np.uint64(1)
    members = rows[tied]
    rows[tied] = members[np.argsort(column[members], kind="stable")]
    return rows


class KeyTable:
    """Finds rows by hash in the table of ``rows`` entries at ``offset`` of a file."""

    __slots__ = ("_file", "_greatest", "_least", "_offset", "_pages", "_rows")

    def __init__(self, file: ReadableFile, offset: int, rows: int, least: int, greatest: int) -> None:
        """``least`` and ``greatest`` are the first and the last hash in the table."""
        self._file = file
        self._offset = offset
        self._rows = rows
        self._pages = pages.pages_of(rows)
        self._least = least
        self._greatest = greatest

    def rows_of(self, hash_: int, read: Read = read_from, kept: Kept | None = None) -> Iterator[int]:
        """Yields the row numbers of this hash, newest first; reads pages as they are needed. Raises as ``read``."""
        if not self._pages or not self._least <= hash_ <= self._greatest:
            return
        page = self._last_page_of(hash_, read, kept)
        wanted = np.uint64(hash_)
        while True:
            stop = int(page.hashes.searchsorted(wanted, "right"))
            start = int(page.hashes.searchsorted(wanted, "left"))
            yield from page.rows[start:stop][::-1].tolist()
            if start or not page.number:
                return
            page = self._read(page.number - 1, read, kept)

    def counts_of(self, hashes: U64, read: Read = read_from) -> Indices:
        """Returns the number of rows of each of ``hashes``, which rise.

        Reads the table once from begin to end if that has no more pages than there are hashes. Raises as ``read``.
        """
        counts = np.zeros(len(hashes), np.intp)
        if self._pages > len(hashes):
            for place, hash_ in enumerate(hashes.tolist()):
                counts[place] = sum(1 for _ in self.rows_of(hash_, read))
            return counts
        for first in range(0, self._pages, _SLAB_PAGES):
            numbers = range(first, min(first + _SLAB_PAGES, self._pages))
            data = memoryview(
                read(self._file, self._offset + first * pages.PAGE_BYTES, len(numbers) * pages.PAGE_BYTES)
            )
            parts = [data[begin : begin + pages.PAGE_BYTES] for begin in range(0, len(data), pages.PAGE_BYTES)]
            column = np.concatenate([self._page(*each).hashes for each in zip(numbers, parts, strict=True)])
            counts += column.searchsorted(hashes, "right") - column.searchsorted(hashes, "left")
        return counts

    def newest_rows(self, hashes: U64, read: Read = read_from, kept: Kept | None = None) -> I64:
        """Returns the newest row of each of ``hashes``, which rise; NO_ROW or LOOK_ALONE without one.

        Looks in slabs of the table. A slab that is not kept is read whole, if it may have enough of the hashes. The
        others, and those at the ends of slabs, are left to ``rows_of``. Raises as ``read``.
        """
        found = np.full(len(hashes), NO_ROW, np.int64)
        if not self._pages:
            return found
        begin = int(hashes.searchsorted(np.uint64(self._least)))
        end = int(hashes.searchsorted(np.uint64(self._greatest), "right"))
        last = (self._pages - 1) // _SLAB_PAGES
        if last:
            shares = (hashes[begin:end] - np.uint64(self._least)).astype(np.float64) / (
                self._greatest - self._least + 1
            )
            slabs = np.minimum(shares * self._pages, self._pages - 1).astype(np.int64) // _SLAB_PAGES
        else:
            slabs = np.zeros(end - begin, np.int64)
        while begin < end:
            slab = int(slabs[begin - end])
            stop = end - len(slabs) + int(slabs.searchsorted(slab, "right"))
            columns = self._slab(slab, stop - begin, read, kept)
            if columns is None:
                found[begin:stop] = LOOK_ALONE
            else:
                column, rows = columns
                places = column.searchsorted(hashes[begin:stop], "right")
                before = np.maximum(places - 1, 0)
                is_here = column[before] == hashes[begin:stop]
                part = np.where(is_here, rows[before].astype(np.int64), NO_ROW)
                if slab:
                    part[places == 0] = LOOK_ALONE
                if slab < last:
                    part[places == len(column)] = LOOK_ALONE
                found[begin:stop] = part
            begin = stop
        return found

    def _slab(self, slab: int, count: int, read: Read, kept: Kept | None) -> tuple[U64, U32] | None:
        """Returns hashes and rows of neighbouring pages, verified. None: ``count`` hashes are not worth reading it."""
        first = slab * _SLAB_PAGES
        numbers = range(first, min(first + _SLAB_PAGES, self._pages))
        offset, nbytes = self._offset + first * pages.PAGE_BYTES, len(numbers) * pages.PAGE_BYTES
        place = self._file.path, offset, nbytes
        columns: tuple[U64, U32] | None = None if kept is None else kept.get(place)
        if columns is None and count >= SLAB_HASHES_MIN:
            data = memoryview(read(self._file, offset, nbytes))
            parts = [data[begin : begin + pages.PAGE_BYTES] for begin in range(0, nbytes, pages.PAGE_BYTES)]
            opened = [self._page(*each) for each in zip(numbers, parts, strict=True)]
            hashes, rows = (np.concatenate([getattr(page, name) for page in opened]) for name in ("hashes", "rows"))
            columns = hashes, rows
            if kept is not None:
                kept.put(place, columns, hashes.nbytes + rows.nbytes)
        return columns

    def _last_page_of(self, hash_: int, read: Read, kept: Kept | None) -> Page:
        """Returns the last page that begins at or below ``hash_``, which is not below the least."""
        low, high = 0, self._pages - 1  # the page is one of these, or the best one so far
        low_hash, high_hash = self._least, self._greatest  # about the hashes at both ends
        best: Page | None = None
        guesses = 0
        while low <= high:
            if guesses < GUESSES_MAX:
                guesses += 1
                number = low + (hash_ - low_hash) * (high - low + 1) // (high_hash - low_hash + 1)
                number = min(max(number, low), high)
            else:
                number = (low + high) // 2
            page = self._read(number, read, kept)
            if hash_ < (first := int(page.hashes[0])):
                high, high_hash = number - 1, first
            elif hash_ < (last := int(page.hashes[-1])):
                return page
            else:
                best = page
                low, low_hash = number + 1, last
        if best is None:
            raise self._file.damaged(self._offset, f"the key table begins above {self._least}, its least hash")
        return best

    def _read(self, number: int, read: Read, kept: Kept | None) -> Page:
        offset = self._offset + number * pages.PAGE_BYTES
        place = self._file.path, offset
        page: Page | None = None if kept is None else kept.get(place)
        if page is None:
            page = self._page(number, read(self._file, offset, pages.PAGE_BYTES))
            if kept is not None:
                kept.put(place, page, pages.PAGE_BYTES)
        return page

    def _page(self, number: int, data: bytes | memoryview) -> Page:
        try:
            return Page(data, number, pages.entries_in(number, self._rows))
        except SegmentFormatError as error:
            raise self._file.damaged(self._offset + number * pages.PAGE_BYTES, error) from None
