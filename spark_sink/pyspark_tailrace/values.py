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
    types = {name: batch.schema.field(name).type for name in columns}
    rows = batch.select(list(columns)).to_pylist()
    return pa.array([_encode({name: _value(row[name], types[name]) for name in columns}) for row in rows], pa.binary())


def _encode(row: dict[str, Any]) -> bytes:
    row = {name: value for name, value in row.items() if value is not None}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _value(value: Any, kind: Any) -> Any:
    """``value`` of Arrow type ``kind``, without the members of objects that are null."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {_name(name): _value(member, kind.item_type) for name, member in value}
    if pa.types.is_struct(kind):
        members = {field.name: _value(value[field.name], field.type) for field in kind}
        return {name: member for name, member in members.items() if member is not None}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _name(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_plain(value))


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
