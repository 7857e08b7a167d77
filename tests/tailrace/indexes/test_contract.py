"""The indexes keep the contract that `tailrace.testing` has for users' own."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import uuid
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace.indexes import AppliedMutation, DuckDBIndex, MemoryIndex, ParquetIndex, PostgresIndex, SQLiteIndex
from tailrace.testing import IndexContract
from tailrace.testing.index_calls import checkpoint_at, mutation
from tailrace.testing.index_model import IndexModel

KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
TEXTS = st.none() | st.sampled_from(["alpha beta", "beta gamma", "", "gamma gamma delta"])
STEPS = st.one_of(
    st.tuples(st.just("apply"), st.lists(st.tuples(KEYS, TEXTS), max_size=5)),
    st.tuples(st.just("die"), st.lists(st.tuples(KEYS, TEXTS), min_size=1, max_size=3)),
    st.tuples(st.just("late"), KEYS, TEXTS),
    st.tuples(st.just("rollback"), st.integers(0, 3)),
    st.tuples(st.just("clear"), st.integers(0, 1)),
    st.tuples(st.just("reopen")),
)


class OwnContract(IndexContract):
    """More than the contract: a key may occur twice in a batch."""

    def test_of_a_key_that_is_there_twice_the_last_counts(self, index):
        last = mutation(b"b", "put again", 4)
        batch = [mutation(b"a", "put", 1), mutation(b"b", None, 2), mutation(b"a", None, 3), last]
        index.apply(batch, checkpoint_at({0: 4}))
        self._require(index, [last])

    def test_what_is_held_above_a_rollback_has_no_seq_to_compare(self, index):
        index.apply([mutation(b"a", "lost", 60)], checkpoint_at({0: 60}))
        assert index.rollback(0, 50) is None
        again = mutation(b"a", "read again", 2)
        index.apply([again], checkpoint_at({0: 50}))
        self._require(index, [again])


class TestMemoryIndex(OwnContract):
    is_persistent = False

    def make_index(self, path):
        return MemoryIndex()

    def rows(self, index):
        assert index.state.keys() == index.versions.keys()
        assert index.snapshot() == index.state
        return index.state

    def versions(self, index):
        return {key: tuple(version) for key, version in index.versions.items()}


class TestSQLiteIndex(OwnContract):
    options: ClassVar = {}

    def make_index(self, path):
        self.path = path / "index.db"
        return SQLiteIndex(self.path, **self.options)

    def query(self, sql):
        """As another program, on a connection of its own."""
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            found = connection.execute(sql).fetchall()
            connection.commit()
            return found

    def rows(self, index):
        return dict(self.query("SELECT key, value FROM items"))

    def versions(self, index):
        return {row[0]: row[1:] for row in self.query("SELECT key, partition, seq, timestamp FROM items")}

    def check(self, index):
        assert self.query("PRAGMA integrity_check") == [("ok",)]


class TestSQLiteIndexWithFullText(TestSQLiteIndex):
    options: ClassVar = {"columns": {"title": "$.title", "text": "$.text"}, "full_text": ["text", "title"]}

    def check(self, index):
        super().check(index)
        self.query("INSERT INTO items_fts (items_fts, rank) VALUES ('integrity-check', 1)")


@pytest.mark.slow  # the same statements as above, with other names
class TestSQLiteIndexBesideAnother(TestSQLiteIndex):
    """The second index of a file, as one of a second feed."""

    def make_index(self, path):
        other = SQLiteIndex(path / "index.db", table="{feed}").of_feed("orders")
        with contextlib.closing(other):
            other.open()
            other.apply([mutation(b"a", "of another feed", 7)], checkpoint_at({0: 7}, feed=b"o" * 16))
        self.path = path / "index.db"
        return SQLiteIndex(self.path, table="{feed}").of_feed("items")

    def check(self, index):
        super().check(index)
        assert self.query("SELECT key, seq FROM orders") == [(b"a", 7)]


@pytest.mark.slow  # DuckDB has threads
class TestDuckDBIndex(OwnContract):
    options: ClassVar = {}

    def make_index(self, path):
        return DuckDBIndex(path / "index.duckdb", **self.options)

    def rows(self, index):
        return dict(index.cursor().execute("SELECT key, value FROM items").fetchall())

    def versions(self, index):
        found = index.cursor().execute("SELECT key, partition, seq, timestamp FROM items").fetchall()
        return {row[0]: row[1:] for row in found}


@pytest.mark.slow
class TestDuckDBIndexWithColumns(TestDuckDBIndex):
    options: ClassVar = {"columns": {"title": "$.title", "document": ("$", "json")}, "table": "items"}

    def check(self, index):
        found = index.cursor().execute("SELECT key, title FROM items").fetchall()
        assert all(key.decode() == title for key, title in found)


@pytest.mark.slow  # pyarrow has threads
class TestParquetIndex(OwnContract):
    options: ClassVar = {"columns": {"title": "$.title"}}

    def make_index(self, path):
        return ParquetIndex(path / "index", **self.options)

    def rows(self, index):
        table = index.read()
        assert [key.decode() for key in table["key"].to_pylist()] == table["title"].to_pylist()
        return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))

    def versions(self, index):
        table = index.read(["key", "partition", "seq", "timestamp"])
        microseconds = table["timestamp"].cast("int64").to_pylist()
        columns = [table[name].to_pylist() for name in ("key", "partition", "seq")]
        return {row[0]: row[1:] for row in zip(*columns, microseconds, strict=True)}

    def check(self, index):
        before = self.versions(index)
        index.compact()
        assert self.versions(index).keys() == before.keys()


class TestPostgresIndex(OwnContract):
    @pytest.fixture(autouse=True)
    def _connection(self, postgres):
        import psycopg

        self.conninfo = postgres.conninfo
        self.schema = f"s{uuid.uuid4().hex}"
        with psycopg.connect(self.conninfo, autocommit=True) as self.connection:
            self.connection.execute(f"CREATE SCHEMA {self.schema}")
            self.connection.execute(f"SET search_path = {self.schema}")
            yield

    def make_index(self, path):
        return PostgresIndex(self.conninfo, schema=self.schema)

    def rows(self, index):
        return dict(self.connection.execute("SELECT key, value FROM items").fetchall())

    def versions(self, index):
        found = self.connection.execute("SELECT key, partition, seq, timestamp FROM items").fetchall()
        return {row[0]: row[1:] for row in found}


def test_a_mutation_names_its_fields():
    assert AppliedMutation._fields == ("partition", "key", "value", "seq", "timestamp")


@pytest.mark.parametrize("contract", [TestMemoryIndex(), TestSQLiteIndex(), TestSQLiteIndexWithFullText()])
@settings(max_examples=examples(40))
@given(steps=st.lists(STEPS, max_size=15))
def test_any_steps_leave_what_a_dict_would_hold(contract, steps):
    with tempfile.TemporaryDirectory() as folder:
        index = contract.make_index(Path(folder))
        with contextlib.closing(index):
            index.open()
            IndexModel(index, contract._require).take(steps)
            contract.check(index)
