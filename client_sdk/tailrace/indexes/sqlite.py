"""An index in an SQLite file, which other programs query while it is followed."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace._version import __version__
from tailrace.errors import BadPosition
from tailrace.indexes.applied import AppliedMutations
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.protocol import IndexBusy
from tailrace.indexes.schema import CHECKPOINT_TABLE, META_TABLE, RING_STATEMENTS, Schema
from tailrace.indexes.stored_rings import StoredRings
from tailrace.model.position import Position, Positions

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tailrace.consuming.ring import RingChange
    from tailrace.indexes.full_text import Row, Tombstone
    from tailrace.indexes.protocol import AppliedMutation

SQLITE_VERSION_MIN = (3, 30, 0)  # ON CONFLICT DO UPDATE, and tables that list what SQLite was built with

# One try waits this long for another program's write (CREATE INDEX, VACUUM). Then the follower tries again; it can be
# left between two tries.
BUSY_TIMEOUT_S = 0.5
# A batch of 64 MiB and the pages that it touches mostly fit, so that they are written once, by the commit.
CACHE_KIB = 64 << 10
# The write-ahead file is cut back to this size after a big batch. Otherwise it would never shrink.
WAL_BYTES_KEPT = 64 << 20


class SQLiteIndex:
    """The current value of each key of a feed, in a table of an SQLite file.

    The table has the columns ``key`` (primary key), ``value``, ``partition``, ``seq``, ``timestamp``, and those of
    ``columns``. ``seq`` and ``timestamp`` (microseconds since 1970 UTC) belong to the mutation that set the value;
    ``seq`` is 0 while its history is rolled back.

    The file is in WAL mode. Readers do not block the follower, are not blocked by it, and see whole batches. One
    follower may use the file: if a second one opens it, the next call of the first one raises RuntimeError. Errors of
    SQLite itself, such as a full disk, are `sqlite3.Error`; a call that raises has stored nothing.

    Args:
        path: The file. Its directory must exist.
        table: The name of the table.
        columns: The JSON path of each further column, such as ``{"city": "$.address.city"}``. The column is NULL if the
            value is not JSON or has nothing there.
        full_text: The columns that the FTS5 table ``items_fts`` indexes. Its rows have the rowids of the table.

    Raises:
        ValueError: A name or a JSON path is not valid, or ``full_text`` names no column.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str = "items",
        columns: Mapping[str, str] | None = None,
        full_text: Sequence[str] = (),
    ) -> None:
        """Checks the arguments. The file is not opened yet."""
        self.path = Path(path)
        self._schema = Schema(table, columns or {}, full_text)
        self._upsert = self._schema.upsert_statement()
        self._delete = self._schema.delete_statement()
        self._connection: sqlite3.Connection | None = None
        self._openings = 0  # how many times the file has been opened by a follower, this one included
        self._stored: Positions | None = None
        self._stored_rings: StoredRings | None = None

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
        self.close()
        _check_version(sqlite3.sqlite_version_info)
        if not self.path.parent.is_dir():
            raise FileNotFoundError(f"the directory of the index {self.path} does not exist")
        # Calls never overlap, but they may come from one thread of a pool after another.
        self._connection = sqlite3.connect(
            self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            with _busy(self.path):
                self._prepare_file()
            self._stored = self._read_positions()
            rings = self._read_rings()
        except BaseException:
            self.close()
            raise
        return Checkpoint(self._stored, rings) if self._stored else None

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations and their checkpoint in one transaction, as `Index.apply`.

        Args:
            mutations: The mutations.
            checkpoint: The new checkpoint.

        Raises:
            BadPosition: The checkpoint belongs to another feed than the file.
            IndexBusy: Another program holds the lock of the file.
            RuntimeError: Another follower has opened the file.
        """
        positions = checkpoint.positions
        if self._stored:
            positions.require_feed(self._stored.cluster_id, self._stored.feed_id)
        upserts, deletions = self._rows(mutations)
        with self._transaction() as connection:
            self._store_rows(connection, upserts, deletions)
            self._store_positions(connection, positions)
            for partition, change in checkpoint.rings.items():
                self._rings(connection).change(partition, change)
        self._stored = positions

    def rollback(self, partition: int, seq: int) -> None:
        """Prepares for the values of another history, as `Index.rollback`. No old values are kept.

        Args:
            partition: The partition.
            seq: The last seq that both histories share.

        Returns:
            Always None. The next mutations replace the rows above ``seq``.

        Raises:
            IndexBusy: Another program holds the lock of the file.
            RuntimeError: Another follower has opened the file.
        """
        with self._transaction() as connection:
            connection.execute(
                f'UPDATE "{self._schema.table}" SET seq = 0 WHERE partition = ? AND seq > ?', (partition, seq)
            )

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, as `Index.clear`.

        Args:
            partition: The partition.

        Raises:
            IndexBusy: Another program holds the lock of the file.
            RuntimeError: Another follower has opened the file.
        """
        with self._transaction() as connection:
            if self._schema.full_text_table is not None:
                self._schema.full_text_table.forget_partition(connection, partition)
            connection.execute(f'DELETE FROM "{self._schema.table}" WHERE partition = ?', (partition,))
            connection.execute(f"DELETE FROM {CHECKPOINT_TABLE} WHERE partition = ?", (partition,))
            self._rings(connection).forget(partition)
        if self._stored is not None:
            self._stored = self._stored.without(partition)

    def close(self) -> None:
        """Closes the file. It may be called twice."""
        connection, self._connection = self._connection, None
        self._stored_rings = None
        if connection is not None:
            connection.close()

    # ---- rows ----

    def _rows(self, mutations: Iterable[AppliedMutation]) -> tuple[list[Row], list[Tombstone]]:
        """Returns the rows to put and those to delete. If a key occurs twice, its last mutation counts."""
        newest = AppliedMutations.of(mutations)
        rows, gone = newest.upserts(), newest.deletions()
        columns: list[Iterable[Any]] = [rows.keys, rows.values, rows.partitions, rows.seqs, rows.timestamps]
        if self._schema.reader.names:
            columns += zip(*map(self._schema.reader.read, rows.values), strict=True)  # type: ignore[arg-type]
        return list(zip(*columns, strict=True)), list(zip(gone.keys, gone.partitions, gone.seqs, strict=True))

    def _store_rows(self, connection: sqlite3.Connection, upserts: list[Row], deletions: list[Tombstone]) -> None:
        full_text = self._schema.full_text_table
        with full_text.following(connection, upserts, deletions) if full_text else contextlib.nullcontext():
            try:
                connection.executemany(self._delete, deletions)
                connection.executemany(self._upsert, upserts)
            except OverflowError as error:
                raise ValueError(f"a seq or a timestamp has more than 63 bits: {error}") from error

    # ---- checkpoint ----

    def _store_positions(self, connection: sqlite3.Connection, positions: Positions) -> None:
        stored: Mapping[int, Position] = self._stored or {}
        changed = [
            (partition, position.seq, str(Positions(positions.cluster_id, positions.feed_id, {partition: position})))
            for partition, position in positions.items()
            if stored.get(partition) != position
        ]
        gone = [(partition,) for partition in stored if partition not in positions]
        connection.executemany(f"REPLACE INTO {CHECKPOINT_TABLE} (partition, seq, position) VALUES (?, ?, ?)", changed)
        connection.executemany(f"DELETE FROM {CHECKPOINT_TABLE} WHERE partition = ?", gone)

    def _read_positions(self) -> Positions | None:
        positions: Positions | None = None
        rows = self._connected().execute(f"SELECT partition, position FROM {CHECKPOINT_TABLE} ORDER BY partition")
        for partition, text in rows:
            try:
                one = Positions.parse(text)
                if list(one) != [partition]:
                    raise BadPosition(f"it is of other partitions: {list(one)}")
                if positions is not None:
                    positions.require_feed(one.cluster_id, one.feed_id)
                positions = one if positions is None else positions.with_positions(one)
            except BadPosition as error:
                raise BadPosition(
                    f"{self.path}: the checkpoint of partition {partition} cannot be used ({error}); delete the file, "
                    "and the index is filled anew"
                ) from None
        return positions

    def _read_rings(self) -> dict[int, RingChange]:
        try:
            return self._rings(self._connected()).read()
        except ValueError as error:
            raise BadPosition(f"{self.path}: {error}; delete the file, and the index is filled anew") from None

    def _rings(self, connection: sqlite3.Connection) -> StoredRings:
        if self._stored_rings is None:
            self._stored_rings = StoredRings(connection)
        return self._stored_rings

    # ---- the file ----

    def _prepare_file(self) -> None:
        connection = self._connected()
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
        with _immediate(connection, self.path):
            self._make_or_check(connection)
            for statement in RING_STATEMENTS:
                connection.execute(statement)
            self._openings = self._count_opening(connection)

    def _make_or_check(self, connection: sqlite3.Connection) -> None:
        tables = {name.lower() for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        if META_TABLE not in tables:
            taken = tables & {self._schema.table.lower(), self._schema.full_text_name.lower(), CHECKPOINT_TABLE}
            if taken:
                raise ValueError(
                    f"{self.path} holds {sorted(taken)} already, and no index of Tailrace made it; choose another "
                    "path or table"
                )
            for statement in self._schema.create_statements():
                connection.execute(statement)
            connection.executemany(f"INSERT INTO {META_TABLE} VALUES (?, ?)", self._schema.describe().items())
            return
        made_with = dict(connection.execute(f"SELECT name, value FROM {META_TABLE}"))
        for name, wanted in self._schema.describe().items():
            if made_with.get(name) != wanted and name == "format":
                raise ValueError(
                    f"{self.path} was made with format = {made_with.get(name)}; tailrace {__version__} knows formats "
                    f"up to {wanted}: use the release that made it, or a later one, or delete it (with its -wal and "
                    "-shm files) and let it be filled anew"
                )
            if made_with.get(name) != wanted:
                raise ValueError(
                    f"{self.path} was made with {name} = {made_with.get(name)}, and is opened with {wanted}; open it "
                    "as it was made, or delete it (with its -wal and -shm files) and let it be filled anew, or choose "
                    "another path"
                )

    def _count_opening(self, connection: sqlite3.Connection) -> int:
        connection.execute(
            f"INSERT INTO {META_TABLE} VALUES ('openings', 1) ON CONFLICT (name) DO UPDATE SET value = value + 1"
        )
        return _openings(connection)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError(f"the index {self.path} is not open")
        return self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and only as long as no other follower has opened the file: two would mix their positions."""
        connection = self._connected()
        with _immediate(connection, self.path):
            if _openings(connection) != self._openings:
                raise RuntimeError(
                    f"another follower has opened the index {self.path}; give each one a file of its own"
                )
            yield connection


def has_fts5(connection: sqlite3.Connection) -> bool:
    """Returns whether this SQLite was built with FTS5, or has it loaded."""
    return connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def _check_version(version: tuple[int, ...]) -> None:
    if version < SQLITE_VERSION_MIN:
        raise RuntimeError(
            f"an index needs SQLite {'.'.join(map(str, SQLITE_VERSION_MIN))} or newer; this Python has "
            f"{'.'.join(map(str, version))}"
        )


def _openings(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute(f"SELECT value FROM {META_TABLE} WHERE name = 'openings'").fetchone()
    return int(count)


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
