from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.page import PAGE_BYTES, PAGE_ENTRIES, Page, entries_in, pack_pages, pages_of, table_begin

entries = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=1_000)


def packed(made, first=0):
    hashes, rows = zip(*made, strict=True)
    return bytes(pack_pages(first, np.array(hashes, np.uint64), np.array(rows, np.uint32)))


@given(entries, st.integers(0, 1_000_000))
def test_what_is_packed_is_read(made, first):
    data = packed(made, first)
    assert len(data) == pages_of(len(made)) * PAGE_BYTES
    read = []
    for number in range(pages_of(len(made))):
        one = data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        page = Page(one, first + number, entries_in(number, len(made)))
        read += zip(page.hashes.tolist(), page.rows.tolist(), strict=True)
    assert read == made


def test_pages_are_full_but_the_last_and_begin_at_multiples():
    assert [pages_of(rows) for rows in (0, 1, PAGE_ENTRIES, PAGE_ENTRIES + 1)] == [0, 1, 1, 2]
    assert [entries_in(page, 2 * PAGE_ENTRIES + 7) for page in range(3)] == [PAGE_ENTRIES, PAGE_ENTRIES, 7]
    assert [table_begin(offset) for offset in (64, PAGE_BYTES, PAGE_BYTES + 1)] == [
        PAGE_BYTES,
        PAGE_BYTES,
        2 * PAGE_BYTES,
    ]


def test_a_page_of_another_place_or_length_is_refused():
    data = packed([(5, 1), (6, 0)], first=8)
    Page(data, 8, 2)
    with pytest.raises(SegmentFormatError, match="page 7 of the key table says that it is page 8"):
        Page(data, 7, 2)
    with pytest.raises(SegmentFormatError, match="has 2 entries, there have to be 3"):
        Page(data, 8, 3)


@given(st.integers(0, PAGE_BYTES * 8 - 1))
def test_a_bit_that_flipped_is_found(bit):
    data = bytearray(packed([(5, 1), (6, 0)]))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(SegmentFormatError, match="checksum of page 0"):
        Page(bytes(data), 0, 2)
