"""Stores that `Feed.follow` keeps equal to a feed: docs/guides/indexes.md.

`SQLiteIndex` for what has to last and to be queried by other programs, `MemoryIndex` for one process; any other store
by the methods of `Index`.
"""

from __future__ import annotations

from tailrace.indexes.memory import HeldVersion, MemoryIndex
from tailrace.indexes.protocol import AppliedMutation, Index, IndexBusy, PreparedIndex
from tailrace.indexes.sqlite import SQLiteIndex

__all__ = ["AppliedMutation", "HeldVersion", "Index", "IndexBusy", "MemoryIndex", "PreparedIndex", "SQLiteIndex"]
