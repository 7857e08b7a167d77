"""The digest of rows: the same for the same rows, however they are ordered and cut, and another one for any others."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.block import (
    block_from_arrow,
    digest_of_arrays,
    digest_of_block,
    digest_of_rows,
    encode_block,
    hash_array,
    sum_digests,
)
from tailrace.block.row_digest import DELETED_HASH
from tailrace.model.hashing import hash_keys

VALUES = st.one_of(st.none(), st.binary(max_size=3), st.sampled_from([b"v" * 300, b"v" * 299 + b"w"]))
ROWS = st.lists(st.tuples(st.binary(min_size=1, max_size=2), VALUES), min_size=1, max_size=30)


def digest(rows):
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    return digest_of_rows(hash_keys(keys), values)


def block(rows, **options):
    return encode_block([key for key, _ in rows], [value for _, value in rows], partition=0, **options)


@given(ROWS, st.randoms(), st.lists(st.integers(0, 30), max_size=4))
def test_neither_order_nor_blocks_make_a_difference(rows, random, cuts):
    moved = random.sample(rows, len(rows))
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [moved[begin:end] for begin, end in itertools.pairwise(bounds) if begin < end]
    assert sum_digests(digest_of_block(block(piece)) for piece in pieces) == digest(rows)


@given(ROWS, ROWS)
def test_other_rows_have_another_one(some, others):
    assume(sorted(some, key=repr) != sorted(others, key=repr))
    assert digest(some) != digest(others)


@pytest.mark.parametrize(
    ("some", "others"),
    [
        ([(b"a", b"1"), (b"b", b"2")], [(b"a", b"2"), (b"b", b"1")]),
        ([(b"a", b"")], [(b"a", None)]),
        ([(b"a", b"1")], [(b"a", b"1"), (b"a", b"1")]),
        ([(b"a", b"1")], [(b"b", b"1")]),
        ([], [(b"a", None)]),
    ],
)
def test_what_is_told_apart(some, others):
    assert digest(some) != digest(others)


@given(ROWS, st.booleans(), st.integers(0, 3))
def test_arrays_and_blocks_have_that_of_their_rows(rows, compress, before):
    """Arrays may be slices of others, and a null in them may hide bytes."""
    keys = pa.array([b"other"] * before + [key for key, _ in rows], pa.binary())[before:]
    values = pa.array([b"other"] * before + [value for _, value in rows], pa.binary())[before:]
    hidden = pa.Array.from_buffers(pa.binary(), len(values), values.buffers(), offset=before)
    assert digest_of_arrays(hash_array(keys), hidden) == digest(rows)
    assert digest_of_block(block_from_arrow(keys, values, partition=0, compress=compress)) == digest(rows)


def test_a_sum_with_one_that_is_not_known_is_not_known():
    assert sum_digests([1, None, 2]) is None
    assert sum_digests([2**64 - 1, 2]) == 1
    assert sum_digests([]) == 0


def test_it_is_the_one_that_is_described():
    """It is stored, and compared with that of a later version of a program: it never changes."""
    assert digest([(b"apple", b"red"), (b"pear", None)]) == 0x58FA436CEC2F9285
    assert (0x670849C10D6AD507 * 0x67B1DC007BBE6755 + 0x53ED0E3C1EDAEFEA * DELETED_HASH) % 2**64 == 0x58FA436CEC2F9285
