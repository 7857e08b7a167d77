"""An index in a DuckDB file, for analysis by the program that follows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.indexes.arrow_mutations import ArrowMutations
from tailrace.indexes.by_feed import PATTERN, ByFeed, table_of
from tailrace.indexes.columns import name_of
from tailrace.indexes.protocol import IndexBusy
from tailrace.indexes.shared_tables import SharedTableIndex
from tailrace.indexes.typed_tables import TypedTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from tailrace.indexes.applied import AppliedMutations
    from tailrace.indexes.checkpoint import Checkpoint
    from tailrace.serializers import Serializer

TYPES = {
    "bytes": "BLOB",
    "partition": "INTEGER",
    "text": "VARCHAR",
    "integer": "BIGINT",
    "real": "DOUBLE",
    "boolean": "BOOLEAN",
    "json": "VARCHAR",  # DuckDB's JSON is text, and its functions take text; the type needs an extension
}
# The name under which a statement sees the rows of a batch.
BATCH = "tailrace_batch"
# What DuckDB says if another transaction is in the way. A commit that cannot be written is a TransactionException, too.
_CONFLICTS = ("conflict", "another transaction", "constraint violation")


class Connection:
    """A connection whose results are fetched at once: DuckDB runs nothing else while a result is not at its end."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def execute(self, statement: str, parameters: Any = (), /) -> _Result:
        return _Result(self.raw.execute(statement, parameters).fetchall())

    def executemany(self, statement: str, rows: Any, /) -> None:
        self.raw.executemany(statement, rows).fetchall()

    def close(self) -> None:
        self.raw.close()


