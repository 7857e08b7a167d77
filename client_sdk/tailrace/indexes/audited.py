"""Indexes as an audit reads them: in one consistent state, beside a follower, and without a change."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tailrace.errors import BadPosition
from tailrace.indexes.by_feed import PATTERN, table_of
from tailrace.indexes.parquet_state import FOLDER, STATE, State
from tailrace.indexes.table_index import KEY_PREFIX, Tables, read_positions
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DEFAULT_TABLE = "items"
# The rows that are read from a database at a time.
ROWS_TOGETHER = 1_000
# A follower of Parquet files moves a file once it is listed, and removes those that it has replaced: then look again.
PARQUET_TRIES, PARQUET_PAUSE_S = 20, 0.05
_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC, _DUCKDB_MAGIC_AT = b"DUCK", 8
_POSTGRES = ("postgresql://", "postgres://")


class Audited(Protocol):
    """An index in one state."""

    @property
    def positions(self) -> Positions | None: ...
    @property
    def key_prefix(self) -> bytes: ...
    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        """Yields key and value of each row of a partition."""
        ...

    def partitions(self) -> list[int]:
        """Returns the partitions that have rows."""
        ...


@contextlib.contextmanager
def audited(place: str, table: str | None = None, feed: str = DEFAULT_TABLE) -> Iterator[Audited]:
    """Opens an index to be read.

    Args:
        place: A file of SQLite or DuckDB, a directory of Parquet files, or the URL of a PostgreSQL database.
        table: The table in a database. None: the one with the name of the feed, as indexes of several feeds have it, or
            else ``items``, or the only one of a file of SQLite.
        feed: The name of the feed.

    Returns:
        A context with the index, which stays in the state of this moment.

    Raises:
        ValueError: There is no index at this place.
        ImportError: A library is missing.
        BadPosition: The stored checkpoint is damaged.
    """
    wanted = [table_of(PATTERN, feed), DEFAULT_TABLE] if table is None else [table]
    if place.startswith(_POSTGRES):
        opened: Any = _postgres(place, wanted)
    elif Path(place).is_dir():
        opened = _parquet(Path(place))
    elif Path(place).is_file():
        with open(place, "rb") as file:
            head = file.read(16)
        if head == _SQLITE_MAGIC:
            opened = _sqlite(place, wanted)
        elif head[_DUCKDB_MAGIC_AT:].startswith(_DUCKDB_MAGIC):
            opened = _duckdb(place, wanted)
        else:
            raise ValueError(f"{place} is no file of SQLite or DuckDB")
    else:
        raise ValueError(
            f"there is no index at {place}: name a file of SQLite or DuckDB, a directory of Parquet files, or a URL "
            "that begins with postgresql://"
        )
    with opened as index:
        yield index


class _TableAudit(NamedTuple):
    """An index in tables. ``connection`` is within a transaction that reads; its parameters are marked by ``?``."""

    connection: Any
    tables: Tables
    place: str

    @property
    def positions(self) -> Positions | None:
        return read_positions(self.connection, self.tables.checkpoint, self.place, "make the index anew")

    @property
    def key_prefix(self) -> bytes:
        statement = f'SELECT value FROM "{self.tables.settings}" WHERE name = ?'
        found = self.connection.execute(statement, (KEY_PREFIX,)).fetchone()
        return bytes.fromhex(found[0]) if found else b""

    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        statement = f'SELECT key, value FROM "{self.tables.rows}" WHERE partition = ?'
        yield from self.connection.each(statement, (partition,))

    def partitions(self) -> list[int]:
        found = self.connection.execute(f'SELECT DISTINCT partition FROM "{self.tables.rows}"').fetchall()
        return sorted(partition for (partition,) in found)


class _SQLiteReader:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.execute = connection.execute

    def each(self, statement: str, parameters: Any) -> Iterator[Any]:
        yield from self._connection.execute(statement, parameters)


@contextlib.contextmanager
def _sqlite(place: str, wanted: list[str]) -> Iterator[Audited]:
    from tailrace.indexes.schema import FURTHER, META_TABLE, first_tables, further_tables

    uri = f"{Path(place).absolute().as_uri()}?mode=ro"
    # The calls of an audit never overlap, but they come from several threads.
    opened = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    with contextlib.closing(opened) as connection:
        connection.execute("BEGIN")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (META_TABLE,)).fetchone():
            raise ValueError(f"{place} is an SQLite file, but no index of Tailrace is in it")
        (first,) = connection.execute(f"SELECT value FROM {META_TABLE} WHERE name = 'table'").fetchone()
        prefix = f"{META_TABLE}{FURTHER}"
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB ?", (f"{prefix}*",)
        )
        further = [name.removeprefix(prefix) for (name,) in found]
        names = sorted([first, *further])
        table = next((one for one in wanted if one in names), None)
        if table is None and (further or wanted[-1] != DEFAULT_TABLE):
            raise ValueError(
                f"{place} has the indexes {names}, and none of them is {_either(wanted)}: name one by --table"
            )
        tables = further_tables(table) if table is not None and table in further else first_tables(first)
        yield _TableAudit(_SQLiteReader(connection), tables, place)


class _DuckDBReader:
    def __init__(self, connection: Any) -> None:
        from tailrace.indexes.duckdb_index import Connection

        self._connection = connection
        self.execute = Connection(connection).execute

    def each(self, statement: str, parameters: Any) -> Iterator[Any]:
        found = self._connection.execute(statement, parameters)
        while rows := found.fetchmany(ROWS_TOGETHER):
            yield from rows


@contextlib.contextmanager
def _duckdb(place: str, wanted: list[str]) -> Iterator[Audited]:
    from tailrace.indexes.duckdb_index import TYPES

    try:
        import duckdb
    except ImportError as error:
        raise ImportError("a file of DuckDB needs duckdb: pip install 'tailrace[duckdb]'") from error
    possible = _typed_tables(wanted, TYPES)
    try:
        connection = duckdb.connect(place, read_only=True)
    except duckdb.IOException as error:
        raise ValueError(f"{place} cannot be read, since its follower has it: stop it first ({error})") from error
    with contextlib.closing(connection):
        reader = _DuckDBReader(connection)
        reader.execute("BEGIN TRANSACTION")
        statement = "SELECT 1 FROM duckdb_tables() WHERE table_name = ?"
        names = next((one for one in possible if reader.execute(statement, (one.settings,)).fetchone()), None)
        if names is None:
            raise ValueError(f"{place} has no index of Tailrace with the table {_either(wanted)}: name it by --table")
        yield _TableAudit(reader, names, place)


def _typed_tables(wanted: list[str], types: Mapping[str, str]) -> list[Tables]:
    """Returns the names of the tables of indexes that there may be. ValueError if no name is valid."""
    from tailrace.indexes.typed_tables import TypedTables

    possible = []
    for table in wanted:
        # The name of a feed may be none of a table. Then its index has another one.
        with contextlib.nullcontext() if table == wanted[-1] else contextlib.suppress(ValueError):
            possible.append(TypedTables(table, {}, types).names)
    return possible


def _either(wanted: list[str]) -> str:
    return " or ".join(map(repr, wanted))


class _PostgresReader:
    def __init__(self, connection: Any) -> None:
        from tailrace.indexes.postgres import Connection

        self._connection = connection
        self.execute = Connection(connection).execute

    def each(self, statement: str, parameters: Any) -> Iterator[Any]:
        with self._connection.cursor(name="tailrace_audit") as cursor:
            cursor.itersize = ROWS_TOGETHER
            yield from cursor.execute(statement.replace("?", "%s"), parameters)


@contextlib.contextmanager
def _postgres(place: str, wanted: list[str]) -> Iterator[Audited]:
    from tailrace.indexes.postgres import TYPES

    try:
        import psycopg
    except ImportError as error:
        raise ImportError(f"PostgreSQL needs psycopg ({error}): pip install 'tailrace[postgres]'") from error
    possible = _typed_tables(wanted, TYPES)
    try:
        connection = psycopg.connect(place)
    except psycopg.OperationalError as error:
        raise ValueError(f"PostgreSQL does not answer: {' '.join(str(error).split())}") from error
    with contextlib.closing(connection):
        reader = _PostgresReader(connection)
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for names in possible:
            if reader.execute("SELECT to_regclass(?)", (f'"{names.settings}"',)).fetchone() != (None,):
                break
        else:
            raise ValueError(
                f"the database has no index of Tailrace with the table {_either(wanted)} in its search path: name it "
                "by --table, and its schema by ?options=-csearch_path%3DSCHEMA in the URL"
            )
        yield _TableAudit(reader, names, f"table {names.rows} in PostgreSQL")


class _ParquetAudit:
    """A directory of Parquet files. Their newest rows are held in memory."""

    def __init__(self, path: Path) -> None:
        from tailrace.indexes.parquet_files import ParquetFiles
        from tailrace.indexes.typed_columns import TypedColumns

        files = ParquetFiles(TypedColumns({}))
        for tries in itertools.count(1):
            state = _parquet_state(path)
            try:
                table = files.newest(_parquet_files(path, state), ["partition", "key", "value"])
                break
            except FileNotFoundError as error:
                if tries == PARQUET_TRIES:
                    raise BadPosition(f"{path}: a file of its list is missing ({error})") from None
            time.sleep(PARQUET_PAUSE_S)
        self.positions = state.stored()
        self.key_prefix = bytes.fromhex(state.key_prefix)
        self._partitions = table["partition"].to_pylist()
        self._table = table

    def rows(self, partition: int) -> Iterator[tuple[bytes, bytes]]:
        columns = (self._partitions, self._table["key"].to_pylist(), self._table["value"].to_pylist())
        for of, key, value in zip(*columns, strict=True):
            if of == partition:
                yield key, value

    def partitions(self) -> list[int]:
        return sorted(set(self._partitions))


def _parquet_state(path: Path) -> State:
    try:
        return State.from_json((path / FOLDER / STATE).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is a directory without an index of Tailrace") from None
    except (ValueError, KeyError, TypeError) as error:
        raise BadPosition(f"{path}: the list of its files is damaged ({error})") from None


def _parquet_files(path: Path, state: State) -> list[Path]:
    """Returns the files of the list. One that a follower has not moved yet is still where it was written."""
    return [new if (new := path / FOLDER / part.name).exists() else path / part.name for part in state.parts]


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Audited]:
    yield _ParquetAudit(path)
