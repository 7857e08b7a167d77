"""Rows are found by hash, however the hashes are spread, and few pages are read for it."""

from __future__ import annotations

import math
from itertools import chain
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.segment import key_table
from tailrace.segment.key_table import GUESSES_MAX, LOOK_ALONE, NO_ROW, KeyTable
from tailrace.segment.page import pages_of
from tailrace_server.segment import SegmentDamaged, SegmentFile

U64 = st.integers(0, 2**64 - 1)
uniform = st.lists(U64, max_size=80)
few = st.lists(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1]), max_size=80)
crowded = st.lists(st.integers(0, 20) | st.just(2**64 - 1), max_size=80)
powers = st.lists(st.integers(0, 63).map(lambda power: 1 << power), max_size=80)
OFFSET = 64


def table_of(one_file, columns):
    """A table of hash columns in a file, and the file."""
    hashes = [np.array(column, np.uint64) for column in columns if column]
    data = bytes(OFFSET) + b"".join(key_table.build(hashes))
    file = one_file(data)
    everything = list(chain.from_iterable(columns))
    bounds = (min(everything), max(everything)) if everything else (0, 0)
    return KeyTable(SegmentFile(file, "a.seg"), OFFSET, len(everything), *bounds), file


def check_newest(table, rows_by_hash, sought):
    """By slabs, of which each says what it knows."""
    hashes = np.array(sought, np.uint64)
    for slab_pages, least in ((1, 1), (2, 2), (256, 1)):
        with (
            mock.patch.object(key_table, "_SLAB_PAGES", slab_pages),
            mock.patch.object(key_table, "SLAB_HASHES_MIN", least),
        ):
            for hash_, row in zip(sought, table.newest_rows(hashes).tolist(), strict=True):
                if row != LOOK_ALONE:
                    assert row == rows_by_hash.get(hash_, [NO_ROW])[0]
                else:
                    assert (slab_pages, least) != (256, 1), "one slab knows all"


def check(one_file, columns, absent=()):
    everything = list(chain.from_iterable(columns))
    table, file = table_of(one_file, columns)
    rows_by_hash = {}
    for row, hash_ in enumerate(everything):
        rows_by_hash.setdefault(hash_, []).insert(0, row)
    near = {hash_ + step for hash_ in rows_by_hash for step in (-1, 1) if 0 <= hash_ + step < 2**64}
    for hash_ in {0, 2**64 - 1, *rows_by_hash, *near, *absent}:
        file.reads = 0
        rows = rows_by_hash.get(hash_, [])
        assert list(table.rows_of(hash_)) == rows
        pages = pages_of(len(everything))
        assert file.reads <= GUESSES_MAX + math.log2(pages + 1) + 1 + pages_of(len(rows)) + 1
    check_newest(table, rows_by_hash, sorted({0, 2**64 - 1, *rows_by_hash, *near, *absent}))
    sought = sorted({0, 2**64 - 1, *rows_by_hash, *near, *absent})
    for hashes in (sought, sought[:1]):  # by all pages at once, and one by one
        counts = table.counts_of(np.array(hashes, np.uint64)).tolist()
        assert counts == [len(rows_by_hash.get(hash_, [])) for hash_ in hashes]


@pytest.mark.usefixtures("small_pages")
class TestSmallPages:
    @given(uniform, st.lists(U64, max_size=5))
    def test_evenly_spread_hashes(self, one_file, hashes, absent):
        check(one_file, [hashes], absent)

    @given(few | crowded | powers)
    def test_hashes_that_crowd(self, one_file, hashes):
        check(one_file, [hashes])

    @given(st.lists(uniform | few, max_size=5))
    def test_several_columns_are_one_table(self, one_file, columns):
        check(one_file, columns)

    @pytest.mark.parametrize("before", range(9))
    @pytest.mark.parametrize("equal", [1, 3, 4, 5, 8, 13])
    def test_equal_hashes_over_the_borders_of_pages(self, one_file, before, equal):
        check(one_file, [list(range(before)) + [500] * equal + [900, 901]])

    def test_nothing_is_read_outside_of_the_bounds(self, one_file):
        table, file = table_of(one_file, [[10, 20, 30]])
        assert [*table.rows_of(9), *table.rows_of(31)] == []
        assert file.reads == 0

    def test_the_newest_row_is_given_before_older_pages_are_read(self, one_file):
        table, file = table_of(one_file, [[5] * 40])
        assert next(table.rows_of(5)) == 39
        assert file.reads <= GUESSES_MAX + math.log2(40)


# Hashes that differ in their lowest bits only, or not at all, among others.
close = st.builds(lambda upper, lower: upper << 60 | lower, st.integers(0, 15), st.integers(0, 300))


@given(st.lists(U64 | close, min_size=1, max_size=200))
def test_rows_are_sorted_by_hash_and_row(hashes):
    expected = sorted(range(len(hashes)), key=lambda row: (hashes[row], row))
    assert key_table.sorted_rows(np.array(hashes, np.uint64)).tolist() == expected


def test_a_table_of_no_rows(one_file):
    table, file = table_of(one_file, [])
    assert len(file.data) == OFFSET
    assert list(table.rows_of(0)) == []


def test_about_two_pages_are_read_where_hashes_are_spread_evenly(one_file):
    rnd = np.random.default_rng(7)
    hashes = rnd.integers(0, 2**64, 100_000, np.uint64)
    table, file = table_of(one_file, [hashes.tolist()])
    asked = rnd.integers(0, len(hashes), 500).tolist()
    for row in asked:
        assert list(table.rows_of(int(hashes[row]))) == [row]
    assert file.reads < 2.5 * len(asked)


def test_a_page_that_is_damaged_or_missing_is_named(one_file):
    table, file = table_of(one_file, [[10, 20, 30]])
    file.data[OFFSET + 3] ^= 1
    with pytest.raises(SegmentDamaged, match=r"a.seg is damaged at offset 64: the checksum of page 0"):
        list(table.rows_of(20))
    del file.data[OFFSET + 100 :]
    with pytest.raises(SegmentDamaged, match="4096 bytes were expected here, the file ends after 100"):
        list(table.rows_of(20))


def test_a_least_hash_that_is_wrong_is_damage(one_file):
    _, file = table_of(one_file, [[10, 20, 30]])
    table = KeyTable(SegmentFile(file, "a.seg"), OFFSET, 3, 5, 30)
    with pytest.raises(SegmentDamaged, match="the key table begins above 5"):
        list(table.rows_of(7))
