"""An index in tables of a PostgreSQL database, which other programs query while it is followed."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from tailrace.indexes.by_feed import PATTERN, ByFeed, table_of
from tailrace.indexes.columns import name_of
from tailrace.indexes.protocol import IndexBusy
from tailrace.indexes.shared_tables import SharedTableIndex
from tailrace.indexes.table_index import OPENINGS
from tailrace.indexes.typed_tables import TypedTables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from tailrace.indexes.applied import AppliedMutations
    from tailrace.indexes.checkpoint import Checkpoint
    from tailrace.serializers import Serializer

TYPES = {
    "bytes": "bytea",
    "partition": "integer",
    "text": "text",
    "integer": "bigint",
    "real": "double precision",
    "boolean": "boolean",
    "json": "jsonb",
}
# The types of the columns of a batch, as COPY sends them: jsonb is made of text by the server.
_COPY_TYPES = {"bytea": "bytea", "integer": "int4", "bigint": "int8", "double precision": "float8", "boolean": "bool"}
BATCH = "tailrace_batch"
# The setting that counts the transactions of followers.
COMMITS = "commits"
# One try waits this long for another transaction. Then the follower tries again; it can be left between two tries.
LOCK_TIMEOUT_MS = 500
# A member of a group that stops in a transaction holds locks for this time at most. Then the server ends its session,
# and the next owner of its partitions goes on.
SHARED_IDLE_MS = 10_000
# What a server says that takes no connections yet: while it starts, recovers, or is about to start again.
_NOT_YET = ("starting up", "not yet accepting connections", "in recovery mode", "shutting down")


_VALUES = re.compile(r"VALUES (\([?, ]+\))")
# The rows of one INSERT. PostgreSQL takes 65,535 parameters.
VALUES_MAX = 1_000


class PostgresIndex(SharedTableIndex["Connection"]):
    """The current value of each key of a feed, in a table of a PostgreSQL database.

    The table has the columns ``key`` (bytea, primary key), ``value``, ``partition``, ``seq``, ``timestamp``, and those
    of ``columns``. ``seq`` and ``timestamp`` (microseconds since 1970 UTC) belong to the mutation that set the value;
    ``seq`` is 0 while its history is rolled back.

    A batch comes by COPY into a temporary table, and from there by one upsert. Rows, positions and rings are stored in
    one transaction. A database may have several indexes, each with a table of its own. One follower may use a table: if
    a second one opens it, the next call of the first one raises RuntimeError. If the connection is lost, the follower
    connects again; RuntimeError if the server has lost commits by then. Other errors of the server are
    ``psycopg.Error``; a call that raises has stored nothing.

    Args:
        conninfo: The database, as libpq takes it: ``"postgresql://user@host/database"`` or ``"host=... dbname=..."``.
        table: The name of the table, 40 characters at most. With ``{feed}`` in it the index may be followed by several
            feeds: each has its own table. In the name of the feed, other characters than letters, digits and
            underscores become underscores.
        schema: The schema of the tables, which must exist. None: the first one of the search path.
        columns: The JSON path of each further column, such as ``{"city": "$.address.city"}``, or the path and one of
            the types "text", "integer", "real", "boolean" and "json" (jsonb): ``{"age": ("$.age", "integer")}``. A
            value of another type is NULL.
        serializer: Reads the values for ``columns`` (``tailrace.serializers``). A value that it cannot read is a
            bad row. None: JSON, and NULL for other values.

    Raises:
        ValueError: A name, a JSON path or a type is not valid.
        ImportError: psycopg is missing; ``pip install 'tailrace[postgres]'`` installs it.
    """

    begin_anew = "drop its tables"
    compares_last = True

    def __init__(
        self,
        conninfo: str,
        *,
        table: str = "items",
        schema: str | None = None,
        columns: Mapping[str, str | tuple[str, str]] | None = None,
        serializer: Serializer | None = None,
    ) -> None:
        """Checks the arguments. It does not connect yet."""
        try:
            import psycopg
        except ImportError as error:
            raise ImportError(f"PostgresIndex needs psycopg ({error}): pip install 'tailrace[postgres]'") from error
        self._psycopg: Any = psycopg
        self._conninfo = conninfo
        self._schema_name = schema
        self._schema = TypedTables(table_of(table, "feed"), columns or {}, TYPES, serializer)
        self._upsert = self._schema.upsert_statement(BATCH, "::jsonb")
        self._delete = self._schema.delete_statement("unnest(?::bytea[], ?::integer[], ?::bigint[])").replace(
            " AS gone ", " AS gone (key, partition, seq) "
        )
        self._commits = 0  # transactions of followers that are known to be committed
        self._copy_types = [_COPY_TYPES.get(kind, "text") for _, kind in self._schema.row_columns()]
        settings = {**self._schema.describe(), "serializer": name_of(serializer)}
        super().__init__(f"table {table} in PostgreSQL", self._schema.names, settings)
        if PATTERN in table:
            self._by_feed = ByFeed(
                lambda feed: PostgresIndex(
                    conninfo, table=table_of(table, feed), schema=schema, columns=columns, serializer=serializer
                )
            )

    def open(self) -> Checkpoint | None:
        """Connects, makes the tables if they are missing, and returns the checkpoint.

        Returns:
            The stored checkpoint, or None if the index holds nothing yet.

        Raises:
            ValueError: The table was made by another program, or has other columns.
            BadPosition: The stored checkpoint is damaged.
            IndexBusy: Another transaction has the lock, or the server is starting.
        """
        return self._open()

    def _connect(self) -> Connection:
        try:
            connection = self._psycopg.connect(self._conninfo, autocommit=True)
        except self._psycopg.OperationalError as error:
            if any(words in str(error) for words in _NOT_YET):
                raise IndexBusy(f"the server of the {self._place} is starting ({error})") from error
            raise
        try:
            made = Connection(connection, is_shared=self._group is not None)
            made.execute(f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
            if self._group is not None:
                made.execute(f"SET idle_in_transaction_session_timeout = {SHARED_IDLE_MS}")
            if self._schema_name is not None:
                made.execute("SELECT set_config('search_path', quote_ident(?), false)", (self._schema_name,))
                if made.execute("SELECT current_schema()").fetchone() == (None,):
                    raise ValueError(f"there is no schema {self._schema_name!r} for the {self._place}: create it first")
            columns = ", ".join(
                f'"{name}" {"text" if kind == "jsonb" else kind}' for name, kind in self._schema.row_columns()
            )
            made.execute(f"CREATE TEMPORARY TABLE {BATCH} ({columns}) ON COMMIT DELETE ROWS")
        except BaseException:
            connection.close()
            raise
        return made

    def _begun(self, connection: Connection) -> AbstractContextManager[object]:
        return self._one_transaction(connection)

    @contextlib.contextmanager
    def _one_transaction(self, connection: Connection) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            with connection.raw.transaction():
                yield
        except (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure) as error:
            raise IndexBusy(f"another transaction has the lock of the {self._place} ({error})") from error
        except (self._psycopg.OperationalError, errors.IdleInTransactionSessionTimeout) as error:
            if not connection.raw.closed:
                raise
            raise IndexBusy(f"the connection to the server of the {self._place} was lost ({error})") from error

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        self._usable()
        with super()._transaction() as connection:
            yield connection
            # Members of a group compare the positions instead: they would wait for each other at one row.
            commits = self._count_commit(connection) if self._group is None else 0
        self._commits = commits

    def _count_commit(self, connection: Connection) -> int:
        table = self._schema.names.settings
        counted = connection.execute(
            f'INSERT INTO "{table}" AS old VALUES (?, ?) ON CONFLICT (name) '
            "DO UPDATE SET value = (old.value::bigint + 1)::text RETURNING value",
            (COMMITS, "1"),
        )
        return int(counted.fetchone()[0])

    def _connect_again(self) -> None:
        """Replaces a lost connection. What was stored by it or not comes again, and changes nothing then.

        Raises RuntimeError if the server has lost commits, after which the follower would go on too far.
        """
        try:
            self._connection = self._connect()
        except self._psycopg.OperationalError as error:
            raise IndexBusy(f"the server of the {self._place} does not answer ({error})") from error
        self._stored_rings, before = None, {} if self._stored is None else self._stored.seqs()
        with self._begun(self._connection):
            self._stored = self._read_positions(self._connection)
            commits = self._read_commits(self._connection)
            mine = () if self._group is None else self._still_taken(self._connection)
        now = {} if self._stored is None else self._stored.seqs()
        lost = f"{commits} of this index, and had answered {self._commits}" if commits < self._commits else ""
        if any(now.get(p, 0) < before.get(p, 0) for p in mine):
            lost = "earlier positions of this index than it had answered"
        if lost:
            raise RuntimeError(
                f"the server of the {self._place} has lost commits: it has {lost}. A crash with synchronous_commit off "
                "does that, or a standby that was behind. Follow again: the index goes on from what the server has"
            )

    def _read_commits(self, connection: Connection) -> int:
        table = self._schema.names.settings
        found = connection.execute(f'SELECT value FROM "{table}" WHERE name = ?', (COMMITS,)).fetchone()
        return int(found[0]) if found else 0

    def _usable(self) -> Connection:
        if self._connected().raw.closed:
            self._connect_again()
        return self._connected()

    def _lock(self, connection: Connection, table: str, column: str, condition: str) -> None:
        connection.execute(f'SELECT 1 FROM "{table}" WHERE {condition} FOR UPDATE')

    def _read_openings(self, connection: Connection) -> int:
        """Reads the row of the openings with a lock, so that no other follower commits beside this one."""
        table = self._schema.names.settings
        found = connection.execute(f'SELECT value FROM "{table}" WHERE name = ? FOR UPDATE', (OPENINGS,)).fetchone()
        return int(found[0]) if found else 0

    def _count_opening(self, connection: Connection) -> int:
        openings = self._read_openings(connection) + 1
        statement = f'UPDATE "{self._schema.names.settings}" SET value = ? WHERE name = ?'
        connection.execute(statement, (str(openings), OPENINGS))
        self._commits = self._read_commits(connection)
        return openings

    def _table_names(self, connection: Connection) -> set[str]:
        # Two followers that make the same tables wait for each other here.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (self._schema.names.settings,))
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return {name.lower() for (name,) in found.fetchall()}

    def _create(self, connection: Connection) -> None:
        names = self._schema.names
        for statement in self._schema.create_statements("bigint GENERATED ALWAYS AS IDENTITY"):
            connection.execute(statement)
        connection.execute(f'INSERT INTO "{names.settings}" VALUES (?, ?)', (OPENINGS, "0"))
        # For clear and rollback, which would read the whole table otherwise.
        connection.execute(f'CREATE INDEX "{names.rows}_partition_seq" ON "{names.rows}" (partition, seq)')
        connection.execute(f'CREATE INDEX "{names.ring}_by_number" ON "{names.ring}" (partition, number)')
        # Keys hardly compress, and to try took the server a tenth of the time of a batch.
        connection.execute(f'ALTER TABLE "{names.ring}" ALTER COLUMN entries SET STORAGE EXTERNAL')

    def _store_mutations(self, connection: Connection, mutations: AppliedMutations) -> None:
        rows, gone = mutations.upserts(), mutations.deletions()
        try:
            if gone:
                connection.execute(self._delete, (list(gone.keys), list(gone.partitions), list(gone.seqs)))
            if rows:
                columns = [*rows.columns(), *self._schema.columns.read(rows.values)]
                connection.copy(BATCH, self._copy_types, columns)
                connection.execute(self._upsert)
        except (self._psycopg.errors.NumericValueOutOfRange, self._psycopg.DataError, OverflowError) as error:
            raise ValueError(f"a seq or a timestamp has more than 63 bits: {error}") from error


class Connection:
    """A connection of psycopg whose parameters are marked by ``?``, as those of the other databases."""

    def __init__(self, raw: Any, *, is_shared: bool = False) -> None:
        """Takes a connection. ``is_shared``: the server ends it if it is idle in a transaction."""
        self.raw = raw
        self._is_shared = is_shared

    def execute(self, statement: str, parameters: Any = None, /) -> Any:
        return self.raw.execute(statement.replace("?", "%s") if parameters else statement, parameters)

    def executemany(self, statement: str, rows: Any, /) -> Any:
        if self._is_shared:
            self._execute_each(statement, list(rows))
            return
        with self.raw.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)

    def _execute_each(self, statement: str, rows: list[Any]) -> None:
        """Executes a statement for all rows without a pipeline, in which the server does not count as idle.

        A member that is stopped in a pipeline would hold its locks until it goes on.
        """
        found = _VALUES.search(statement)
        if found is None:
            for row in rows:
                self.execute(statement, row)
            return
        for start in range(0, len(rows), VALUES_MAX):
            part = rows[start : start + VALUES_MAX]
            values = ", ".join([found[1]] * len(part))
            many = f"{statement[: found.start(1)]}{values}{statement[found.end(1) :]}"
            self.execute(many, [value for row in part for value in row])

    def copy(self, table: str, types: list[str], columns: list[Any]) -> None:
        """Sends columns into a table, by COPY in its binary form."""
        with self.raw.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(types)
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def close(self) -> None:
        self.raw.close()
