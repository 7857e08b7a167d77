"""Stores that `Feed.follow` keeps equal to a feed: docs/guides/indexes.md.

`SQLiteIndex` is a file that other programs can query, `PostgresIndex` a table of a server, `DuckDBIndex` a file for
analysis, `ParquetIndex` a directory of Parquet files, and `MemoryIndex` lasts as long as its process. Any other store
can be an index if it has the methods of `Index`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace.indexes.applied import AppliedMutations
from tailrace.indexes.memory import HeldVersion, MemoryIndex
from tailrace.indexes.protocol import AppliedMutation, Index, IndexBusy, PreparedIndex, SharedIndex, Taken

if TYPE_CHECKING:
    from tailrace.indexes.arrow_mutations import ArrowMutations
    from tailrace.indexes.duckdb_index import DuckDBIndex
    from tailrace.indexes.parking import ParkedRow
    from tailrace.indexes.parquet import ParquetIndex
    from tailrace.indexes.postgres import PostgresIndex
    from tailrace.indexes.replaying import Replayed
    from tailrace.indexes.sqlite import SQLiteIndex

__all__ = [
    "AppliedMutation",
    "AppliedMutations",
    "ArrowMutations",
    "DuckDBIndex",
    "HeldVersion",
    "Index",
    "IndexBusy",
    "MemoryIndex",
    "ParkedRow",
    "ParquetIndex",
    "PostgresIndex",
    "PreparedIndex",
    "Replayed",
    "SQLiteIndex",
    "SharedIndex",
    "Taken",
]

_LATER = {
    "ArrowMutations": "arrow_mutations",
    "DuckDBIndex": "duckdb_index",
    "ParkedRow": "parking",
    "ParquetIndex": "parquet",
    "PostgresIndex": "postgres",
    "Replayed": "replaying",
    "SQLiteIndex": "sqlite",
}


def __getattr__(name: str) -> Any:
    """Loads an index when it is first used: most programs need no database."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = getattr(import_module(f"tailrace.indexes.{_LATER[name]}"), name)
    globals()[name] = made
    return made
