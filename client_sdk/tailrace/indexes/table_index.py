"""An index in tables of a database with transactions: what the indexes for SQLite, DuckDB and PostgreSQL share.

Rows, positions and rings change in one transaction. A table of settings says how the index was made, and how many
times followers have opened it: a follower that is not the last one stores nothing any more.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from tailrace._version import __version__
from tailrace.errors import BadPosition
from tailrace.indexes.applied import AppliedMutations
from tailrace.indexes.by_feed import ByFeed, require_feed
from tailrace.indexes.checkpoint import Checkpoint, require_prefix
from tailrace.indexes.columns import NO_SERIALIZER
from tailrace.indexes.stored_rings import Statements, StoredRings
from tailrace.model.position import Position, Positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from tailrace.consuming.ring import RingChange
    from tailrace.indexes.protocol import AppliedMutation


class Tables(NamedTuple):
    """The names of the tables of an index, unquoted."""

    rows: str
    settings: str
    checkpoint: str
    ring: str
    ring_floor: str

    @property
    def owners(self) -> str:
        """The table of the generations, which only an index of a group has."""
        return self.checkpoint.replace("checkpoint", "owners", 1)


# The setting that counts how many times followers have opened the index.
OPENINGS = "openings"
# The setting with the prefix of all keys, in hexadecimal. An index of all keys need not have it.
KEY_PREFIX = "key_prefix"

C = TypeVar("C", bound=Statements)


class TableIndex(ABC, Generic[C]):
    """The base of an index in tables. A subclass connects, and stores the rows."""

    # How a follower begins anew, for messages.
    begin_anew: ClassVar[str]

    def __init__(self, place: str, tables: Tables, settings: Mapping[str, str]) -> None:
        """Makes the index at ``place``, as messages name it."""
        self._place = place
        self._tables = tables
        self._settings = settings
        self._connection: C | None = None
        self._group: str | None = None  # that fills the index; None: one follower does
        self._openings = 0  # how many times followers have opened the index, this one included
        self._stored: Positions | None = None
        self._stored_rings: StoredRings | None = None
        self._by_feed: ByFeed[Any] | None = None

    def of_feed(self, feed: str) -> Self:
        """Returns the index of one feed. A follower asks for it.

        Args:
            feed: The name of the feed.

        Returns:
            The index with the table of this feed, the same object each time, if ``table`` has ``{feed}``. Otherwise
            the index itself.

        Raises:
            ValueError: The name of the table would not be valid, such as one that is too long.
        """
        return self if self._by_feed is None else self._by_feed.of(feed)

    # For subclasses

    @abstractmethod
    def _connect(self) -> C:
        """Opens the database."""

    @abstractmethod
    def _begun(self, connection: C) -> AbstractContextManager[object]:
        """Returns the context of a transaction. IndexBusy if another program has the lock."""

    @abstractmethod
    def _table_names(self, connection: C) -> set[str]:
        """Returns the names of the tables that are there, in lower case."""

    @abstractmethod
    def _create(self, connection: C) -> None:
        """Makes the tables, if they are not there; those of the rows and settings are not."""

    def _complete(self, connection: C) -> None:
        """Makes the tables that an index of an older version lacks."""

    @abstractmethod
    def _store_mutations(self, connection: C, mutations: AppliedMutations) -> None:
        """Stores the newest mutation of each key."""

    def _forget_rows(self, connection: C, partition: int) -> None:
        connection.execute(f'DELETE FROM "{self._tables.rows}" WHERE partition = ?', (partition,))

    # The contract

    def _open(self) -> Checkpoint | None:
        require_feed(self._place, self._by_feed)
        self.close()
        self._connection = connection = self._connect()
        try:
            with self._begun(connection):
                self._make_or_check(connection)
                self._complete(connection)
                self._openings = self._count_opening(connection)
                self._stored = self._read_positions(connection)
                rings = self._read_rings(connection)
        except BaseException:
            self.close()
            raise
        return Checkpoint(self._stored, rings) if self._stored else None

    def keep_prefix(self, key_prefix: bytes) -> None:
        """Notes the prefix of all keys. The follower calls it after `open`.

        Args:
            key_prefix: The prefix that is followed.

        Raises:
            ValueError: The index was filled with another prefix.
            IndexBusy: Another program holds the store.
            RuntimeError: Another follower has opened the index.
        """
        table = self._tables.settings
        with self._transaction() as connection:
            found = connection.execute(f'SELECT value FROM "{table}" WHERE name = ?', (KEY_PREFIX,)).fetchone()
            held = bytes.fromhex(found[0]) if found else b""
            if self._keeps_prefix(connection, is_noted=found is not None):
                require_prefix(self._place, held, key_prefix)
            elif held != key_prefix or (found is None and self._group is not None):
                connection.execute(f'DELETE FROM "{table}" WHERE name = ?', (KEY_PREFIX,))
                connection.execute(f'INSERT INTO "{table}" VALUES (?, ?)', (KEY_PREFIX, key_prefix.hex()))

    def _keeps_prefix(self, connection: C, *, is_noted: bool) -> bool:
        """Returns whether rows may have come with the prefix that is noted; that of all keys if none is."""
        return bool(self._stored)

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations and their checkpoint in one transaction, as `Index.apply`.

        Args:
            mutations: The mutations.
            checkpoint: The new checkpoint.

        Raises:
            BadPosition: The checkpoint belongs to another feed than the index.
            IndexBusy: Another program holds the store.
            RuntimeError: Another follower has opened the index.
        """
        positions = checkpoint.positions
        if self._stored:
            positions.require_feed(self._stored.cluster_id, self._stored.feed_id)
        newest = AppliedMutations.of(mutations)
        with self._transaction() as connection:
            self._store_mutations(connection, newest)
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
            IndexBusy: Another program holds the store.
            RuntimeError: Another follower has opened the index.
        """
        with self._transaction() as connection:
            connection.execute(
                f'UPDATE "{self._tables.rows}" SET seq = 0 WHERE partition = ? AND seq > ?', (partition, seq)
            )

    def clear(self, partition: int) -> None:
        """Deletes everything of a partition, as `Index.clear`.

        Args:
            partition: The partition.

        Raises:
            IndexBusy: Another program holds the store.
            RuntimeError: Another follower has opened the index.
        """
        with self._transaction() as connection:
            self._forget_rows(connection, partition)
            connection.execute(f'DELETE FROM "{self._tables.checkpoint}" WHERE partition = ?', (partition,))
            self._rings(connection).forget(partition)
        if self._stored is not None:
            self._stored = self._stored.without(partition)

    def close(self) -> None:
        """Closes the connection. It may be called twice."""
        connection: Any = self._connection
        self._connection = self._stored_rings = None
        if connection is not None:
            connection.close()

    # The checkpoint

    def _store_positions(self, connection: C, positions: Positions) -> None:
        stored: Mapping[int, Position] = self._stored or {}
        changed = [
            (partition, position.seq, str(Positions(positions.cluster_id, positions.feed_id, {partition: position})))
            for partition, position in positions.items()
            if stored.get(partition) != position
        ]
        gone = [(partition,) for partition in stored if partition not in positions]
        table = self._tables.checkpoint
        if changed:
            statement = (
                f'INSERT INTO "{table}" (partition, seq, position) VALUES (?, ?, ?) '
                "ON CONFLICT (partition) DO UPDATE SET seq = excluded.seq, position = excluded.position"
            )
            connection.executemany(statement, changed)
        if gone:
            connection.executemany(f'DELETE FROM "{table}" WHERE partition = ?', gone)

    def _read_positions(self, connection: C) -> Positions | None:
        return read_positions(connection, self._tables.checkpoint, self._place, self.begin_anew)

    def _read_rings(self, connection: C, partitions: Iterable[int] | None = None) -> dict[int, RingChange]:
        try:
            return self._rings(connection).read(partitions)
        except ValueError as error:
            raise BadPosition(f"{self._place}: {error}; {self.begin_anew}, and the index is filled anew") from None

    def _rings(self, connection: C) -> StoredRings:
        if self._stored_rings is None:
            self._stored_rings = StoredRings(connection, self._tables.ring, self._tables.ring_floor)
        return self._stored_rings

    # The settings

    def _make_or_check(self, connection: C) -> None:
        names = self._table_names(connection)
        if self._tables.settings.lower() not in names:
            taken = names & {name.lower() for name in self._own_tables()}
            if taken:
                raise ValueError(
                    f"{self._place} holds {sorted(taken)} already, and no index of Tailrace made it; choose another "
                    "path or table"
                )
            self._create(connection)
            statement = f'INSERT INTO "{self._tables.settings}" VALUES (?, ?)'
            connection.executemany(statement, list(self._settings.items()))
            return
        found = connection.execute(f'SELECT name, value FROM "{self._tables.settings}"').fetchall()
        self._check_settings(dict(found))

    def _own_tables(self) -> Iterable[str]:
        return self._tables.rows, self._tables.checkpoint

    def _check_settings(self, made_with: Mapping[str, str]) -> None:
        made_with = {"serializer": NO_SERIALIZER, **made_with}
        for name, wanted in self._settings.items():
            if made_with.get(name) != wanted and name == "format":
                raise ValueError(
                    f"{self._place} was made with format = {made_with.get(name)}; tailrace {__version__} knows formats "
                    f"up to {wanted}: use the release that made it, or a later one, or {self.begin_anew} and let it "
                    "be filled anew"
                )
            if made_with.get(name) != wanted:
                raise ValueError(
                    f"{self._place} was made with {name} = {made_with.get(name)}, and is opened with {wanted}; open it "
                    f"as it was made, or {self.begin_anew} and let it be filled anew, or choose another path"
                )

    def _count_opening(self, connection: C) -> int:
        table = self._tables.settings
        openings = self._read_openings(connection) + 1
        connection.execute(f'DELETE FROM "{table}" WHERE name = ?', (OPENINGS,))
        connection.execute(f'INSERT INTO "{table}" VALUES (?, ?)', (OPENINGS, str(openings)))
        return openings

    def _read_openings(self, connection: C) -> int:
        statement = f'SELECT value FROM "{self._tables.settings}" WHERE name = ?'
        found = connection.execute(statement, (OPENINGS,)).fetchone()
        return int(found[0]) if found else 0

    def _connected(self) -> C:
        if self._connection is None:
            raise RuntimeError(f"the index {self._place} is not open")
        return self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        """All or nothing, and only as long as no other follower has opened the index: two would mix their positions."""
        connection = self._connected()
        with self._begun(connection):
            if self._read_openings(connection) != self._openings:
                raise RuntimeError(
                    f"another follower has opened the index {self._place}; give each one an index of its own"
                )
            yield connection


def read_positions(connection: Statements, table: str, place: str, begin_anew: str) -> Positions | None:
    """Reads the stored positions. None if there are none. Raises BadPosition if they are damaged."""
    positions: Positions | None = None
    for partition, text in connection.execute(
        f'SELECT partition, position FROM "{table}" ORDER BY partition'
    ).fetchall():
        try:
            one = Positions.parse(text)
            if list(one) != [partition]:
                raise BadPosition(f"it is of other partitions: {list(one)}")
            if positions is not None:
                positions.require_feed(one.cluster_id, one.feed_id)
            positions = one if positions is None else positions.with_positions(one)
        except BadPosition as error:
            raise BadPosition(
                f"{place}: the checkpoint of partition {partition} cannot be used ({error}); {begin_anew}, and the "
                "index is filled anew"
            ) from None
    return positions
