from __future__ import annotations

import base64
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from pyspark_tailrace.demo.changes import Change
from pyspark_tailrace.demo.jsonlines import SPARK_SCHEMA, encode_row, write_json_lines

some_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
some_changes = st.builds(Change, st.binary(min_size=1), st.none() | some_text.map(str.encode), st.just(1))


def numbered(count, value=b"{}"):
    return [Change(b"key %d" % number, value, number) for number in range(1, count + 1)]


def rows_of(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@given(some_changes, st.integers(1, 2**62))
def test_row_keeps_every_byte(change, order):
    line = encode_row(order, change)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    row = json.loads(line)
    assert row["order"] == order
    assert base64.b64decode(row["key"]) == change.key
    assert row["deleted"] is (change.value is None)
    assert (None if row["value"] is None else row["value"].encode()) == change.value


def test_files_hold_all_changes_in_order(tmp_path):
    written = list(write_json_lines(numbered(25), tmp_path / "new", file_rows_max=10))
    assert [file.rows for file in written] == [10, 10, 5]
    assert [file.last_order for file in written] == [10, 20, 25]
    assert [file.step for file in written] == [10, 20, 25]
    assert [file.nbytes for file in written] == [file.path.stat().st_size for file in written]
    orders = [row["order"] for file in sorted((tmp_path / "new").iterdir()) for row in rows_of(file)]
    assert orders == list(range(1, 26))


def test_files_are_bounded_in_bytes(tmp_path):
    written = list(write_json_lines(numbered(100, value=b"x" * 1000), tmp_path, file_bytes_max=10_000))
    assert len(written) > 10
    assert all(file.path.stat().st_size <= 10_000 for file in written)


def test_row_over_the_bound_has_a_file_of_its_own(tmp_path):
    changes = [Change(b"a", b"1", 1), Change(b"b", b"x" * 1000, 1), Change(b"c", b"2", 1)]
    assert [file.rows for file in write_json_lines(changes, tmp_path, file_bytes_max=500)] == [1, 1, 1]


def test_later_files_have_later_times_to_the_millisecond(tmp_path):
    written = list(write_json_lines(numbered(50), tmp_path, file_rows_max=1))
    times = [file.path.stat().st_mtime_ns // 1_000_000 for file in written]
    assert times == sorted(set(times))


def test_nothing_is_written_ahead_of_the_caller(tmp_path):
    read = []

    def changes():
        for change in numbered(10):
            read.append(change.step)
            yield change

    files = write_json_lines(changes(), tmp_path, file_rows_max=3)
    assert next(files).rows == 3
    assert read == [1, 2, 3, 4]
    assert len(os.listdir(tmp_path)) == 1
    files.close()


def test_no_changes_no_files(tmp_path):
    assert list(write_json_lines([], tmp_path)) == []
    assert os.listdir(tmp_path) == []


def test_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(*arguments, **keywords):
        raise OSError("no space left")

    monkeypatch.setattr(os, "utime", full)
    with pytest.raises(OSError, match="no space"):
        list(write_json_lines(numbered(1), tmp_path))
    assert os.listdir(tmp_path) == []


def test_folder_of_an_earlier_run_is_refused(tmp_path):
    list(write_json_lines(numbered(1), tmp_path))
    with pytest.raises(ValueError, match="files of an earlier run: give an empty folder"):
        list(write_json_lines(numbered(1), tmp_path))


def test_spark_reads_the_bytes_that_were_written(spark, tmp_path):
    changes = [
        Change(b"caf\xe9\xff\0", '{"text":"Gr\\u00fc\\n\\"ße\u2028\x85👋"}'.encode(), 1),
        Change(b"gone", None, 1),
        Change(b"empty", b"", 1),
        Change(b"large", b"x" * 1_000_000, 1),
    ]
    list(write_json_lines(changes, tmp_path, file_rows_max=3))
    (tmp_path / ".part-000009.jsonl.writing").write_text('{"order":')
    frame = spark.read.schema(SPARK_SCHEMA).json(str(tmp_path)).orderBy("order")
    rows = frame.select("order", F.unbase64("key").alias("key"), F.col("value").cast("binary"), "deleted").collect()
    assert [row.order for row in rows] == [1, 2, 3, 4]
    assert [(bytes(row.key), row.value and bytes(row.value)) for row in rows] == [
        (change.key, change.value) for change in changes
    ]
    assert [row.deleted for row in rows] == [False, True, False, False]
