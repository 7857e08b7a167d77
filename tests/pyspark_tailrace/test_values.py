from __future__ import annotations

import datetime
import decimal
import json
import math

import pyarrow as pa
import pytest

from pyspark_tailrace.values import json_values

UTC = datetime.UTC
TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (pa.array([1, None], pa.int64()), {"c": 1}),
        (pa.array(['ü"\n', None]), {"c": 'ü"\n'}),
        (pa.array([True, None]), {"c": True}),
        (pa.array([1.5, None]), {"c": 1.5}),
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
