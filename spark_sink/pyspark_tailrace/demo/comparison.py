"""What the index holds against the tree that the history ends at, path by path, mode and blob by blob."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from pyspark_tailrace.demo.changes import TreeEntry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# What an entry without a mode or a blob is shown as: its value was not one of ours.
NOTHING = "nothing"


class Difference(NamedTuple):
    """A path that is not the same on both sides; None where one side does not have it."""

    path: bytes
    expected: TreeEntry | None
    found: TreeEntry | None

    def __str__(self) -> str:
        return f"{printable_path(self.path)}: expected {_show(self.expected)}, the index has {_show(self.found)}"


class Comparison(NamedTuple):
    """The result: how many paths each side has, how many agree, and what does not, by path."""

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
    """What the index holds, read as another program would: from its file."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT key, mode, blob FROM items")
        return {key: TreeEntry(mode or NOTHING, blob or NOTHING) for key, mode, blob in rows}


def printable_path(path: bytes) -> str:
    """A path on one line of a terminal: what is no UTF-8, and what is not printable, as escapes."""
    return printable(path.decode(errors="backslashreplace"))


def printable(text: str) -> str:
    """A text on one line of a terminal, which it cannot do anything to: spaces as such, the rest as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _show(entry: TreeEntry | None) -> str:
    return NOTHING if entry is None else f"{entry.mode} {entry.blob}"
