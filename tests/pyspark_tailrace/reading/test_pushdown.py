"""Every row that matches a filter is within what it leaves: rows that are left out by mistake nobody would see."""

from __future__ import annotations

import datetime
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from pyspark_tailrace.reading.pushdown import Narrowed, narrowed
from tailrace.times import to_us

OPERATORS = {
    In: lambda value, values: value in values,
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
KEYS = st.binary(max_size=4) | st.lists(st.sampled_from([0, 1, 254, 255]), max_size=4).map(bytes)
STAMPS = st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2100, 1, 1), timezones=st.just(datetime.UTC))
VALUES = {"seq": st.integers(0, 50), "key": KEYS, "timestamp": STAMPS, "partition": st.integers(0, 3)}


@st.composite
def comparisons(draw):
    column = draw(st.sampled_from(sorted(VALUES)))
    if draw(st.booleans()):
        return In((column,), tuple(draw(st.lists(VALUES[column], min_size=1, max_size=3))))
    return draw(st.sampled_from(sorted(OPERATORS.keys() - {In}, key=str)))((column,), draw(VALUES[column]))


ROWS = st.fixed_dictionaries(VALUES)


@given(st.lists(comparisons(), max_size=5), st.lists(ROWS, max_size=30))
def test_no_row_that_matches_is_left_out(filters, rows):
    found = narrowed(filters)
    for row in rows:
        if all(OPERATORS[type(wanted)](row[wanted.attribute[0]], wanted.value) for wanted in filters):
            stamp = to_us(row["timestamp"], "")
            assert found.partitions is None or row["partition"] in found.partitions
            assert found.seq_first <= row["seq"]
            assert found.seq_stop is None or row["seq"] < found.seq_stop
            assert found.stamped_first <= stamp
            assert found.stamped_stop is None or stamp < found.stamped_stop
            assert row["key"].startswith(found.key_prefix)
            assert found.key in (None, row["key"])


@given(KEYS, KEYS)
def test_every_key_between_the_bounds_has_the_prefix(first, key):
    found = narrowed([GreaterThanOrEqual(("key",), first), LessThan(("key",), first + b"\x01")])
    if first <= key < first + b"\x01":
        assert key.startswith(found.key_prefix)
    assert found.key_prefix == first


@pytest.mark.parametrize(
    ("first", "stop", "prefix"),
    [
        (b"order/", b"order0", b"order/"),
        (b"order/a", b"order/c", b"order/"),
        (b"a", b"c", b""),
        (b"\xff\xff", None, b""),
        (b"a\xff", b"b", b"a\xff"),
        (b"ab", b"aa", b"ab"),  # nothing is between them
    ],
)
def test_prefix(first, stop, prefix):
    assert Narrowed(key_first=first, key_stop=stop).key_prefix == prefix


def test_one_key():
    assert narrowed([EqualTo(("key",), b"k")]).key == b"k"
    assert narrowed([GreaterThanOrEqual(("key",), b"k")]).key is None


def test_partitions():
    assert narrowed([In(("partition",), (1, 2, 3)), EqualTo(("partition",), 2)]).partitions == {2}
    assert narrowed([In(("partition",), (1, None))]).partitions == {1}


@pytest.mark.parametrize(
    "wanted",
    [
        IsNotNull(("key",)),
        Not(EqualTo(("seq",), 5)),
        EqualTo(("seq", "x"), 5),
        EqualTo(("value",), b"v"),
        EqualTo(("key",), "text"),
        EqualTo(("seq",), 1.5),
        EqualNullSafe(("seq",), None),
        StringStartsWith(("key",), "a"),
        GreaterThan(("timestamp",), "2026"),
        GreaterThan(("partition",), 1),
        In(("seq",), (1, None)),
        In(("key",), ()),
    ],
)
def test_what_says_nothing_to_a_node(wanted):
    assert narrowed([wanted]) == Narrowed()
