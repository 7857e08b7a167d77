"""Rows a second of each index that fills itself from a feed, beside a bare loop that does the same upserts.

    python bench/indexes.py [--rows 300000] [--rounds 3] [--only SQLiteIndex]

Values are JSON of 100 bytes, keys have 16. The bare loop has all rows in memory, and gives the store the same
statements in the same transactions; it stores neither positions nor rings. Both run in turns, in one process; the node
is another one. A ratio is that of the medians. PostgresIndex takes part if TAILRACE_POSTGRES names a database, in which
it makes schemas; the processor is this process's, without that of the server. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import trio

import tailrace
from _report import Line, show
from _server import Server
from tailrace.indexes.applied import AppliedMutations

KEY_BYTES, VALUE_BYTES = 16, 100
PARTITIONS = 4
BATCH_ROWS = 10_000
RATIO_MIN = 0.7

Rows = list[AppliedMutations]


class Kind(NamedTuple):
    """An index, and the bare loop beside it: each gets an empty folder."""

    index: Callable[[Path], Any]
    bare: Callable[[Path, Rows], None]
    least: float | None = None  # rows a second of a processor
    by_clock: bool = False  # another process does most of the work, whose processor is not counted


class Taken(NamedTuple):
    """Seconds by the clock, and of this process's processor."""

    clock_s: float
    processor_s: float


