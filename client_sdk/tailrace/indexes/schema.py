"""The tables of an SQLite index: their statements, and the record of what they were made with.

Names reach a statement only after `check_name`, and quoted.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tailrace.indexes.columns import ColumnReader, check_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FORMAT_VERSION = 1
META_TABLE = "tailrace_index"
CHECKPOINT_TABLE = "tailrace_checkpoint"

_FIXED_COLUMNS = ("key", "value", "partition", "seq", "timestamp")
# Other names of a table's row number, which a column would hide from the full text.
_ROW_NUMBER_NAMES = ("rowid", "oid", "_rowid_")
_FULL_TEXT_RESERVED = ("rank",)


class Schema:
    """What an index was asked to look like. ValueError where a name or a path cannot be."""

    def __init__(self, table: str, columns: Mapping[str, str], full_text: Sequence[str]) -> None:
        if isinstance(full_text, str):
            raise ValueError(f"full_text is a sequence of names of columns, not the one text {full_text!r}")
        self.table = check_name(table, "the table name")
        self.full_text_table = f"{table}_fts"
        self.columns = dict(columns)
        self.full_text = tuple(full_text)
        self.reader = ColumnReader(columns)
        _check_table(table)
        _check_columns(self.reader.names)
        _check_full_text(self.full_text, self.reader.names, self.full_text_table)

    def describe(self) -> dict[str, str]:
        """What is recorded in the file and must be the same at every opening."""
        return {
            "format": str(FORMAT_VERSION),
            "table": self.table,
            "columns": json.dumps(self.columns, sort_keys=True),
            "full_text": json.dumps(sorted(self.full_text)),
        }

    def create_statements(self) -> Iterator[str]:
        """What makes the tables, in order."""
        columns = "".join(f', "{name}"' for name in self.reader.names)
        yield (
            f'CREATE TABLE "{self.table}" (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, '
            f"partition INTEGER NOT NULL, seq INTEGER NOT NULL, timestamp INTEGER NOT NULL{columns})"
        )
        # For clear and rollback, which would read the whole table otherwise.
        yield f'CREATE INDEX "{self.table}_partition_seq" ON "{self.table}" (partition, seq)'
        yield f"CREATE TABLE {META_TABLE} (name TEXT PRIMARY KEY, value TEXT NOT NULL)"
        yield (
            f"CREATE TABLE {CHECKPOINT_TABLE} "
            "(partition INTEGER PRIMARY KEY, seq INTEGER NOT NULL, position TEXT NOT NULL)"
        )
        if self.full_text:
            yield from self._full_text_statements()

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

    def _full_text_statements(self) -> Iterator[str]:
        """The full text takes its columns from the table, so that no text is stored twice.

        FTS5 has to be told the old text of a row to forget it; triggers know it, whoever changes the row.
        """
        fts, names = self.full_text_table, self.full_text
        listed = ", ".join(f'"{name}"' for name in names)
        old, new = (", ".join(f'{row}."{name}"' for name in names) for row in ("old", "new"))
        forget = f'INSERT INTO "{fts}" ("{fts}", rowid, {listed}) VALUES (\'delete\', old.rowid, {old});'
        learn = f'INSERT INTO "{fts}" (rowid, {listed}) VALUES (new.rowid, {new});'
        differs = " OR ".join(f'old."{name}" IS NOT new."{name}"' for name in names)
        yield f'CREATE VIRTUAL TABLE "{fts}" USING fts5({listed}, content="{self.table}")'
        yield f'CREATE TRIGGER "{fts}_insert" AFTER INSERT ON "{self.table}" BEGIN {learn} END'
        yield f'CREATE TRIGGER "{fts}_delete" AFTER DELETE ON "{self.table}" BEGIN {forget} END'
        yield (
            f'CREATE TRIGGER "{fts}_update" AFTER UPDATE OF {listed} ON "{self.table}" WHEN {differs} '
            f"BEGIN {forget} {learn} END"
        )


def _check_table(table: str) -> None:
    if table.lower().startswith(("sqlite_", "tailrace_")):
        raise ValueError(f"the table name {table!r} is reserved: sqlite_ and tailrace_ begin the names of own tables")


def _check_columns(names: Sequence[str]) -> None:
    taken = {*_FIXED_COLUMNS, *_ROW_NUMBER_NAMES}
    for name in names:
        if name.lower() in taken:
            raise ValueError(f"the column name {name!r} is taken; case makes no difference to SQLite")
        taken.add(name.lower())


def _check_full_text(names: Sequence[str], columns: Sequence[str], full_text_table: str) -> None:
    for name in names:
        if name not in columns:
            raise ValueError(f"full_text names {name!r}, which is none of the columns {list(columns)}")
        if name.lower() in (*_FULL_TEXT_RESERVED, full_text_table.lower()):
            raise ValueError(f"the column {name!r} cannot have full text: FTS5 uses the name itself; choose another")
    if len(set(names)) != len(names):
        raise ValueError(f"full_text names a column twice: {list(names)}")
