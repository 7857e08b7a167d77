"""The tables of an index in DuckDB or PostgreSQL: their names and statements.

One database may have several indexes, each with a table of its own. So the tables beside it have its name, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.indexes.columns import check_name
from tailrace.indexes.table_index import Tables
from tailrace.indexes.typed_columns import FIXED_COLUMNS, TypedColumns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace.serializers import Serializer


FORMAT_VERSION = 1
# So that the names of the other tables fit into the 63 bytes of PostgreSQL.
TABLE_CHARS_MAX = 40


class TypedTables:
    """The names and columns of an index. ``types`` are the database's words for the types of columns."""

    def __init__(
        self,
        table: str,
        columns: Mapping[str, str | tuple[str, str]],
        types: Mapping[str, str],
        serializer: Serializer | None = None,
    ) -> None:
        """Raises ValueError if a name, a path or a type is not valid."""
        check_name(table, "the table name")
        if len(table) > TABLE_CHARS_MAX:
            raise ValueError(f"the table name {table!r} has {len(table)} characters, {TABLE_CHARS_MAX} are possible")
        if table.lower().startswith("floor_"):
            raise ValueError(
                f"the table name {table!r} is not usable: its ring would have the name of the floors of another index"
            )
        if table.lower().startswith("tailrace_"):
            raise ValueError(f"the table name {table!r} is reserved: names with tailrace_ are for internal tables")
        self.columns = TypedColumns(columns, serializer=serializer)
        self._types = types
        beside = [f"tailrace_{what}_{table}" for what in ("index", "checkpoint", "ring", "ring_floor")]
        self.names = Tables(table, *beside)
        self.all_columns = [*FIXED_COLUMNS, *self.columns.names]

    def describe(self) -> dict[str, str]:
        """Returns the settings that the index records. They must be the same each time it is opened."""
        return {"format": str(FORMAT_VERSION), "table": self.names.rows, "columns": self.columns.describe()}

    def row_columns(self) -> list[tuple[str, str]]:
        """Returns the name and type of each column of the rows."""
        bytes_, integer, big = (self._types[name] for name in ("bytes", "partition", "integer"))
        fixed = zip(FIXED_COLUMNS, (bytes_, bytes_, integer, big, big), strict=True)
        return [*fixed, *((column.name, self._types[column.type]) for column in self.columns.columns)]

    def create_statements(self, ring_number: str) -> Iterator[str]:
        """Returns what makes the tables. ``ring_number`` is the definition of a column that counts by itself."""
        names, text, bytes_ = self.names, self._types["text"], self._types["bytes"]
        rows = ", ".join(f'"{name}" {kind}' for name, kind in self.row_columns())
        yield f'CREATE TABLE "{names.rows}" ({rows}, PRIMARY KEY ("key"))'
        yield f'CREATE TABLE "{names.settings}" (name {text} PRIMARY KEY, value {text} NOT NULL)'
        yield (
            f'CREATE TABLE "{names.checkpoint}" '
            f"(partition integer PRIMARY KEY, seq bigint NOT NULL, position {text} NOT NULL)"
        )
        yield (
            f'CREATE TABLE "{names.ring}" (number {ring_number}, partition integer NOT NULL, '
            f"last_seq bigint NOT NULL, entries {bytes_} NOT NULL)"
        )
        yield f'CREATE TABLE "{names.ring_floor}" (partition integer PRIMARY KEY, floor_seq bigint NOT NULL)'

    def upsert_statement(self, source: str, cast: str = "") -> str:
        """Takes the rows of the table ``source``, and leaves newer ones alone.

        ``cast`` is what makes JSON of the text in a column of ``source``.
        """
        is_json = {column.name for column in self.columns.columns if column.type == "json"}
        taken = ", ".join(f'"{name}"{cast if name in is_json else ""}' for name in self.all_columns)
        listed = ", ".join(f'"{name}"' for name in self.all_columns)
        changes = ", ".join(f'"{name}" = excluded."{name}"' for name in self.all_columns[1:])
        table = self.names.rows
        return (
            f'INSERT INTO "{table}" ({listed}) SELECT {taken} FROM {source} '
            f'ON CONFLICT ("key") DO UPDATE SET {changes} '
            f'WHERE excluded.partition <> "{table}".partition OR excluded.seq >= "{table}".seq'
        )

    def delete_statement(self, source: str) -> str:
        """Takes key, partition and seq of the tombstones in the table ``source``, and leaves newer rows alone."""
        table = self.names.rows
        return (
            f'DELETE FROM "{table}" USING {source} AS gone WHERE "{table}".key = gone.key '
            f'AND ("{table}".partition <> gone.partition OR "{table}".seq <= gone.seq)'
        )
