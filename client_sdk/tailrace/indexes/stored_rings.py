"""The rings of recent keys in tables of an index: rows of chunks, changed in the follower's transactions."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.consuming.ring import SMALL_ROWS, RingChange, RingChunk, merged

if TYPE_CHECKING:
    from collections.abc import Iterable

# This number of small chunks of a partition become one. A follower of single writes stores a chunk for each write, and
# the next `open` reads them all.
MERGED_CHUNKS = 64


class Statements(Protocol):
    """A connection, or what stands for it. Parameters are marked by ``?``."""

    def execute(self, statement: str, parameters: Any = ..., /) -> Any: ...
    def executemany(self, statement: str, rows: Any, /) -> Any: ...


class StoredRings:
    """The rings of one index. Every call is within a transaction of the caller's."""

    def __init__(self, connection: Statements, ring: str, ring_floor: str) -> None:
        """Takes the names of the tables of the chunks and of the floors."""
        self._connection = connection
        self._ring = f'"{ring}"'
        self._ring_floor = f'"{ring_floor}"'
        self._small: collections.Counter[int] = collections.Counter()  # chunks that were added last, by partition

    def change(self, partition: int, change: RingChange) -> None:
        """Applies ``change`` to the stored ring of ``partition``."""
        floor_seq, cut_seq, chunks = change
        connection = self._connection
        if cut_seq is not None:
            self._cut_above(partition, cut_seq)
        for chunk in chunks:
            self._add(partition, chunk)
        connection.execute(
            f"INSERT INTO {self._ring_floor} (partition, floor_seq) VALUES (?, ?) "
            f"ON CONFLICT (partition) DO UPDATE SET floor_seq = excluded.floor_seq "
            f"WHERE excluded.floor_seq > {self._ring_floor}.floor_seq",
            (partition, floor_seq),
        )
        connection.execute(f"DELETE FROM {self._ring} WHERE partition = ? AND last_seq <= ?", (partition, floor_seq))

    def _add(self, partition: int, chunk: RingChunk) -> None:
        self._connection.execute(
            f"INSERT INTO {self._ring} (partition, last_seq, entries) VALUES (?, ?, ?)",
            (partition, chunk.last_seq, chunk.data),
        )
        self._small[partition] = self._small[partition] + 1 if chunk.rows < SMALL_ROWS else 0
        if self._small[partition] == MERGED_CHUNKS:
            self._small[partition] = 0
            self._merge_last(partition)

    def _merge_last(self, partition: int) -> None:
        last = self._connection.execute(
            f"SELECT number, entries FROM {self._ring} WHERE partition = ? ORDER BY number DESC LIMIT ?",
            (partition, MERGED_CHUNKS),
        ).fetchall()
        self._connection.executemany(f"DELETE FROM {self._ring} WHERE number = ?", [(number,) for number, _ in last])
        self._add(partition, merged([RingChunk.parse(entries) for _, entries in last]))

    def _cut_above(self, partition: int, seq: int) -> None:
        above = self._connection.execute(
            f"SELECT number, entries FROM {self._ring} WHERE partition = ? AND last_seq > ? ORDER BY number",
            (partition, seq),
        ).fetchall()
        for number, entries in above:
            kept = RingChunk.parse(entries).cut_above(seq)
            if kept is None:
                self._connection.execute(f"DELETE FROM {self._ring} WHERE number = ?", (number,))
            else:
                self._connection.execute(
                    f"UPDATE {self._ring} SET last_seq = ?, entries = ? WHERE number = ?",
                    (kept.last_seq, kept.data, number),
                )

    def forget(self, partition: int) -> None:
        """Deletes the ring of ``partition``."""
        for table in (self._ring, self._ring_floor):
            self._connection.execute(f"DELETE FROM {table} WHERE partition = ?", (partition,))

    def read(self, partitions: Iterable[int] | None = None) -> dict[int, RingChange]:
        """Returns the rings of some partitions, or of all, whole. ValueError if an entry cannot be read."""
        only = "" if partitions is None else f"WHERE {in_partitions(partitions)} "
        chunks: dict[int, list[RingChunk]] = {}
        rows = self._connection.execute(f"SELECT partition, entries FROM {self._ring} {only}ORDER BY number")
        for partition, entries in rows.fetchall():
            try:
                chunks.setdefault(partition, []).append(RingChunk.parse(entries))
            except (ValueError, TypeError) as error:
                raise ValueError(f"the ring of partition {partition} cannot be read ({error})") from None
        floors = self._connection.execute(f"SELECT partition, floor_seq FROM {self._ring_floor} {only}").fetchall()
        return {partition: RingChange(floor, None, tuple(chunks.get(partition, ()))) for partition, floor in floors}


def in_partitions(partitions: Iterable[int]) -> str:
    """Returns the condition that a row is of one of these partitions, at least one."""
    return f"partition IN ({', '.join(map(str, sorted(partitions)))})"
