from __future__ import annotations

import datetime
import decimal
import json
import math

import pyarrow as pa
import pyspark.sql.types as spark
import pytest

from pyspark_tailrace.values import check_json_type, json_values

UTC = datetime.UTC
TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([1, None], pa.int64()), {"c": 1}),
        (pa.array(['ü"\n', None]), {"c": 'ü"\n'}),
        (pa.array([True, None]), {"c": True}),
        (pa.array([1.5, None]), {"c": 1.5}),
        (pa.array([0.1, None], pa.float32()), {"c": 0.1}),
        (pa.array([[0.1], None], pa.list_(pa.float32())), {"c": [0.1]}),
        (pa.array([math.inf, None], pa.float32()), {"c": "Infinity"}),
        (pa.array([math.nan, None]), {"c": "NaN"}),
        (pa.array([-math.inf, None]), {"c": "-Infinity"}),
        (pa.array([b"\xff\0", None]), {"c": "/wA="}),
        (pa.array([decimal.Decimal("1.10"), None]), {"c": "1.10"}),
        (pa.array([datetime.date(2026, 1, 2), None]), {"c": "2026-01-02"}),
        (pa.array([TIME, None], pa.timestamp("us", "UTC")), {"c": "2026-01-02T03:04:05.678Z"}),
        (pa.array([TIME.replace(tzinfo=None), None], pa.timestamp("us")), {"c": "2026-01-02T03:04:05.678"}),
        (pa.array([[1, None], None]), {"c": [1, None]}),
        (pa.array([{"a": 1, "b": None}, None]), {"c": {"a": 1}}),
        (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), {"c": {"k": 1}}),
        (pa.array([[], None], pa.map_(pa.string(), pa.int64())), {"c": {}}),
    ],
)
def test_each_type_and_its_null(column, wanted):
    batch = pa.record_batch([pa.array([b"k", b"k"]), column], names=["key", "c"])
    found = [json.loads(value) for value in json_values(batch, ["c"]).to_pylist()]
    assert found[0] == wanted
    assert found[1] == {}


def test_columns_in_their_order_without_blanks():
    batch = pa.record_batch([pa.array([1]), pa.array(["x"]), pa.array([2])], names=["b", "key", "a"])
    assert json_values(batch, ["b", "a"]).to_pylist() == [b'{"b":1,"a":2}']


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (spark.TimeType(6), r"column 'c' is of type time\(6\)"),
        (spark.VariantType(), "column 'c' is of type variant"),
        (spark.DayTimeIntervalType(), "column 'c' is of type interval day to second"),
        (spark.YearMonthIntervalType(), "column 'c' is of type interval year to month"),
        (spark.CalendarIntervalType(), "column 'c' is of type interval"),
        (
            spark.StructType([spark.StructField("a", spark.ArrayType(spark.VariantType()))]),
            r"column 'c.a\[\]' is of type variant",
        ),
        (spark.MapType(spark.StringType(), spark.VariantType()), r"column 'c\[\]' is of type variant"),
        (
            spark.MapType(spark.StructType([spark.StructField("a", spark.LongType())]), spark.LongType()),
            "column 'c' is a map whose keys are struct<a:bigint>",
        ),
        (spark.MapType(spark.BinaryType(), spark.LongType()), "column 'c' is a map whose keys are binary"),
        (spark.MapType(spark.DoubleType(), spark.LongType()), "column 'c' is a map whose keys are double"),
        (spark.MapType(spark.DateType(), spark.LongType()), "column 'c' is a map whose keys are date"),
    ],
)
def test_types_without_a_plain_form_are_refused(kind, text):
    with pytest.raises(ValueError, match=text):
        check_json_type("c", kind)


def test_types_that_are_written():
    check_json_type("c", spark.MapType(spark.LongType(), spark.ArrayType(spark.DecimalType(10, 2))))
    check_json_type("c", spark.StructType([spark.StructField("a", spark.NullType())]))


@pytest.mark.slow
def test_values_are_those_of_to_json(spark):
    """Numbers as numbers, and all else letter by letter; but for decimals, which are strings here."""
    frame = spark.sql(
        "SELECT 'x' AS s, true AS b, cast(1 AS TINYINT) AS i, 9007199254740993 AS l, cast(0.1 AS FLOAT) AS f, "
        "cast(16777217 AS FLOAT) AS g, 1e300 AS d, date'2026-01-02' AS day, cast(null AS INT) AS n, "
        "array(1, null) AS a, map('k', cast(0.3 AS FLOAT)) AS m, map(1, 'one') AS numbered, "
        "struct(1 AS p, cast(null AS INT) AS q) AS t"
    )
    [row] = frame.selectExpr("to_json(struct(*)) AS json").collect()
    [value] = json_values(frame.toArrow().combine_chunks().to_batches()[0], frame.columns).to_pylist()
    assert json.loads(value) == json.loads(row.json)
