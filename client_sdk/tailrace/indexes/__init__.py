"""Stores that `Feed.follow` keeps equal to a feed: docs/guides/indexes.md.

`SQLiteIndex` is a file that other programs can query, and `MemoryIndex` lasts as long as its process. Any other store
can be an index if it has the methods of `Index`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.indexes.applied import AppliedMutations
from tailrace.indexes.memory import HeldVersion, MemoryIndex
from tailrace.indexes.protocol import AppliedMutation, Index, IndexBusy, PreparedIndex

if TYPE_CHECKING:
    from tailrace.indexes.sqlite import SQLiteIndex

__all__ = [
    "AppliedMutation",
    "AppliedMutations",
    "HeldVersion",
    "Index",
    "IndexBusy",
    "MemoryIndex",
    "PreparedIndex",
    "SQLiteIndex",
]


def __getattr__(name: str) -> Any:
    """Loads `SQLiteIndex` when it is first used: most programs need no SQLite."""
    if name != "SQLiteIndex":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailrace.indexes import sqlite

    globals()[name] = sqlite.SQLiteIndex
    return sqlite.SQLiteIndex
