"""An index in tables that the members of a group fill together. A table has the generation of each partition's owner.

    take: settings say that it is still this group's ── no later generation? ── store mine, read positions and rings
    apply, rollback, clear: change rows and positions, and compare the generations, in one transaction

A database that lets transactions run beside each other locks the rows of the generations for the comparison. So a
member that was stopped for a while, and wakes when another one has taken its partitions, changes nothing any more.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from tailrace.errors import NotOwner
from tailrace.indexes.by_feed import require_feed
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.protocol import Taken
from tailrace.indexes.stored_rings import in_partitions
from tailrace.indexes.table_index import C, TableIndex
from tailrace.model.position import Positions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.indexes.protocol import AppliedMutation

# The setting with the group that fills the index.
GROUP = "group"


class SharedTableIndex(TableIndex[C]):
    """A `TableIndex` that may belong to a group."""

    # True if the generations are compared at the end of a transaction: it waits for the program before, and a program
    # that is stopped then is not to hold their locks.
    compares_last: ClassVar[bool] = False

    _taken: Mapping[int, int] = {}  # the generation of each partition that this follower owns

    # For subclasses

    def _lock(self, connection: C, table: str, column: str, condition: str) -> None:
        """Locks rows until the transaction ends; nothing to do if transactions never run beside each other."""

    def _usable(self) -> C:
        """Returns the connection; another one if it was lost."""
        return self._connected()

    # The contract

    def _open(self) -> Checkpoint | None:
        self._group, self._taken = None, {}
        return super()._open()

    def open_shared(self, group: str) -> None:
        """Opens the index for a member of a group, as `SharedIndex.open_shared`.

        Args:
            group: The name of the group.

        Raises:
            ValueError: The tables were made by another program, or with other settings.
            IndexBusy: Another program holds the store.
        """
        require_feed(self._place, self._by_feed)
        self.close()
        self._group, self._taken, self._stored = group, {}, None
        self._connection = connection = self._connect()
        try:
            with self._begun(connection):
                self._make_or_check(connection)
                self._complete(connection)
                self._openings = self._read_openings(connection)
                if self._read_group(connection) != group:
                    connection.execute(
                        f'CREATE TABLE IF NOT EXISTS "{self._tables.owners}" '
                        "(partition integer PRIMARY KEY, generation bigint NOT NULL)"
                    )
                    self._change_group(connection, group)
                    self._openings = self._count_opening(connection)
        except BaseException:
            self.close()
            raise

    def take(self, generations: Mapping[int, int]) -> Taken:
        """Takes partitions over from their last owners, as `SharedIndex.take`.

        Args:
            generations: The generation of each partition.

        Returns:
            The positions and rings to begin at, and the partitions of which the index has a later generation.

        Raises:
            BadPosition: The stored checkpoint is damaged.
            IndexBusy: Another program holds the store.
            RuntimeError: A single follower, or another group, has opened the index.
        """
        connection = self._usable()
        with self._begun(connection):
            self._lock(connection, self._tables.settings, "value", f"name = '{GROUP}'")
            if self._read_openings(connection) != self._openings:
                raise self._is_anothers()
            found = self._read_generations(connection, generations)
            later = {p: found[p] for p, generation in generations.items() if found.get(p, 0) > generation}
            mine = {p: generation for p, generation in generations.items() if p not in later}
            if mine:
                connection.executemany(
                    f'INSERT INTO "{self._tables.owners}" (partition, generation) VALUES (?, ?) '
                    "ON CONFLICT (partition) DO UPDATE SET generation = excluded.generation",
                    list(mine.items()),
                )
            positions = _only(super()._read_positions(connection), mine)
            rings = self._read_rings(connection, mine) if positions is not None else {}
        self._taken = {**self._taken, **mine}
        if positions is not None:
            self._stored = positions if self._stored is None else self._stored.with_positions(positions)
        return Taken(None if positions is None else Checkpoint(positions, rings), later)

    def give_back(self, generations: Mapping[int, int]) -> None:
        """Forgets that this follower owns partitions, as `SharedIndex.give_back`.

        Args:
            generations: The generation of each partition.
        """
        self._taken = {p: mine for p, mine in self._taken.items() if generations.get(p) != mine}
        self._stored = _only(self._stored, self._taken)

    def apply(self, mutations: Sequence[AppliedMutation], checkpoint: Checkpoint) -> None:
        """Stores mutations and their checkpoint in one transaction, as `Index.apply`.

        Args:
            mutations: The mutations.
            checkpoint: The new checkpoint.

        Raises:
            BadPosition: The checkpoint belongs to another feed than the index.
            IndexBusy: Another program holds the store.
            NotOwner: Another member of the group has taken partitions of this one.
            RuntimeError: Another follower has opened the index.
        """
        if self._group is not None:
            self._require(p for p in checkpoint.positions if p not in self._taken)
            if self._stored is not None:  # partitions that are missing stay as they are
                checkpoint.positions.require_feed(self._stored.cluster_id, self._stored.feed_id)
                checkpoint = Checkpoint(self._stored.with_positions(checkpoint.positions), checkpoint.rings)
        super().apply(mutations, checkpoint)

    def _keeps_prefix(self, connection: C, *, is_noted: bool) -> bool:
        if self._group is None:
            return super()._keeps_prefix(connection, is_noted=is_noted)
        return is_noted or super()._read_positions(connection) is not None

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        if self._group is None:
            with super()._transaction() as connection:
                yield connection
            return
        connection = self._usable()
        with self._begun(connection):
            if not self.compares_last:
                self._compare(connection)
            yield connection
            if self.compares_last:
                self._compare(connection)

    # The generations

    def _still_taken(self, connection: C) -> list[int]:
        """Returns the partitions that no other member has taken."""
        if not self._taken:
            return []
        found = self._read_generations(connection, self._taken)
        return [p for p, generation in self._taken.items() if found.get(p) == generation]

    def _compare(self, connection: C) -> None:
        """Raises NotOwner if another member has taken a partition of this one."""
        if self._taken:
            found = self._read_generations(connection, self._taken)
            if not found:
                raise self._is_anothers()
            self._require(p for p, generation in self._taken.items() if found.get(p) != generation)

    def _require(self, not_mine: Iterable[int]) -> None:
        if partitions := sorted(not_mine):
            raise NotOwner(
                f"partitions {', '.join(map(str, partitions))} of the index {self._place} are not this follower's in "
                f"group {self._group!r}: another member has taken them. Nothing was stored",
                partitions=partitions,
            )

    def _is_anothers(self) -> RuntimeError:
        return RuntimeError(
            f"another follower, which is not of group {self._group!r}, has opened the index {self._place}; give each "
            "one an index of its own"
        )

    def _read_generations(self, connection: C, partitions: Iterable[int]) -> dict[int, int]:
        condition, table = in_partitions(partitions), self._tables.owners
        self._lock(connection, table, "generation", condition)
        return dict(connection.execute(f'SELECT partition, generation FROM "{table}" WHERE {condition}').fetchall())

    def _read_positions(self, connection: C) -> Positions | None:
        found = super()._read_positions(connection)
        return found if self._group is None else _only(found, self._taken)

    # The settings

    def _make_or_check(self, connection: C) -> None:
        super()._make_or_check(connection)
        if self._group is None and self._read_group(connection) is not None:
            self._change_group(connection, None)

    def _read_group(self, connection: C) -> str | None:
        statement = f'SELECT value FROM "{self._tables.settings}" WHERE name = ?'
        found = connection.execute(statement, (GROUP,)).fetchone()
        return None if found is None else str(found[0])

    def _change_group(self, connection: C, group: str | None) -> None:
        """Notes whose the index is now. Members of the group before find no generation of theirs any more."""
        table = self._tables.settings
        connection.execute(f'DELETE FROM "{self._tables.owners}"')
        connection.execute(f'DELETE FROM "{table}" WHERE name = ?', (GROUP,))
        if group is not None:
            connection.execute(f'INSERT INTO "{table}" VALUES (?, ?)', (GROUP, group))


def _only(positions: Positions | None, partitions: Mapping[int, int]) -> Positions | None:
    """Returns the positions of some partitions; None if there are none."""
    kept = {} if positions is None else {p: at for p, at in positions.items() if p in partitions}
    if positions is None or not kept:
        return None
    return Positions(positions.cluster_id, positions.feed_id, kept)
