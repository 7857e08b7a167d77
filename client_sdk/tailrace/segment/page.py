"""A page of a segment's key table. Pure: bytes in, values out.

    hashes    PAGE_ENTRIES u64, rising
    rows      PAGE_ENTRIES u32, rising among equal hashes
    count     u32: how many entries are used; the others are zeros
    number    u32: the page's number, from 0
    checksum  u64: XXH3-64 of all before it

A look-up reads and verifies single pages. So each has a checksum of its own and its number: a page that the disk wrote
to, or read from, a wrong place is not taken for another.
"""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from tailrace.block.arrays import U8, U32, U64
from tailrace.segment.errors import SegmentFormatError

PAGE_BYTES = 4_096  # a file system reads this much at once
PAGE_ENTRIES = 340  # as many as fit

_TAIL = struct.Struct("<IIQ")

assert 12 * PAGE_ENTRIES + _TAIL.size == PAGE_BYTES


def pages_of(rows: int) -> int:
    """Returns the number of pages that hold ``rows`` entries."""
    return -(-rows // PAGE_ENTRIES)


def table_bytes(pages: int) -> int:
    """Returns the bytes of a table of ``pages`` pages."""
    return pages * PAGE_BYTES


def table_begin(offset: int) -> int:
    """Returns the offset of the key table if the blocks end at ``offset``: the next multiple of a page's size."""
    return -(-offset // PAGE_BYTES) * PAGE_BYTES


def entries_in(number: int, rows: int) -> int:
    """Returns the number of entries in page ``number`` of a table of ``rows``: only the last page is not full."""
    return min(PAGE_ENTRIES, rows - number * PAGE_ENTRIES)


def pack_pages(first: int, hashes: U64, rows: U32) -> memoryview:
    """Returns the pages of these entries, from page ``first`` on, as one buffer. Zeros fill up the last page only."""
    count = len(hashes)
    pages = pages_of(count)
    data = np.zeros((pages, PAGE_BYTES), np.uint8)
    data[:, : 8 * PAGE_ENTRIES] = _filled(hashes, "<u8", pages)
    data[:, 8 * PAGE_ENTRIES : 12 * PAGE_ENTRIES] = _filled(rows, "<u4", pages)
    tail = 12 * PAGE_ENTRIES
    for page in range(pages):
        view = data[page]
        _TAIL.pack_into(view, tail, entries_in(page, count), first + page, 0)
        _TAIL.pack_into(view, tail, entries_in(page, count), first + page, xxhash.xxh3_64_intdigest(view[:-8]))
    return data.reshape(-1).data


def _filled(column: U64 | U32, dtype: str, pages: int) -> U8:
    """Returns a column with zeros behind it, as one row of bytes for each page."""
    filled = np.zeros(pages * PAGE_ENTRIES, dtype)
    filled[: len(column)] = column
    return filled.view(np.uint8).reshape(pages, -1)


class Page:
    """A verified page: ``hashes`` and ``rows`` are views of its bytes, of equal length, at least 1."""

    __slots__ = ("hashes", "number", "rows")

    def __init__(self, data: bytes | memoryview, number: int, entries: int) -> None:
        """Parses page ``number`` with ``entries`` entries from its PAGE_BYTES bytes. Raises SegmentFormatError."""
        count, told_number, told = _TAIL.unpack_from(data, 12 * PAGE_ENTRIES)
        found = xxhash.xxh3_64_intdigest(memoryview(data)[:-8])
        if told != found:
            raise SegmentFormatError(
                f"the checksum of page {number} of the key table is {told:016x}, it has {found:016x}"
            )
        if told_number != number:
            raise SegmentFormatError(f"page {number} of the key table says that it is page {told_number}")
        if count != entries:
            raise SegmentFormatError(f"page {number} of the key table has {count} entries, there have to be {entries}")
        self.number = number
        self.hashes: U64 = np.frombuffer(data, "<u8", entries)
        self.rows: U32 = np.frombuffer(data, "<u4", entries, 8 * PAGE_ENTRIES)
