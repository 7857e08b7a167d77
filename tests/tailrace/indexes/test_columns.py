import contextlib
import json
import sqlite3

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tailrace.indexes.columns import ColumnReader, check_name, parse_path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c d"]), inner, max_size=3),
    max_leaves=10,
)
PATHS = ["$", "$.a", "$.b", '$."c d"', "$.a.b", "$[0]", "$.a[1]", "$.b[#-1]", "$[#-2].a"]


def read(value, *paths):
    return ColumnReader({f"c{number}": path for number, path in enumerate(paths)}).read(value)


@pytest.mark.parametrize(
    ("path", "steps"),
    [
        ("$", ()),
        ("$.a", ("a",)),
        ("$.a.b-c", ("a", "b-c")),
        ('$."a name"', ("a name",)),
        ('$."a.b[0]".c', ("a.b[0]", "c")),
        ("$[0]", (0,)),
        ("$.list[12][#-1].x", ("list", 12, -1, "x")),
        ("$.größe", ("größe",)),
    ],
)
def test_paths(path, steps):
    assert parse_path(path) == steps


@pytest.mark.parametrize("path", ["", "a", ".a", "$a", "$.", "$..a", "$.a.", "$[", "$[-1]", "$[x]", '$."a', "$[*]", 7])
def test_what_is_no_path(path):
    with pytest.raises(ValueError, match="is no JSON path"):
        parse_path(path)


@pytest.mark.parametrize("name", ["a", "_", "City_2", "order", "x" * 63])
def test_names(name):
    assert check_name(name, "the column name") == name


@pytest.mark.parametrize("name", ["", "2a", "a b", 'a"b', "a;b", "a--", "größe", "a\n", "x" * 64, None, "a'b", "a.b"])
def test_what_is_no_name(name):
    with pytest.raises(ValueError, match=r"the column name .* is not usable"):
        check_name(name, "the column name")


def test_values_of_each_kind():
    value = json.dumps({"t": "text", "i": 7, "f": 1.5, "y": True, "n": None, "l": [1, "é"], "o": {"k": None}}).encode()
    assert read(value, "$.t", "$.i", "$.f", "$.y", "$.n", "$.l", "$.o") == (
        "text",
        7,
        1.5,
        1,
        None,
        '[1,"é"]',
        '{"k":null}',
    )


def test_what_is_not_there():
    assert read(b'{"a": {"b": [1]}}', "$.x", "$.a.b.c", "$.a[0]", "$.a.b[1]", "$.a.b[#-2]") == (None,) * 5


@pytest.mark.parametrize(
    "value", [b"", b"plain text", b"{", b'{"a": 1', b"\xff\xfe", b"\x00" * 8, b"[" * 100_000, b"7" * 5000]
)
def test_a_value_that_is_no_json_has_no_columns(value):
    assert read(value, "$.a", "$") == (None, None)


def test_bytes_that_are_no_utf_8_are_replaced():
    assert read(b'{"path": "caf\xe9.txt", "size": 3}', "$.path", "$.size") == ("caf\ufffd.txt", 3)


def test_half_a_surrogate_pair_is_replaced():
    assert read(rb'{"a": "x\ud800y", "b": ["\udfff\ud83d\ude00"]}', "$.a", "$.b") == ("x\ufffdy", '["\ufffd😀"]')


def test_numbers_that_sqlite_has_no_room_for():
    big = 2**63
    value = f'{{"a": {big - 1}, "b": {big}, "c": -{big}, "d": 1{"0" * 400}, "e": 1e999}}'.encode()
    assert read(value, "$.a", "$.b", "$.c", "$.d", "$.e") == (big - 1, float(big), -float(big), None, float("inf"))


def test_no_columns():
    assert ColumnReader({}).read(b"anything") == ()


@given(st.binary(max_size=60) | JSON.map(lambda data: json.dumps(data).encode()))
def test_sqlite_takes_whatever_comes_out(value):
    row = read(value, *PATHS)
    connection = sqlite3.connect(":memory:")
    (stored,) = connection.execute(f"SELECT {', '.join('?' * len(row))}", row).fetchall()
    connection.close()
    assert all(a == b or a != a for a, b in zip(row, stored, strict=True))


@given(JSON)
def test_scalars_are_those_of_sqlites_own_functions(data):
    text = json.dumps(data, ensure_ascii=False)
    assume("NaN" not in text and "Infinity" not in text)  # Python's reader takes them, SQLite's does not
    assume(r"\u0000" not in text)  # SQLite's functions end a text there
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for path in PATHS:
            found = connection.execute("SELECT json_type(?1, ?2), json_extract(?1, ?2)", (text, path))
            kind, expected = found.fetchone()
            if kind not in ("array", "object"):  # those are the same JSON in another layout
                assert read(text.encode(), path) == (expected if kind != "real" else pytest.approx(expected),)