class _Result:
    """The rows that a statement has returned."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None


class DuckDBIndex(SharedTableIndex[Connection]):
    """The current value of each key of a feed, in a table of a DuckDB file.

    The table has the columns ``key`` (primary key), ``value``, ``partition``, ``seq``, ``timestamp``, and those of
    ``columns``. ``seq`` and ``timestamp`` (microseconds since 1970 UTC) belong to the mutation that set the value;
    ``seq`` is 0 while its history is rolled back.

    DuckDB lets one process have the file open. That process queries it while it is followed, by `cursor`; others open
    it when the follower has ended. A file may have several indexes, each with a table of its own. Errors of DuckDB
    itself are ``duckdb.Error``; a call that raises has stored nothing.

    Args:
        path: The file. Its directory must exist.
        table: The name of the table, 40 characters at most. With ``{feed}`` in it the index may be followed by several
            feeds: each has its own table. In the name of the feed, other characters than letters, digits and
            underscores become underscores.
        columns: The JSON path of each further column, such as ``{"city": "$.address.city"}``, or the path and one of
            the types "text", "integer", "real", "boolean" and "json": ``{"age": ("$.age", "integer")}``. A value of
            another type is NULL.
        serializer: Reads the values for ``columns`` (``tailrace.serializers``). A value that it cannot read is a
            bad row. None: JSON, and NULL for other values.

    Raises:
        ValueError: A name, a JSON path or a type is not valid.
        ImportError: duckdb or pyarrow is missing; ``pip install 'tailrace[duckdb]'`` installs both.
    """

    begin_anew = "delete the file"
    takes_arrow = True  # the follower gives it ArrowMutations

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str = "items",
        columns: Mapping[str, str | tuple[str, str]] | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        """Checks the arguments. The file is not opened yet."""
        try:
            import duckdb
            import pyarrow
        except ImportError as error:
            raise ImportError(f"DuckDBIndex needs {error.name}: pip install 'tailrace[duckdb]'") from error
        self._duckdb: Any = duckdb
        self._arrow: Any = pyarrow
        self.path = Path(path)
        self._schema = TypedTables(table_of(table, "feed"), columns or {}, TYPES, serializer)
        self._arrow_schema = _arrow_schema(pyarrow, self._schema)
        self._upsert = self._schema.upsert_statement(BATCH)
        self._delete = self._schema.delete_statement(BATCH)
        settings = {**self._schema.describe(), "serializer": name_of(serializer)}
        super().__init__(str(self.path), self._schema.names, settings)
        if PATTERN in table:
            self._by_feed = ByFeed(
                lambda feed: DuckDBIndex(path, table=table_of(table, feed), columns=columns, serializer=serializer)
            )

    def open(self) -> Checkpoint | None:
        """Opens the file, or creates it, and returns its checkpoint.

        Returns:
            The stored checkpoint, or None if the file holds nothing yet.

        Raises:
            ValueError: The file is not an index, or has other columns.
            FileNotFoundError: The directory does not exist.
            BadPosition: The stored checkpoint is damaged.
            IndexBusy: Another process has the file open.
        """
        return self._open()

    def cursor(self) -> Any:
        """Opens a connection to the same file, for queries of this process while the index is followed.

        It sees whole batches. It must not change the index's tables.

        Returns:
            A ``duckdb.DuckDBPyConnection``. Each thread needs one of its own.

        Raises:
            RuntimeError: The index is not open.
        """
        return self._connected().raw.cursor()

    def _connect(self) -> Connection:
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the directory of the index {self.path} does not exist")
        try:
            return Connection(self._duckdb.connect(os.fspath(self.path)))
        except self._duckdb.IOException as error:
            if "lock" in str(error):
                raise IndexBusy(f"another process has the index {self.path} open ({error})") from error
            if "not a valid DuckDB" in str(error):
                raise ValueError(f"{self.path} is not a DuckDB file ({error}); choose another path") from error
            raise

    def _begun(self, connection: Connection) -> AbstractContextManager[object]:
        return self._one_transaction(connection)

    @contextlib.contextmanager
    def _one_transaction(self, connection: Connection) -> Iterator[None]:
        connection.execute("BEGIN TRANSACTION")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(self._duckdb.Error):  # a commit that fails has rolled back
                connection.execute("ROLLBACK")
            if isinstance(error, self._duckdb.TransactionException) and _is_conflict(str(error)):
                raise IndexBusy(f"a transaction of this process is in the way of the index {self.path}") from error
            raise

    def _lock(self, connection: Connection, table: str, column: str, condition: str) -> None:
        """Changes rows to what they are: of two transactions that do so, the later one fails."""
        connection.execute(f'UPDATE "{table}" SET {column} = {column} WHERE {condition}')

    def _table_names(self, connection: Connection) -> set[str]:
        found = connection.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = current_schema()")
        return {name.lower() for (name,) in found.fetchall()}

    def _create(self, connection: Connection) -> None:
        sequence = f"tailrace_ring_number_{self._schema.names.rows}"
        connection.execute(f'CREATE SEQUENCE "{sequence}"')
        for statement in self._schema.create_statements(f"bigint DEFAULT nextval('\"{sequence}\"')"):
            connection.execute(statement)

    def _store_mutations(self, connection: Connection, mutations: AppliedMutations) -> None:
        rows, gone = mutations.upserts(), mutations.deletions()
        if gone:
            self._with_batch(connection, self._delete, ArrowMutations.of(gone).table)
        if rows:
            taken, fields = ArrowMutations.of(rows), self._arrow_schema
            columns = taken.fixed()
            if self._schema.columns.names:
                read = self._schema.columns.read(taken.values)
                columns += [self._arrow.array(column, fields[len(columns) + n].type) for n, column in enumerate(read)]
            self._with_batch(connection, self._upsert, self._arrow.table(columns, schema=fields))

    def _with_batch(self, connection: Connection, statement: str, table: Any) -> None:
        """Executes a statement that reads an Arrow table, without an object for each row."""
        connection.raw.register(BATCH, table)
        connection.execute(statement)
        connection.raw.unregister(BATCH)  # after an error the rollback does so, and this call would hide the error


def _is_conflict(message: str) -> bool:
    """Tells whether another transaction is in the way, so that the same call may succeed later."""
    return any(words in message.lower() for words in _CONFLICTS)


def _arrow_schema(pyarrow: Any, schema: TypedTables) -> Any:
    types = {
        "BLOB": pyarrow.binary(),
        "INTEGER": pyarrow.int32(),
        "BIGINT": pyarrow.int64(),
        "VARCHAR": pyarrow.string(),
        "DOUBLE": pyarrow.float64(),
        "BOOLEAN": pyarrow.bool_(),
    }
    return pyarrow.schema([(name, types[kind]) for name, kind in schema.row_columns()])
