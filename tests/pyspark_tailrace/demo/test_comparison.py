"""The index against the expected tree."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.demo.changes import TreeEntry
from pyspark_tailrace.demo.comparison import compare, printable, printable_path, read_index

entries = st.builds(TreeEntry, st.sampled_from(["100644", "100755"]), st.sampled_from(["a1", "b2"]))
trees = st.dictionaries(st.sampled_from([b"a", b"b", b"c/d", b"\xff"]), entries)


@given(trees, trees)
def test_every_path_is_either_equal_or_a_difference(expected, found):
    result = compare(expected, found)
    assert (result.expected, result.found) == (len(expected), len(found))
    assert result.equal == sum(found.get(path) == entry for path, entry in expected.items())
    assert [difference.path for difference in result.differences] == sorted(
        path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)
    )
    assert (result.differences == []) == (expected == found)


def test_difference_says_what_each_side_has():
    entry, executable = TreeEntry("100644", "aa11"), TreeEntry("100755", "aa11")
    result = compare({b"changed": entry, b"missing": entry}, {b"changed": executable, b"\xff\n": entry})
    assert list(map(str, result.differences)) == [
        "changed: expected 100644 aa11, the index has 100755 aa11",
        "missing: expected 100644 aa11, the index has nothing",
        "\\xff\\n: expected nothing, the index has 100644 aa11",
    ]


def test_index_is_read_with_values_that_are_none_of_ours(tmp_path):
    path = tmp_path / "index.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE items (key BLOB, mode, blob)")
        rows = [(b"a", "100644", "aa11"), (b"b", None, None)]
        connection.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)
        connection.commit()
    assert read_index(path) == {b"a": TreeEntry("100644", "aa11"), b"b": TreeEntry("nothing", "nothing")}


@given(st.binary())
def test_any_path_is_one_printable_line(path):
    assert printable_path(path).isprintable()


def test_text_cannot_move_the_cursor():
    assert printable("a b\x1b[2J\rü\u202e") == "a b\\x1b[2J\\rü\\u202e"
