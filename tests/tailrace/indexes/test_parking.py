"""Rows that an index cannot take."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

import tailrace
from tailrace.errors import ProtocolError
from tailrace.indexes import AppliedMutations, IndexBusy, ParkedRow
from tailrace.indexes.parking import REASON_CHARS_MAX, apply_the_good, is_of_rows, parked_row
from tailrace.testing.index_calls import checkpoint_at, mutation


@settings(max_examples=examples(100))
@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_all_but_the_bad_rows_are_applied_in_order(goods):
    rows = [mutation(b"%03d" % number, "x", number + 1) for number in range(len(goods))]
    bad = {row.key for row, good in zip(rows, goods, strict=True) if not good}
    applied = []

    def apply(part):
        for row in part:
            if row.key in bad:
                raise ValueError(f"bad {row.key}")
        applied.extend(part)

    found = apply_the_good(apply, AppliedMutations.of(rows))
    assert applied == [row for row in rows if row.key not in bad]
    assert [(row.key, str(error)) for row, error in found] == [(key, f"bad {key}") for key in sorted(bad)]


def test_an_error_of_the_store_is_raised():
    def apply(part):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        apply_the_good(apply, AppliedMutations.of([mutation(b"a", "x", 1)]))


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (ValueError(), True),
        (KeyError(), True),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), True),
        (sqlite3.IntegrityError(), True),
        (sqlite3.OperationalError("disk is full"), False),
        (OSError(), False),
        (MemoryError(), False),
        (RuntimeError("another follower"), False),
        (IndexBusy(), False),
        (tailrace.BadPosition("x"), False),
    ],
)
def test_errors_of_rows_and_of_the_store(error, wanted):
    assert is_of_rows(error) is wanted


@pytest.mark.parametrize("value", [b'{"a": 1}', b"\xff\x00", b"", None])
def test_a_parked_row_can_be_read_again(value):
    row = mutation(b"k", "x", 7)._replace(key=b"k\xff", value=value)
    parked = parked_row(row, ValueError("x" * 5_000), checkpoint_at({0: 9}).positions)
    assert parked.version == tailrace.Version(0, b"u" * 16, 7)
    assert (parked.value, len(parked.reason)) == (value, REASON_CHARS_MAX)
    assert ParkedRow.parse(b"k\xff", parked.to_value()) == parked


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"partition": 0, "branch": "xx"}'])
def test_what_is_no_parked_row(value):
    with pytest.raises(ProtocolError, match="is no parked row"):
        ParkedRow.parse(b"k", value)
