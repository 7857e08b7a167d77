"""Indexes whose columns come from values that are not JSON."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3

import pytest

from tailrace import AvroSerializer, JSONSerializer, MsgPackSerializer
from tailrace.indexes import AppliedMutation, DuckDBIndex, ParquetIndex, SQLiteIndex
from tailrace.testing.index_calls import checkpoint_at

pytestmark = pytest.mark.slow  # DuckDB and pyarrow have threads

FIELDS = [{"name": "city", "type": "string"}, {"name": "on", "type": {"type": "int", "logicalType": "date"}}]
ORDERS = AvroSerializer({"type": "record", "name": "order", "fields": FIELDS})
VALUE = {"city": "Ulm", "on": datetime.date(2026, 1, 2)}
COLUMNS = {"city": "$.city", "day": "$.on"}


def made(kind, path, **options):
    return {"sqlite": SQLiteIndex, "duckdb": DuckDBIndex, "parquet": ParquetIndex}[kind](path / kind, **options)


def columns_of(kind, index):
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(index.path)) as connection:
            return connection.execute("SELECT city, day FROM items").fetchall()
    if kind == "duckdb":
        return index.cursor().execute("SELECT city, day FROM items").fetchall()
    return [tuple(row.values()) for row in index.read(["city", "day"]).to_pylist()]


@pytest.mark.parametrize("kind", ["sqlite", "duckdb", "parquet"])
class TestTypedValues:
    def test_columns_come_from_the_value(self, kind, tmp_path):
        index = made(kind, tmp_path, columns=COLUMNS, serializer=ORDERS)
        with contextlib.closing(index):
            index.open()
            index.apply([AppliedMutation(0, b"a", ORDERS.dumps(VALUE), 1, 1)], checkpoint_at({0: 1}))
            assert columns_of(kind, index) == [("Ulm", "2026-01-02")]
            index.apply([AppliedMutation(0, b"a", None, 2, 2)], checkpoint_at({0: 2}))
            assert columns_of(kind, index) == []

    def test_a_value_that_is_none_is_a_bad_row(self, kind, tmp_path):
        index = made(kind, tmp_path, columns=COLUMNS, serializer=MsgPackSerializer())
        with contextlib.closing(index):
            index.open()
            with pytest.raises(ValueError, match="is not MessagePack"):
                index.apply([AppliedMutation(0, b"a", b"\xc1", 1, 1)], checkpoint_at({0: 1}))
            assert columns_of(kind, index) == []

    def test_an_index_keeps_its_serializer(self, kind, tmp_path):
        with contextlib.closing(made(kind, tmp_path, columns=COLUMNS, serializer=ORDERS)) as index:
            index.open()
        for other in (None, JSONSerializer()):
            with pytest.raises(ValueError, match="was made with serializer = avro-"):
                made(kind, tmp_path, columns=COLUMNS, serializer=other).open()
