"""The full text of an SQLite index: an FTS5 table that takes its columns from the index's own table.

FTS5 keeps no copy of a text, so it needs the old text to delete it. With triggers it would write to the file after
every row. With statements of its own and rising row numbers it gathers changes in memory, and takes 2 to 2.8 times as
many rows a second. Rule: the old text is deleted before its row changes, and the new text is added after that, in the
same transaction.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

Row = tuple[Any, ...]  # (key, value, partition, seq, timestamp, *columns), as the table has it
Tombstone = tuple[bytes, int, int]  # (key, partition, seq)


class FullText:
    """Keeps the FTS5 table ``name`` level with ``table``. ``indexes`` are the places of its columns in a `Row`."""

    def __init__(self, name: str, table: str, columns: Sequence[str], indexes: Sequence[int]) -> None:
        listed = ", ".join(f'"{column}"' for column in columns)
        marks = ", ".join("?" * len(columns))
        self._indexes = tuple(indexes)
        self.create_statement = f'CREATE VIRTUAL TABLE "{name}" USING fts5({listed}, content="{table}")'
        self._find = f'SELECT rowid, partition, seq FROM "{table}" WHERE key = ?'
        self._read = f'SELECT {listed} FROM "{table}" WHERE rowid = ?'
        self._forget = f'INSERT INTO "{name}" ("{name}", rowid, {listed}) VALUES (\'delete\', ?, {marks})'
        self._learn = f'INSERT INTO "{name}" (rowid, {listed}) VALUES (?, {marks})'
        self._forget_partition = (
            f'INSERT INTO "{name}" ("{name}", rowid, {listed}) '
            f"SELECT 'delete', rowid, {listed} FROM \"{table}\" WHERE partition = ? ORDER BY rowid"
        )

    @contextlib.contextmanager
    def following(
        self, connection: sqlite3.Connection, upserts: Sequence[Row], deletions: Sequence[Tombstone]
    ) -> Iterator[None]:
        """Around the statements that store these rows, in which no key is there twice.

        Rows that are older than the table's are passed over here as they are there.
        """
        known: list[tuple[int, Row | None]] = []  # (row number, new row; None: it is deleted)
        new: list[Row] = []
        for key, partition, seq in deletions:
            found = connection.execute(self._find, (key,)).fetchone()
            if found is not None and not _is_newer(found, partition, seq):
                known.append((found[0], None))
        for row in upserts:
            found = connection.execute(self._find, row[:1]).fetchone()
            if found is None:
                new.append(row)
            elif not _is_newer(found, row[2], row[3]):
                known.append((found[0], row))
        known.sort(key=lambda numbered: numbered[0])
        changed: list[Row] = []
        connection.executemany(self._forget, self._outdated(connection, known, changed))
        yield
        connection.executemany(self._learn, changed)
        connection.executemany(self._learn, self._added(connection, new))

    def forget_partition(self, connection: sqlite3.Connection, partition: int) -> None:
        """Before the rows of ``partition`` are deleted."""
        connection.execute(self._forget_partition, (partition,))

    def _outdated(
        self, connection: sqlite3.Connection, known: list[tuple[int, Row | None]], changed: list[Row]
    ) -> Iterator[Row]:
        """(row number, *old texts) of the rows whose text changes or goes; fills ``changed`` with the new ones."""
        for number, row in known:
            old = connection.execute(self._read, (number,)).fetchone()
            if row is None:
                yield (number, *old)
                continue
            texts = self._texts(row)
            if not _same(old, texts):
                changed.append((number, *texts))
                yield (number, *old)

    def _added(self, connection: sqlite3.Connection, new: list[Row]) -> Iterator[Row]:
        for row in new:
            number, _, _ = connection.execute(self._find, row[:1]).fetchone()
            yield (number, *self._texts(row))

    def _texts(self, row: Row) -> Row:
        return tuple([row[index] for index in self._indexes])


def _is_newer(found: tuple[int, int, int], partition: int, seq: int) -> bool:
    _, held_partition, held_seq = found
    return held_partition == partition and held_seq > seq


def _same(old: Row, new: Row) -> bool:
    """Returns whether FTS5 sees the same texts. 1 and 1.0 are equal, and are not the same text."""
    return all(type(a) is type(b) and a == b for a, b in zip(old, new, strict=True))