@contextlib.contextmanager
def measured(found: list[Taken]) -> Iterator[None]:
    """Adds what the body takes."""
    gc.collect()
    began_at, before = time.perf_counter(), _processor_s()
    yield
    found.append(Taken(time.perf_counter() - began_at, _processor_s() - before))


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def batches(rows: list[tuple[bytes, bytes]]) -> Rows:
    """The rows as a follower would give them to an index."""
    made = []
    for start in range(0, len(rows), BATCH_ROWS):
        part = rows[start : start + BATCH_ROWS]
        keys, values = zip(*part, strict=True)
        seqs, times = list(range(start + 1, start + len(part) + 1)), [1_700_000_000_000_000 + start] * len(part)
        made.append(AppliedMutations([start // BATCH_ROWS % PARTITIONS] * len(part), keys, values, seqs, times))
    return made


def _memory(folder: Path, rows: Rows) -> None:
    state, versions = {}, {}
    for batch in rows:
        for partition, key, value, seq, timestamp in batch:
            state[key] = value
            versions[key] = (partition, seq, timestamp)


def _sqlite(folder: Path, rows: Rows) -> None:
    import sqlite3

    from tailrace.indexes.schema import Schema, first_tables

    schema = Schema("items", {}, ())
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA cache_size = -65536")
    for statement in schema.create_statements(first_tables("items")):
        connection.execute(statement)
    upsert = schema.upsert_statement()
    for batch in rows:
        connection.execute("BEGIN IMMEDIATE")
        columns = batch.keys, batch.values, batch.partitions, batch.seqs, batch.timestamps
        connection.executemany(upsert, zip(*columns, strict=True))
        connection.execute("COMMIT")
    connection.close()


def _duckdb(folder: Path, rows: Rows) -> None:
    import duckdb
    import pyarrow

    from tailrace.indexes.duckdb_index import BATCH, TYPES
    from tailrace.indexes.typed_tables import TypedTables

    schema = TypedTables("items", {}, TYPES)
    connection = duckdb.connect(str(folder / "bare.duckdb"))
    connection.execute(next(iter(schema.create_statements("bigint")))).fetchall()
    upsert = schema.upsert_statement(BATCH)
    for batch in rows:
        connection.execute("BEGIN").fetchall()
        columns = batch.keys, batch.values, batch.partitions, batch.seqs, batch.timestamps
        names = ["key", "value", "partition", "seq", "timestamp"]
        connection.register(BATCH, pyarrow.table(list(map(pyarrow.array, columns)), names=names))
        connection.execute(upsert).fetchall()
        connection.unregister(BATCH)
        connection.execute("COMMIT").fetchall()
    connection.close()


def _parquet(folder: Path, rows: Rows) -> None:
    import pyarrow
    import pyarrow.compute
    import pyarrow.parquet

    (folder / "bare").mkdir()
    names = ["key", "value", "deleted", "partition", "seq", "timestamp", "batch"]

    def write(name: str, table: Any) -> Path:
        pyarrow.parquet.write_table(table, path := folder / "bare" / name, use_dictionary=["partition", "batch"])
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return path

    written = []
    for number, batch in enumerate(rows):
        deleted = [value is None for value in batch.values]
        columns = [batch.keys, batch.values, deleted, batch.partitions, batch.seqs, batch.timestamps]
        arrays = [*map(pyarrow.array, columns), pyarrow.repeat(number, len(batch))]
        written.append(write(f"{number}.parquet", pyarrow.table(arrays, names=names).sort_by("key")))
        if len(written) == 8:  # as the index does: eight files of one size become one, with the newest row of each key
            table = pyarrow.concat_tables([pyarrow.parquet.read_table(path) for path in written])
            table = table.sort_by([("key", "ascending"), ("batch", "descending")])
            keys = table["key"].combine_chunks()
            differs = pyarrow.compute.not_equal(keys[1:], keys[:-1])
            newest = pyarrow.concat_arrays([pyarrow.array([True]), differs])
            write(f"merged-{number}.parquet", table.filter(newest))
            written = []


def _postgres(folder: Path, rows: Rows) -> None:
    import psycopg

    from tailrace.indexes.postgres import BATCH, TYPES
    from tailrace.indexes.typed_tables import TypedTables

    schema = TypedTables("items", {}, TYPES)
    with psycopg.connect(_made_schema(folder, "bare"), autocommit=True) as connection:
        connection.execute(next(iter(schema.create_statements("bigint"))))
        connection.execute("CREATE INDEX items_partition_seq ON items (partition, seq)")
        connection.execute(f"CREATE TEMPORARY TABLE {BATCH} (LIKE items) ON COMMIT DELETE ROWS")
        for batch in rows:
            columns = batch.keys, batch.values, batch.partitions, batch.seqs, batch.timestamps
            with connection.transaction(), connection.cursor() as cursor:
                with cursor.copy(f"COPY {BATCH} FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["bytea", "bytea", "int4", "int8", "int8"])
                    for row in zip(*columns, strict=True):
                        copy.write_row(row)
                cursor.execute(schema.upsert_statement(BATCH))


def _made_schema(folder: Path, name: str) -> str:
    """Makes a schema in the database of TAILRACE_POSTGRES. Returns how to connect to it."""
    import psycopg

    conninfo = os.environ["TAILRACE_POSTGRES"]
    schema = f"bench_{folder.name}_{name}".replace("-", "_").lower()
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        connection.execute(f"CREATE SCHEMA {schema}")
    return psycopg.conninfo.make_conninfo(conninfo, options=f"-csearch_path={schema}")


KINDS = {
    "DuckDBIndex": Kind(lambda folder: tailrace.indexes.DuckDBIndex(folder / "index.duckdb"), _duckdb),
    "ParquetIndex": Kind(lambda folder: tailrace.indexes.ParquetIndex(folder / "index"), _parquet),
    "MemoryIndex": Kind(lambda _: tailrace.indexes.MemoryIndex(), _memory, 1_000_000),
    "SQLiteIndex": Kind(lambda folder: tailrace.indexes.SQLiteIndex(folder / "index.db"), _sqlite),
}


async def follow(feed: Any, index: Any, rows: int, found: list[Taken]) -> None:
    """Fills the index from the feed."""
    with measured(found):
        async with feed.follow(index) as follower:
            await follower.barrier()
            assert follower.applied_rows == rows, f"{follower.applied_rows} rows were applied, not {rows}"


async def run(arguments: argparse.Namespace, folder: Path) -> list[Line]:
    """Measures each kind."""
    rnd = random.Random(1)
    rows = []
    for number in range(arguments.rows):
        text = b'{"id": %d, "city": "Rome", "text": "' % number
        rows.append((rnd.randbytes(KEY_BYTES), text + b"x" * (VALUE_BYTES - len(text) - 2) + b'"}'))
    lines = []
    with Server(folder / "data", folder / "log") as server:
        async with tailrace.connect(server.address) as client:
            feed = await client.create_feed("indexed", partitions=PARTITIONS)
            async with feed.writer() as writer:
                for key, value in rows:
                    await writer.put(key, value)
            for name, kind in KINDS.items():
                if arguments.only in ("", name):
                    lines += await _compare(name, kind, feed, rows, folder, arguments.rounds)
    return lines


async def _compare(name: str, kind: Kind, feed: Any, rows: Any, folder: Path, rounds: int) -> list[Line]:
    bare: list[Taken] = []
    followed: list[Taken] = []
    for number in range(rounds):
        (place := folder / f"{name}-{number}").mkdir()
        prepared = batches(rows)
        with measured(bare):
            kind.bare(place, prepared)
        del prepared
        await follow(feed, kind.index(place), len(rows), followed)
    bare_s = [median(taken[column] for taken in bare) for column in (0, 1)]
    index_s = [median(taken[column] for taken in followed) for column in (0, 1)]
    return [
        Line(f"{name}: rows/s, by the clock", len(rows) / index_s[0]),
        Line(f"{name}: rows/s of a processor", len(rows) / index_s[1], least=kind.least),
        Line(f"{name}: bare upserts, rows/s, by the clock", len(rows) / bare_s[0]),
        Line(f"{name}: bare upserts, rows/s of a processor", len(rows) / bare_s[1]),
        Line(
            f"{name}: to the bare upserts, by the clock",
            bare_s[0] / index_s[0],
            least=RATIO_MIN if kind.by_clock else None,
        ),
        Line(
            f"{name}: to the bare upserts, by the processor",
            bare_s[1] / index_s[1],
            least=None if kind.by_clock else RATIO_MIN,
        ),
    ]


if "TAILRACE_POSTGRES" in os.environ:
    KINDS["PostgresIndex"] = Kind(
        lambda folder: tailrace.indexes.PostgresIndex(_made_schema(folder, "index")), _postgres, by_clock=True
    )


def main() -> None:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", choices=["", *KINDS])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-indexes-") as folder:
        lines = trio.run(run, arguments, Path(folder))
    show(lines, f"indexes, {arguments.rows:,} rows, {arguments.rounds} rounds")
    sys.exit(not all(line.is_met for line in lines))


if __name__ == "__main__":
    main()
