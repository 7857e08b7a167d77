"""The rings of recent keys in the file of an SQLite index: rows of chunks, changed in the follower's transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.indexes.schema import RING_FLOOR_TABLE, RING_TABLE
from tailrace.ring import RingChange, RingChunk

if TYPE_CHECKING:
    import sqlite3


def change_ring(connection: sqlite3.Connection, partition: int, change: RingChange) -> None:
    """Makes ``change`` in the ring of ``partition``."""
    floor_seq, cut_seq, chunks = change
    if cut_seq is not None:
        _cut_above(connection, partition, cut_seq)
    for chunk in chunks:
        _add(connection, partition, chunk)
    connection.execute(
        f"INSERT INTO {RING_FLOOR_TABLE} (partition, floor_seq) VALUES (?, ?) "
        "ON CONFLICT (partition) DO UPDATE SET floor_seq = max(floor_seq, excluded.floor_seq)",
        (partition, floor_seq),
    )
    connection.execute(f"DELETE FROM {RING_TABLE} WHERE partition = ? AND last_seq <= ?", (partition, floor_seq))


def _add(connection: sqlite3.Connection, partition: int, chunk: RingChunk) -> None:
    connection.execute(
        f"INSERT INTO {RING_TABLE} (partition, last_seq, entries) VALUES (?, ?, ?)",
        (partition, chunk.last_seq, chunk.data),
    )


def _cut_above(connection: sqlite3.Connection, partition: int, seq: int) -> None:
    above = connection.execute(
        f"SELECT number, entries FROM {RING_TABLE} WHERE partition = ? AND last_seq > ? ORDER BY number",
        (partition, seq),
    ).fetchall()
    for number, entries in above:
        kept = RingChunk.parse(entries).cut_above(seq)
        if kept is None:
            connection.execute(f"DELETE FROM {RING_TABLE} WHERE number = ?", (number,))
        else:
            connection.execute(
                f"UPDATE {RING_TABLE} SET last_seq = ?, entries = ? WHERE number = ?",
                (kept.last_seq, kept.data, number),
            )


def forget_ring(connection: sqlite3.Connection, partition: int) -> None:
    """The partition has no ring any more."""
    for table in (RING_TABLE, RING_FLOOR_TABLE):
        connection.execute(f"DELETE FROM {table} WHERE partition = ?", (partition,))


def read_rings(connection: sqlite3.Connection) -> dict[int, RingChange]:
    """The rings that are there, whole. ValueError where an entry cannot be read."""
    chunks: dict[int, list[RingChunk]] = {}
    for partition, entries in connection.execute(f"SELECT partition, entries FROM {RING_TABLE} ORDER BY number"):
        try:
            chunks.setdefault(partition, []).append(RingChunk.parse(entries))
        except (ValueError, TypeError) as error:
            raise ValueError(f"the ring of partition {partition} cannot be used ({error})") from None
    floors = connection.execute(f"SELECT partition, floor_seq FROM {RING_FLOOR_TABLE}").fetchall()
    return {partition: RingChange(floor, None, tuple(chunks.get(partition, ()))) for partition, floor in floors}
