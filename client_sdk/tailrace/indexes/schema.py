"""The tables of an SQLite index: their statements, and the record of the settings that they were made with.

Names reach a statement only after `check_name`, and quoted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.indexes.columns import ColumnReader, check_name
from tailrace.indexes.full_text import FullText
from tailrace.indexes.table_index import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tailrace.serializers import Serializer

FORMAT_VERSION = 1
META_TABLE = "tailrace_index"
CHECKPOINT_TABLE = "tailrace_checkpoint"
RING_TABLE = "tailrace_ring"  # the chunks of rings (tailrace.consuming.ring), in the order in which they came
RING_FLOOR_TABLE = "tailrace_ring_floor"
FURTHER = ":"


def first_tables(table: str) -> Tables:
    """Returns the names of the tables of the first index of a file."""
    return Tables(table, META_TABLE, CHECKPOINT_TABLE, RING_TABLE, RING_FLOOR_TABLE)


def further_tables(table: str) -> Tables:
    """Returns the names of the tables of another index of a file: they have the name of its table behind a colon.

    No table of rows has a colon. With an underscore, the ring of a table "floor" would be the first index's floors.
    """
    return Tables(table, *(f"{name}{FURTHER}{table}" for name in first_tables(table)[1:]))


def ring_statements(tables: Tables) -> Iterator[str]:
    """Returns what makes the tables of the rings. A file of an older version gets them when it is opened."""
    ring = tables.ring
    yield (
        f'CREATE TABLE IF NOT EXISTS "{ring}" (number INTEGER PRIMARY KEY, partition INTEGER NOT NULL, '
        "last_seq INTEGER NOT NULL, entries BLOB NOT NULL)"
    )
    yield f'CREATE INDEX IF NOT EXISTS "{ring}_by_seq" ON "{ring}" (partition, last_seq)'
    yield f'CREATE INDEX IF NOT EXISTS "{ring}_by_number" ON "{ring}" (partition, number)'
    yield (
        f'CREATE TABLE IF NOT EXISTS "{tables.ring_floor}" (partition INTEGER PRIMARY KEY, floor_seq INTEGER NOT NULL)'
    )


_FIXED_COLUMNS = ("key", "value", "partition", "seq", "timestamp")
# Other names of a table's row number, which a column would hide from the full text.
_ROW_NUMBER_NAMES = ("rowid", "oid", "_rowid_")
_FULL_TEXT_RESERVED = ("rank",)


class Schema:
    """The names and columns of an index. ValueError if a name or a path is not valid."""

    def __init__(
        self,
        table: str,
        columns: Mapping[str, str],
        full_text: Sequence[str],
        serializer: Serializer | None = None,
    ) -> None:
        if isinstance(full_text, str):
            raise ValueError(f"full_text has to be a sequence of column names, not the text {full_text!r}")
        self.table = check_name(table, "the table name")
        self.full_text_name = f"{table}_fts"
        self.columns = dict(columns)
        self.full_text = tuple(full_text)
        self.reader = ColumnReader(columns, serializer)
        _check_table(table)
        _check_columns(self.reader.names)
        _check_full_text(self.full_text, self.reader.names, self.full_text_name)
        self.full_text_table: FullText | None = None
        if self.full_text:
            places = [len(_FIXED_COLUMNS) + self.reader.names.index(name) for name in self.full_text]
            self.full_text_table = FullText(self.full_text_name, table, self.full_text, places)

    def describe(self) -> dict[str, str]:
        """Returns the settings that the file records. They must be the same each time it is opened."""
        return {
            "format": str(FORMAT_VERSION),
            "table": self.table,
            "columns": json.dumps(self.columns, sort_keys=True),
            "full_text": json.dumps(sorted(self.full_text)),
        }

    def create_statements(self, tables: Tables) -> Iterator[str]:
        """Returns what makes the tables, in order."""
        columns = "".join(f', "{name}"' for name in self.reader.names)
        yield (
            f'CREATE TABLE "{self.table}" (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, '
            f"partition INTEGER NOT NULL, seq INTEGER NOT NULL, timestamp INTEGER NOT NULL{columns})"
        )
        # For clear and rollback, which would read the whole table otherwise.
        yield f'CREATE INDEX "{self.table}_partition_seq" ON "{self.table}" (partition, seq)'
        yield f'CREATE TABLE "{tables.settings}" (name TEXT PRIMARY KEY, value TEXT NOT NULL)'
        yield (
            f'CREATE TABLE "{tables.checkpoint}" '
            "(partition INTEGER PRIMARY KEY, seq INTEGER NOT NULL, position TEXT NOT NULL)"
        )
        if self.full_text_table is not None:
            yield self.full_text_table.create_statement

    def upsert_statement(self) -> str:
        """Takes a row (key, value, partition, seq, timestamp, *columns), and leaves a newer one alone."""
        names = [*_FIXED_COLUMNS, *(f'"{name}"' for name in self.reader.names)]
        changes = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        return (
            f'INSERT INTO "{self.table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))}) '
            f"ON CONFLICT (key) DO UPDATE SET {changes} "
            f'WHERE excluded.partition <> "{self.table}".partition OR excluded.seq >= "{self.table}".seq'
        )

    def delete_statement(self) -> str:
        """Takes (key, partition, seq) of a tombstone, and leaves a newer row alone."""
        return f'DELETE FROM "{self.table}" WHERE key = ? AND (partition <> ? OR seq <= ?)'


def _check_table(table: str) -> None:
    if table.lower().startswith(("sqlite_", "tailrace_")):
        raise ValueError(
            f"the table name {table!r} is reserved: names with sqlite_ and tailrace_ are for internal tables"
        )


def _check_columns(names: Sequence[str]) -> None:
    taken = {*_FIXED_COLUMNS, *_ROW_NUMBER_NAMES}
    for name in names:
        if name.lower() in taken:
            raise ValueError(f"the column name {name!r} is taken; case makes no difference to SQLite")
        taken.add(name.lower())


def _check_full_text(names: Sequence[str], columns: Sequence[str], full_text_name: str) -> None:
    for name in names:
        if name not in columns:
            raise ValueError(f"full_text names {name!r}, which is not one of the columns {list(columns)}")
        if name.lower() in (*_FULL_TEXT_RESERVED, full_text_name.lower()):
            raise ValueError(
                f"the column {name!r} cannot have full text, because FTS5 uses this name: choose another name"
            )
    if len(set(names)) != len(names):
        raise ValueError(f"full_text names a column twice: {list(names)}")
