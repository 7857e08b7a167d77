"""Values made of columns: a JSON object of each row. By rows, since Arrow writes no JSON.

Nearly as Spark's ``to_json`` writes it: a column that is null is left out, times are ISO 8601, binary is base64. A
decimal is a string, with all of its digits, which a number of JSON may not keep.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def json_values(batch: pa.RecordBatch, columns: Sequence[str]) -> Any:
    """Binary array of one JSON object for each row, of these columns in this order."""
    rows = batch.select(list(columns)).to_pylist()
    return pa.array([_encode(row) for row in rows], pa.binary())


def _encode(row: dict[str, Any]) -> bytes:
    return json.dumps(_without_nulls(row), ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _without_nulls(value: Any) -> Any:
    """``value`` without the members of objects that are null, and with what JSON has no number for as a string."""
    if isinstance(value, dict):
        return {name: _without_nulls(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):  # a map, as Arrow gives it
            return {_name(name): _without_nulls(member) for name, member in value}
        return [_without_nulls(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _name(value: Any) -> str:
    if isinstance(value, str):
        return value
    found = _without_nulls(value)
    return str(found).lower() if isinstance(found, bool) else str(_plain(found))


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    match value:
        case datetime.datetime():
            text = value.isoformat(timespec="milliseconds" if value.microsecond % 1000 == 0 else "microseconds")
            return text.removesuffix("+00:00") + "Z" if value.utcoffset() == datetime.timedelta(0) else text
        case datetime.date():
            return value.isoformat()
        case datetime.timedelta():
            return str(value)
        case decimal.Decimal():
            return f"{value:f}"
        case bytes():
            return base64.b64encode(value).decode()
    return value
