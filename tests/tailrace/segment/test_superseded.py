"""Which rows survive, against a dict of keys; hashes are made up, so that they collide as often as wanted."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.segment.superseded import Keys, Slice, superseded

# Few keys of few lengths, so that rows meet; some of several hundred bytes.
KEYS = st.sampled_from([b"a", b"b", b"c", b"aa", b"ab", b"ba", b"abc", b"a" * 300, b"a" * 299 + b"b", b"b" * 300])
# How hashes are made of keys: all different, all equal, equal for some, at both ends of their range.
HASHES = st.sampled_from(
    [
        lambda key: int.from_bytes(key[:8].ljust(8, b"."), "big") ^ len(key),
        lambda key: 7,
        lambda key: len(key),
        lambda key: key[0] % 2 * (2**64 - 1),
        lambda key: 2**63 + key[-1] % 2,
    ]
)
SLICES = st.builds(Slice, st.integers(1, 8), st.integers(1, 700))


class Columns:
    """The hashes and key lengths of rows with these keys, and who gives their keys."""

    def __init__(self, keys, hash_of):
        self.keys = keys
        self.hashes = np.array([hash_of(key) for key in keys], np.uint64)
        self.lengths = np.array([len(key) for key in keys], np.uint16)
        self.asked = []

    def keys_of(self, rows):
        assert (rows[1:] > rows[:-1]).all()
        self.asked.append(rows.tolist())
        taken = [self.keys[row] for row in rows]
        offsets = np.array([0, *itertools.accumulate(map(len, taken))], np.int64)
        return Keys(offsets, np.frombuffer(b"".join(taken), np.uint8))

    def superseded(self, slice_=None):
        return superseded(self.hashes, self.lengths, self.keys_of, slice_).tolist()


def by_dict(keys):
    newest = {key: row for row, key in enumerate(keys)}
    return [newest[key] != row for row, key in enumerate(keys)]


@settings(deadline=None)
@given(st.lists(KEYS, max_size=60), HASHES, SLICES)
def test_the_newest_row_of_each_key_survives(keys, hash_of, slice_):
    assert Columns(keys, hash_of).superseded(slice_) == by_dict(keys)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=5), max_size=60), HASHES, SLICES)
def test_the_newest_row_of_any_key_survives(keys, hash_of, slice_):
    assert Columns(keys, hash_of).superseded(slice_) == by_dict(keys)


@pytest.mark.parametrize("hash_of", [lambda key: 7, lambda key: int(key)], ids=["one hash", "own hashes"])
def test_many_rows_in_slices_of_the_usual_size_and_small_ones(hash_of):
    rng = np.random.default_rng(1)
    keys = [b"%d" % number for number in rng.integers(1, 700, 3_000).tolist()]
    for slice_ in (None, Slice(100, 10_000), Slice(10_000, 100)):
        assert Columns(keys, hash_of).superseded(slice_) == by_dict(keys)


def test_rows_of_single_hashes_are_never_asked_for():
    columns = Columns([b"a", b"b", b"c", b"b"], lambda key: key[0])
    assert columns.superseded() == [False, True, False, False]
    assert columns.asked == [[1, 3]]


def test_no_row_and_one_row():
    assert Columns([], len).superseded() == []
    columns = Columns([b"a"], len)
    assert columns.superseded() == [False]
    assert columns.asked == []


def test_keys_are_asked_for_in_slices_however_many_rows_one_key_has():
    columns = Columns([b"hot"] * 100, lambda key: 7)
    assert columns.superseded(Slice(rows=20)) == [True] * 99 + [False]
    # Each slice, and the newest row to compare it with.
    assert max(map(len, columns.asked)) == 21
    assert len(columns.asked) == 5


def test_a_slice_has_no_more_bytes_than_told():
    columns = Columns([b"k" * 100, b"l" * 100] * 10, lambda key: key[0])
    columns.superseded(Slice(rows=20, key_bytes=300))
    assert [len(rows) for rows in columns.asked[:2]] == [3, 4]


def test_a_large_input_is_read_about_eight_times():
    columns = Columns([b"%02d" % (row % 50) for row in range(1_000)], int)
    assert columns.superseded(Slice(rows=1)) == by_dict(columns.keys)
    assert len(columns.asked) <= 9


def test_a_hash_with_many_keys_over_several_slices():
    keys = [b"x", b"y", b"x", b"z", b"y", b"x", b"z", b"n"]
    for rows in range(1, 9):
        assert Columns(keys, lambda key: 7).superseded(Slice(rows=rows)) == by_dict(keys)
