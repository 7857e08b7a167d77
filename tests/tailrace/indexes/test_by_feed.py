"""Several feeds into one index: a table for each, or a directory."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from tailrace.consuming.ring import RingChange
from tailrace.errors import BadPosition
from tailrace.indexes import MemoryIndex, ParquetIndex, SQLiteIndex
from tailrace.indexes.audited import audited
from tailrace.indexes.by_feed import table_of
from tailrace.indexes.checkpoint import Checkpoint
from tailrace.indexes.follower_core import FollowerCore, FollowOptions
from tailrace.indexes.schema import first_tables, further_tables
from tailrace.testing.index_calls import checkpoint_at, chunk, mutation, ring_of


@pytest.fixture(params=["sqlite", "duckdb", "parquet", "postgres"])
def by_feed(request, tmp_path):
    """Returns an index for several feeds, and how it is made again."""
    if request.param == "sqlite":
        return lambda: SQLiteIndex(tmp_path / "shop.db", table="{feed}")
    if request.param == "parquet":
        return lambda: ParquetIndex(tmp_path / "feed={feed}")
    if request.param == "duckdb":
        from tailrace.indexes import DuckDBIndex

        return lambda: DuckDBIndex(tmp_path / "shop.duckdb", table="{feed}")
    import uuid

    import psycopg

    from tailrace.indexes import PostgresIndex

    conninfo, schema = request.getfixturevalue("postgres").conninfo, f"s{uuid.uuid4().hex}"
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    return lambda: PostgresIndex(conninfo, table="{feed}", schema=schema)


OF_EU, OF_US = b"e" * 16, b"u" * 16


@pytest.mark.slow
def test_feeds_have_rows_positions_and_rings_of_their_own(by_feed):
    index = by_feed()
    eu, us = index.of_feed("eu"), index.of_feed("us-1")
    assert index.of_feed("eu") is eu
    with contextlib.closing(eu), contextlib.closing(us):
        assert eu.open() is None
        assert us.open() is None
        eu.apply([mutation(b"a", "of eu", 5), mutation(b"b", "of eu", 6)], checkpoint_at({0: 6}, feed=OF_EU))
        us.apply([mutation(b"a", "of us", 9)], checkpoint_at({0: 9, 1: 2}, feed=OF_US))
        eu.rollback(0, 5)
        us.clear(1)
        eu.apply([mutation(b"b", None, 3)], checkpoint_at({0: 5}, feed=OF_EU))
    again = by_feed()
    eu, us = again.of_feed("eu"), again.of_feed("us-1")
    with contextlib.closing(eu), contextlib.closing(us):
        assert eu.open() == checkpoint_at({0: 5}, feed=OF_EU)
        assert us.open() == checkpoint_at({0: 9}, feed=OF_US)
        eu.clear(0)
        us.apply([mutation(b"a", "of us", 10)], checkpoint_at({0: 10}, feed=OF_US))
        assert us.open() == checkpoint_at({0: 10}, feed=OF_US)


@pytest.mark.slow
def test_an_audit_finds_the_table_of_the_feed(by_feed):
    index, feeds = by_feed(), (("eu", OF_EU), ("us-1", OF_US))
    for feed, id in feeds:
        with contextlib.closing(index.of_feed(feed)) as of_feed:
            of_feed.open()
            of_feed.apply([mutation(b"a", feed, 5)], checkpoint_at({0: 5}, feed=id))
    for feed, id in feeds:
        with audited(place_of(index.of_feed(feed)), feed=feed) as found:
            assert found.positions == checkpoint_at({0: 5}, feed=id).positions
            assert [key for key, _ in found.rows(0)] == [b"a"]
    if not isinstance(index, ParquetIndex):
        with (
            pytest.raises(ValueError, match=r"'asia' or 'items'.*: name .* by --table"),
            audited(place_of(index.of_feed("eu")), feed="asia"),
        ):
            pass


def place_of(index):
    """Returns the path of an index, or the URL of its schema."""
    if hasattr(index, "path"):
        return str(index.path)
    from psycopg.conninfo import conninfo_to_dict

    at = conninfo_to_dict(index._conninfo)
    return f"postgresql://{at['user']}@/{at['dbname']}?host={at['host']}&options=-csearch_path%3D{index._schema_name}"


@pytest.mark.slow
def test_the_index_of_all_feeds_cannot_be_opened_itself(by_feed):
    with pytest.raises(ValueError, match=r"one for each feed: follow it by feed\.follow, or take the one of a feed by"):
        by_feed().open()


@pytest.mark.slow  # pyarrow, DuckDB and Polars have threads
def test_readers_of_parquet_see_the_name_of_the_feed(tmp_path):
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    index = ParquetIndex(tmp_path / "feed={feed}")
    for feed, id in (("eu", OF_EU), ("us-1", OF_US)):
        with contextlib.closing(index.of_feed(feed)) as of_feed:
            of_feed.open()
            of_feed.apply([mutation(b"a", "old", 1), mutation(b"b", "gone", 2)], checkpoint_at({0: 2}, feed=id))
            of_feed.apply([mutation(b"a", feed, 3), mutation(b"b", None, 4)], checkpoint_at({0: 4}, feed=id))
    newest = f"FROM '{tmp_path}/*/*.parquet' QUALIFY row_number() OVER (PARTITION BY feed, key ORDER BY batch DESC) = 1"
    rows = duckdb.sql(f"SELECT feed, key, seq FROM ({newest}) WHERE NOT deleted ORDER BY feed").fetchall()
    frame = (
        polars.scan_parquet(f"{tmp_path}/*/*.parquet", hive_partitioning=True)
        .sort("batch")
        .unique(["feed", "key"], keep="last")
        .filter(~polars.col("deleted"))
        .sort("feed")
        .select("feed", "key", "seq")
    )
    assert frame.collect().rows() == rows == [("eu", b"a", 3), ("us-1", b"a", 3)]


def test_a_follower_takes_the_index_of_its_feed(tmp_path):
    index = SQLiteIndex(tmp_path / "shop.db", table="{feed}")
    eu, us = (FollowerCore(name, index, FollowOptions()) for name in ("eu", "us"))
    assert (eu.index, us.index) == (index.of_feed("eu"), index.of_feed("us"))
    eu.claim()
    us.claim()
    with pytest.raises(ValueError, match="is followed already"):
        FollowerCore("eu", index, FollowOptions()).claim()
    eu.release()
    us.release()
    memory = MemoryIndex()
    assert FollowerCore("eu", memory, FollowOptions()).index is memory


@pytest.mark.parametrize(
    ("pattern", "feed", "table"),
    [
        ("{feed}", "orders", "orders"),
        ("{feed}", "orders-eu.v2", "orders_eu_v2"),
        ("{feed}", "2024", "_2024"),
        ("of_{feed}", "2024", "of_2024"),
        ("items", "orders", "items"),
    ],
)
def test_names_of_tables(pattern, feed, table):
    assert table_of(pattern, feed) == table


def test_two_feeds_of_one_table_are_refused(tmp_path):
    index = SQLiteIndex(tmp_path / "shop.db", table="{feed}")
    first, second = index.of_feed("a-b"), index.of_feed("a.b")
    with contextlib.closing(first):
        first.open()
        first.apply([mutation(b"k", "1", 1)], checkpoint_at({0: 1}, feed=OF_EU))
    with contextlib.closing(second):
        assert second.open() == checkpoint_at({0: 1}, feed=OF_EU)
        with pytest.raises(BadPosition, match="another feed"):
            second.apply([mutation(b"k", "2", 1)], checkpoint_at({0: 1}, feed=OF_US))


def test_indexes_of_one_sqlite_file_may_have_other_columns(tmp_path):
    path = tmp_path / "shop.db"
    orders = SQLiteIndex(path, table="orders", columns={"title": "$.title"}, full_text=["title"])
    people = SQLiteIndex(path, table="people", columns={"text": "$.text"})
    for index, feed in ((orders, OF_EU), (people, OF_US), (orders, OF_EU)):
        with contextlib.closing(index):
            index.open()
            index.apply([mutation(b"a", "one", 1)], checkpoint_at({0: 1}, feed=feed))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        joined = connection.execute("SELECT title, text FROM orders JOIN people USING (key)").fetchall()
    assert joined == [("a", "one")]
    for table, feed in (("orders", OF_EU), ("people", OF_US)):
        with audited(str(path), table) as found:
            assert found.positions == checkpoint_at({0: 1}, feed=feed).positions
            assert [key for key, _ in found.rows(0)] == [b"a"]
    with (
        pytest.raises(ValueError, match=r"has the indexes \['orders', 'people'\], and none of them is 'items'"),
        audited(str(path)),
    ):
        pass


def test_a_table_that_is_named_has_to_be_there(tmp_path):
    """Another one than was asked for would pass for it."""
    path = tmp_path / "shop.db"
    with contextlib.closing(SQLiteIndex(path, table="orders")) as index:
        index.open()
        index.apply([mutation(b"a", "one", 1)], checkpoint_at({0: 1}))
    with audited(str(path)) as found:
        assert found.partitions() == [0]
    with (
        pytest.raises(ValueError, match=r"has the indexes \['orders'\], and none of them is 'order'"),
        audited(str(path), "order"),
    ):
        pass


@pytest.mark.parametrize("other", ["floor", "floor_items", "by_seq", "ring", "index", "owners"])
def test_no_table_of_an_index_is_one_of_another(tmp_path, other):
    path = tmp_path / "shop.db"
    names = [name for table in ("items", other) for name in further_tables(table)]
    names += [*first_tables("items")[1:], *(further_tables(table).owners for table in ("items", other))]
    assert len(set(names)) == len(names)
    for table in ("items", other, "items", other):
        with contextlib.closing(SQLiteIndex(path, table=table)) as index:
            before = index.open()
            assert before is None or ring_of(before) == (0, [(1, table.encode())])
            change = RingChange(0, None, () if before else (chunk((1, table.encode())),))
            index.apply([], Checkpoint(checkpoint_at({0: 1}).positions, {0: change}))


def test_a_table_whose_ring_would_be_another_ones_floors_is_refused(tmp_path):
    from tailrace.indexes import DuckDBIndex

    with pytest.raises(ValueError, match="its ring would have the name of the floors of another index"):
        DuckDBIndex(tmp_path / "shop.duckdb", table="floor_items")


def test_a_table_of_another_program_is_refused_beside_an_index(tmp_path):
    path = tmp_path / "shop.db"
    with contextlib.closing(SQLiteIndex(path, table="orders")) as index:
        index.open()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE people (name TEXT)")
    with pytest.raises(ValueError, match="no index of Tailrace made it"):
        SQLiteIndex(path, table="people").open()
