"""Stores that `Feed.follow` keeps equal to a feed: docs/guides/indexes.md.

`SQLiteIndex` is a file that other programs can query, and `MemoryIndex` lasts as long as its process. Any other store
can be an index if it has the methods of `Index`.
"""

from __future__ import annotations

from tailrace.indexes.memory import HeldVersion, MemoryIndex
from tailrace.indexes.protocol import AppliedMutation, Index, IndexBusy, PreparedIndex
from tailrace.indexes.sqlite import SQLiteIndex

__all__ = ["AppliedMutation", "HeldVersion", "Index", "IndexBusy", "MemoryIndex", "PreparedIndex", "SQLiteIndex"]
