"""An index in an SQLite file, which other programs query while it is followed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.indexes.by_feed import PATTERN, ByFeed, table_of
from tailrace.indexes.columns import name_of
from tailrace.indexes.protocol import IndexBusy
from tailrace.indexes.schema import META_TABLE, Schema, first_tables, further_tables, ring_statements
from tailrace.indexes.shared_tables import SharedTableIndex

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tailrace.indexes.applied import AppliedMutations
    from tailrace.indexes.checkpoint import Checkpoint
    from tailrace.indexes.full_text import Row, Tombstone
    from tailrace.indexes.table_index import Tables
    from tailrace.serializers import Serializer

SQLITE_VERSION_MIN = (3, 30, 0)  # ON CONFLICT DO UPDATE, and tables that list what SQLite was built with

# One try waits this long for another program's write (CREATE INDEX, VACUUM). Then the follower tries again; it can be
# left between two tries.
BUSY_TIMEOUT_S = 0.5
# A batch of 64 MiB and the pages that it touches mostly fit, so that they are written once, by the commit.
CACHE_KIB = 64 << 10
# The write-ahead file is cut back to this size after a big batch. Otherwise it would never shrink.
WAL_BYTES_KEPT = 64 << 20


class SQLiteIndex(SharedTableIndex[sqlite3.Connection]):
    """The current value of each key of a feed, in a table of an SQLite file.

    The table has the columns ``key`` (primary key), ``value``, ``partition``, ``seq``, ``timestamp``, and those of
    ``columns``. ``seq`` and ``timestamp`` (microseconds since 1970 UTC) belong to the mutation that set the value;
    ``seq`` is 0 while its history is rolled back.

    The file is in WAL mode. Readers do not block the follower, are not blocked by it, and see whole batches. One
    follower may use the file: if a second one opens it, the next call of the first one raises RuntimeError. Errors of
    SQLite itself, such as a full disk, are `sqlite3.Error`; a call that raises has stored nothing.

    Args:
        path: The file. Its directory must exist.
        table: The name of the table. A file may have several indexes, each with a table of its own. With ``{feed}`` in
            the name the index may be followed by several feeds: each has its own table. In the name of the feed,
            other characters than letters, digits and underscores become underscores.
        columns: The JSON path of each further column, such as ``{"city": "$.address.city"}``. The column is NULL if the
            value is not JSON or has nothing there.
        full_text: The columns that the FTS5 table ``items_fts`` indexes. Its rows have the rowids of the table.
        serializer: Reads the values for ``columns`` (``tailrace.serializers``). A value that it cannot read is a
            bad row. None: JSON, and NULL for other values.

    Raises:
        ValueError: A name or a JSON path is not valid, or ``full_text`` names no column.
    """

    begin_anew = "delete the file (with its -wal and -shm files)"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str = "items",
        columns: Mapping[str, str] | None = None,
        full_text: Sequence[str] = (),
        serializer: Serializer | None = None,
    ) -> None:
        """Checks the arguments. The file is not opened yet."""
        self.path = Path(path)
        self._schema = Schema(table_of(table, "feed"), columns or {}, full_text, serializer)
        self._upsert = self._schema.upsert_statement()
        self._delete = self._schema.delete_statement()
        settings = {**self._schema.describe(), "serializer": name_of(serializer)}
        super().__init__(str(self.path), first_tables(self._schema.table), settings)
        if PATTERN in table:
            self._by_feed = ByFeed(
                lambda feed: SQLiteIndex(
                    path, table=table_of(table, feed), columns=columns, full_text=full_text, serializer=serializer
                )
            )

    def open(self) -> Checkpoint | None:
        """Opens the file, or creates it, and returns its checkpoint.

        Returns:
            The stored checkpoint, or None if the file holds nothing yet.

        Raises:
            ValueError: The file is not an index, or has another table, other columns or another full text.
            RuntimeError: SQLite is too old or has no FTS5.
            FileNotFoundError: The directory does not exist.
            BadPosition: The stored checkpoint is damaged.
            IndexBusy: Another program holds the lock of the file.
        """
        return self._open()

    def _connect(self) -> sqlite3.Connection:
        _check_version(sqlite3.sqlite_version_info)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the directory of the index {self.path} does not exist")
        # Calls never overlap, but they may come from one thread of a pool after another.
        connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            with _busy(self.path):
                self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.DatabaseError as error:
            if isinstance(
                error, sqlite3.OperationalError
            ):  # locked or no permission: this does not concern the content
                raise
            raise ValueError(f"{self.path} is not an SQLite file ({error}); choose another path") from error
        # A power cut may take the last commits, rows and checkpoint alike: the follower then asks for them again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        if self._schema.full_text and not has_fts5(connection):
            raise RuntimeError(
                "full_text needs SQLite's FTS5, which the sqlite3 module of this Python was built without; use a "
                "Python whose SQLite has it, or leave full_text away"
            )

    def _begun(self, connection: sqlite3.Connection) -> AbstractContextManager[object]:
        return _immediate(connection, self.path)

    def _table_names(self, connection: sqlite3.Connection) -> set[str]:
        return {name.lower() for (name,) in connection.execute("SELECT name FROM sqlite_master")}

    def _own_tables(self) -> Iterable[str]:
        return self._schema.table, self._schema.full_text_name, self._tables.checkpoint

    def _make_or_check(self, connection: sqlite3.Connection) -> None:
        self._tables = tables_in(connection, self._schema.table)
        super()._make_or_check(connection)

    def _create(self, connection: sqlite3.Connection) -> None:
        for statement in self._schema.create_statements(self._tables):
            connection.execute(statement)

    def _complete(self, connection: sqlite3.Connection) -> None:
        for statement in ring_statements(self._tables):
            connection.execute(statement)

    # ---- rows ----

    def _store_mutations(self, connection: sqlite3.Connection, mutations: AppliedMutations) -> None:
        rows, gone = mutations.upserts(), mutations.deletions()
        columns: list[Iterable[Any]] = [*rows.columns()]
        if self._schema.reader.names:
            columns += zip(*map(self._schema.reader.read, rows.values), strict=True)  # type: ignore[arg-type]
        deletions = list(zip(gone.keys, gone.partitions, gone.seqs, strict=True))
        self._store_rows(connection, list(zip(*columns, strict=True)) if rows else [], deletions)

    def _store_rows(self, connection: sqlite3.Connection, upserts: list[Row], deletions: list[Tombstone]) -> None:
        full_text = self._schema.full_text_table
        with full_text.following(connection, upserts, deletions) if full_text else contextlib.nullcontext():
            try:
                connection.executemany(self._delete, deletions)
                connection.executemany(self._upsert, upserts)
            except OverflowError as error:
                raise ValueError(f"a seq or a timestamp has more than 63 bits: {error}") from error

    def _forget_rows(self, connection: sqlite3.Connection, partition: int) -> None:
        if self._schema.full_text_table is not None:
            self._schema.full_text_table.forget_partition(connection, partition)
        super()._forget_rows(connection, partition)


def tables_in(connection: sqlite3.Connection, table: str) -> Tables:
    """Returns the names of the tables of the index with the rows in ``table``, in a file that may have others."""
    first = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META_TABLE,)).fetchone()
    if first:
        held = connection.execute(f"SELECT value FROM {META_TABLE} WHERE name = 'table'").fetchone()
        if held is not None and held[0].lower() != table.lower():
            return further_tables(table)
    return first_tables(table)


def has_fts5(connection: sqlite3.Connection) -> bool:
    """Returns whether this SQLite was built with FTS5, or has it loaded."""
    return connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def _check_version(version: tuple[int, ...]) -> None:
    if version < SQLITE_VERSION_MIN:
        raise RuntimeError(
            f"an index needs SQLite {'.'.join(map(str, SQLITE_VERSION_MIN))} or newer; this Python has "
            f"{'.'.join(map(str, version))}"
        )


@contextlib.contextmanager
def _busy(path: Path) -> Iterator[None]:
    """Raises IndexBusy in place of the error that SQLite gives if another connection holds the lock."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # the bits above tell what kind of BUSY
            raise
        raise IndexBusy(f"the index {path} is locked by another program, whose transaction has to end") from error


@contextlib.contextmanager
def _immediate(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    with _busy(path):
        connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # if the disk was full, SQLite has rolled back already
            connection.execute("ROLLBACK")
        raise
