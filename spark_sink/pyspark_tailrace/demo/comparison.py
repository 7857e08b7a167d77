"""Compares the index with the tree at the end of the history, path by path: modes and blobs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tailrace.demo.changes import TreeEntry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Shown for an entry without a mode or a blob, whose value was not one of ours.
NOTHING = "nothing"


class Difference(NamedTuple):
    """A path that differs; None stands for a side without this path."""

    path: bytes
    expected: TreeEntry | None
    found: TreeEntry | None

    def __str__(self) -> str:
        return f"{printable_path(self.path)}: expected {_show(self.expected)}, the index has {_show(self.found)}"


class Comparison(NamedTuple):
    """The result: the counts of paths on each side and of equal paths, and the differences by path."""

    expected: int
    found: int
    equal: int
    differences: list[Difference]


def compare(expected: Mapping[bytes, TreeEntry], found: Mapping[bytes, TreeEntry]) -> Comparison:
    """Compares every path of both sides."""
    differences = [
        Difference(path, expected.get(path), found.get(path))
        for path in sorted(expected.keys() | found.keys())
        if expected.get(path) != found.get(path)
    ]
    equal = len(expected.keys() | found.keys()) - len(differences)
    return Comparison(len(expected), len(found), equal, differences)


def read_index(path: Path) -> dict[bytes, TreeEntry]:
    """Returns the entries of the index, read from its file as another program would."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT key, mode, blob FROM items")
        return {key: TreeEntry(mode or NOTHING, blob or NOTHING) for key, mode, blob in rows}


def printable_path(path: bytes) -> str:
    """Returns a path for one line of a terminal: bytes that are not UTF-8 or not printable become escapes."""
    return printable(path.decode(errors="backslashreplace"))


def printable(text: str) -> str:
    """Returns a text that is safe on one line of a terminal: characters that are not printable become escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _show(entry: TreeEntry | None) -> str:
    return NOTHING if entry is None else f"{entry.mode} {entry.blob}"
