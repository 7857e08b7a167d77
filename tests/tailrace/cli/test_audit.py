"""``tailrace audit``: an index that is right, indexes that are not, and places without one."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest
import trio
from tests.tailrace.indexes.postgres_server import postgres_server

import tailrace
from tailrace.indexes import DuckDBIndex, ParquetIndex, PostgresIndex, SQLiteIndex
from tailrace.model.failover import FailoverLog

ROWS = [(b"a/%d" % number, b"v%d" % number) for number in range(30)]


@pytest.fixture(scope="session")
def postgres():
    with postgres_server() as server:
        yield server


@pytest.fixture
def fill(served_url, made_feed):
    """A function that fills an index from ``made_feed``."""

    def fill(index, **options):
        async def follow():
            async with (
                tailrace.connect(served_url) as client,
                client.feed(made_feed).follow(index, **options) as follower,
            ):
                await follower.barrier()

        trio.run(follow)

    return fill


@pytest.fixture
def filled(tmp_path, write, fill, made_feed):
    """The path of an index in SQLite that has the feed."""
    write(*ROWS, (b"a/3", None))
    fill(SQLiteIndex(tmp_path / "index.db"))
    return tmp_path / "index.db"


def change(path, sql, *arguments):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(sql, arguments)
        connection.commit()


def by_partition(done):
    return [json.loads(line) for line in done.out.splitlines()]


def test_an_index_that_is_right(call, made_feed, filled, write):
    done = call("audit", made_feed, filled)
    assert (done.code, done.err) == (0, "")
    assert b"they are equal" in done.out
    write((b"a/1", b"later"), (b"a/2", None), (b"new", b"x"))
    found = by_partition(call("audit", made_feed, filled, "--json"))
    assert [one["equal"] for one in found] == [True, True]
    assert sum(one["changed_since"] for one in found) == 3
    assert sum(one["rows"] for one in found) == len(ROWS) - 3
    assert all(one["feed_checksum"] == one["index_checksum"] for one in found)


def test_each_kind_of_difference(call, made_feed, filled):
    change(filled, "DELETE FROM items WHERE key = ?", b"a/1")
    change(filled, "UPDATE items SET value = ? WHERE key = ?", b"other", b"a/2")
    change(filled, "INSERT INTO items VALUES (?, ?, 0, 1, 1)", b"a/\xff", b"x")
    done = call("audit", made_feed, filled)
    assert done.code == 1
    for line in ("a/1: the index does not have it", "a/2: the values differ", r"a/\xff: the feed does not have it"):
        assert line in done.out.decode()
    assert b"3 keys differ" in done.out
    found = by_partition(call("audit", made_feed, filled, "--json", "--keys", "0"))
    assert sum(one["differing"] for one in found) == 3
    assert all(not one["keys"] for one in found)


def test_a_partition_that_the_index_has_not_begun(call, made_feed, filled):
    change(filled, "DELETE FROM tailrace_checkpoint WHERE partition = 1")
    found = by_partition(call("audit", made_feed, filled, "--json"))
    assert [one["equal"] for one in found] == [True, False]
    assert {key["why"] for key in found[1]["keys"]} <= {"extra"}


def test_other_kinds_and_prefixes(call, made_feed, write, fill, tmp_path, postgres):
    write(*ROWS, (b"b/1", b"x"))
    kinds = {
        str(tmp_path / "index.duckdb"): DuckDBIndex(tmp_path / "index.duckdb", columns={"x": "$.x"}),
        str(tmp_path / "parquet"): ParquetIndex(tmp_path / "parquet", columns={"x": "$.x"}),
        f"postgresql://{postgres.user}@/postgres?host={postgres.folder}": PostgresIndex(postgres.conninfo),
    }
    for place, index in kinds.items():
        fill(index, key_prefix=b"a/")
        done = call("audit", made_feed, place, "--json")
        assert (done.code, done.err) == (0, ""), place
        assert sum(one["rows"] for one in by_partition(done)) == len(ROWS)


def test_an_index_of_another_history_has_to_follow_first(call, made_feed, filled):
    other = tailrace.Position.at(FailoverLog([(b"x" * 16, 1, 0)]), 99)
    with contextlib.closing(SQLiteIndex(filled)) as index:
        positions = index.open().positions
    with contextlib.closing(sqlite3.connect(filled)) as connection:
        strange = tailrace.Positions(positions.cluster_id, positions.feed_id, {0: other})
        connection.execute("UPDATE tailrace_checkpoint SET position = ? WHERE partition = 0", (str(strange),))
        connection.commit()
    done = call("audit", made_feed, filled)
    assert done.code == 1
    assert "Let the index follow the feed first" in done.err


@pytest.mark.parametrize(
    ("name", "content", "code", "says"),
    [
        ("missing", None, 2, "there is no index at"),
        ("text", b"some text that is no database", 2, "is no file of SQLite or DuckDB"),
        ("folder", "folder", 2, "without an index of Tailrace"),
        ("other.db", "sqlite", 2, "no index of Tailrace is in it"),
        ("empty.db", "index", 1, "the index holds nothing yet"),
    ],
)
def test_places_without_an_index(call, made_feed, tmp_path, name, content, code, says):
    path = tmp_path / name
    if content == "folder":
        path.mkdir()
    elif content == "sqlite":
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE items (a)")
    elif content == "index":
        with contextlib.closing(SQLiteIndex(path)) as index:
            index.open()
    elif content:
        path.write_bytes(content)
    done = call("audit", made_feed, path)
    assert (done.code, done.out) == (code, b"")
    assert says in done.err
