from __future__ import annotations

import itertools
import math
import random
from functools import cmp_to_key

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace import ordering
from pyspark_tailrace.options import SortColumn, sink_options
from pyspark_tailrace.ordering import in_order

LEAST = {"url": "tailrace://a", "feed": "f"}

# Equal numbers among them, and the greatest, which is NaN as in Spark.
FLOATS = [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
ROW = st.tuples(
    st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"]), st.none() | st.sampled_from(FLOATS)
)
BATCHES = st.lists(st.lists(ROW, max_size=8), max_size=5)
SORT_COLUMN = st.builds(SortColumn, st.sampled_from(["n", "s", "f"]), st.booleans(), st.booleans())
ORDER = st.lists(SORT_COLUMN, min_size=1, max_size=3)


def batches_of(lists):
    """Batches with the columns n, s and f, and ``key``, the number of the row over all batches."""
    number = 0
    for rows in lists:
        keys = [b"%d" % n for n in range(number, number + len(rows))]
        number += len(rows)
        columns = {
            "n": pa.array([row[0] for row in rows], pa.int32()),
            "s": pa.array([row[1] for row in rows], pa.string()),
            "f": pa.array([row[2] for row in rows], pa.float64()),
            "key": pa.array(keys, pa.binary()),
        }
        yield pa.record_batch(columns)


def compared_as_spark_does(order_by):
    def compare(one, other):
        for name, is_descending, has_nulls_last in order_by:
            a, b = one[name], other[name]
            if a is None or b is None:
                if a is not b:
                    return 1 if (a is None) == has_nulls_last else -1
                continue
            a, b = (((x != x), 0 if x != x else x) for x in (a, b))
            if a != b:
                return 1 if (a < b) == is_descending else -1
        return 0

    return cmp_to_key(compare)


def keys_of(batches):
    return [int(key) for batch in batches for key in batch.column("key").to_pylist()]


@pytest.mark.parametrize("segment_bytes", [1, 40, ordering.SEGMENT_BYTES])
@given(lists=BATCHES, order_by=ORDER, slice_rows=st.integers(1, 9))
def test_sorted_as_spark_does_and_ties_keep_their_order(segment_bytes, lists, order_by, slice_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "SEGMENT_BYTES", segment_bytes)
        patch.setattr(ordering, "SLICE_ROWS", slice_rows)
        found = keys_of(in_order(batches_of(lists), order_by, {"key"}))
    rows = [
        {"n": n, "s": s, "f": f, "number": number}
        for number, (n, s, f) in enumerate(row for rows in lists for row in rows)
    ]
    assert found == [row["number"] for row in sorted(rows, key=compared_as_spark_does(order_by))]


@pytest.mark.parametrize("kind", ["double", "float"])
def test_numbers_are_sorted_as_spark_sorts_them(spark, kind):
    rows = [None, *FLOATS, 1.0, None, math.nan]
    frame = spark.createDataFrame([(x,) for x in rows], "f double").selectExpr(f"CAST(f AS {kind}) AS f").coalesce(1)
    batch = pa.record_batch({"f": pa.array(rows, {"double": pa.float64(), "float": pa.float32()}[kind])})
    for direction, nulls in itertools.product(["", "asc", "desc"], ["", "nulls first", "nulls last"]):
        text = f"f {direction} {nulls}"
        [part] = in_order(iter([batch]), sink_options(LEAST | {"order_by": text}).order_by, {"f"})
        of_spark = spark.sql(f"SELECT f FROM {{frame}} ORDER BY {text}", frame=frame).collect()
        assert [as_text(f) for f in part.column("f").to_pylist()] == [as_text(row.f) for row in of_spark], text


def as_text(number):
    """A number as a text in which NaN equals itself, and 0.0 is -0.0, as in Spark's order."""
    return str(0.0 if number == 0 else number)


def test_nothing():
    assert list(in_order(iter([]), [SortColumn("n")], {"key"})) == []
    assert list(in_order(batches_of([[], []]), [SortColumn("n")], {"key"})) == []


def test_only_the_columns_asked_for_come_out():
    [batch] = in_order(batches_of([[(1, "a", 1.0)]]), [SortColumn("n")], {"key", "s"})
    assert batch.schema.names == ["s", "key"]


def test_what_comes_out_is_cut_by_size(monkeypatch):
    monkeypatch.setattr(ordering, "SLICE_BYTES", 1000)
    rnd = random.Random(4700)
    sizes = [rnd.choice([0, 10, 400, 3000]) for _ in range(500)]
    batch = pa.record_batch({"t": list(range(500)), "value": [b"x" * size for size in sizes]})
    parts = in_order(iter([batch]), [SortColumn("t")], {"value"})
    found = [[len(value) for value in part.column("value").to_pylist()] for part in parts]
    assert [size for part in found for size in part] == sizes
    assert all(sum(part[:-1]) < 1000 for part in found)
    assert len(found) > 50


def test_large_rows_over_several_segments(monkeypatch):
    # Arrow's take would join all of them first, and an array of more than 2 GiB cannot be.
    monkeypatch.setattr(ordering, "SEGMENT_BYTES", 3_000_000)
    numbers = random.Random(1).sample(range(40), 40)
    batches = [
        pa.record_batch({"t": [n], "key": [b"%d" % n], "value": [bytes([n]) * 1_000_000], "deleted": [n % 2 == 0]})
        for n in numbers
    ]
    rows = []
    for part in in_order(iter(batches), [SortColumn("t", True)], {"key", "value", "deleted"}):
        rows += part.to_pylist()
    assert [int(row["key"]) for row in rows] == list(reversed(range(40)))
    assert all(row["value"] == bytes([int(row["key"])]) * 1_000_000 for row in rows)
    assert all(row["deleted"] == (int(row["key"]) % 2 == 0) for row in rows)


@pytest.fixture
def memory_pool():
    """What Arrow allocates during this test."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def test_rows_are_in_memory_once(monkeypatch, tmp_path, memory_pool):
    """Arrow reads a batch from a stream into one buffer, which lives as long as any column of it."""
    monkeypatch.setattr(ordering, "SEGMENT_BYTES", 4_000_000)
    path, total = str(tmp_path / "stream"), 100
    schema = pa.schema({"t": pa.int64(), "value": pa.binary()})
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for number in range(total):
            stream.write_batch(pa.record_batch([[number] * 10, [b"x" * 100_000] * 10], schema=schema))
    with pa.OSFile(path) as file:
        parts = in_order(iter(pa.ipc.open_stream(file)), [SortColumn("t", True)], {"value"})
        assert sum(map(len, parts)) == total * 10
    # Besides all rows, what comes out: a piece of 8 MiB, the next one, and the parts that it is made of.
    assert memory_pool.max_memory() < total * 1_000_000 + 4 * ordering.SLICE_BYTES
