"""Encodes columns as values: one JSON object for each row, row by row because Arrow writes no JSON.

The form is nearly that of Spark's ``to_json``: null columns are left out, times are ISO 8601, binary is base64. A
decimal is a string with all its digits, because readers of JSON may round numbers. The schema check refuses types
without a plain form in JSON.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

_NAMES = (StringType, CharType, VarcharType, BooleanType, ByteType, ShortType, IntegerType, LongType)
_PLAIN = (
    *_NAMES,
    DateType,
    NullType,
    FloatType,
    DoubleType,
    DecimalType,
    BinaryType,
    TimestampType,
    TimestampNTZType,
)


def check_json_type(name: str, kind: DataType) -> None:
    """Raises ValueError if the type of column ``name``, or of a part of it, has no plain form in JSON."""
    if isinstance(kind, StructType):
        for member in kind.fields:
            check_json_type(f"{name}.{member.name}", member.dataType)
    elif isinstance(kind, ArrayType):
        check_json_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType):
        if type(kind.keyType) not in _NAMES:
            raise ValueError(
                f"column {name!r} is a map whose keys are {kind.keyType.simpleString()}, and a JSON object needs names "
                "(option 'value_format'): cast the keys to strings, or build the value with to_json()"
            )
        check_json_type(f"{name}[]", kind.valueType)
    elif type(kind) not in _PLAIN:
        raise ValueError(
            f"column {name!r} is of type {kind.simpleString()}, which has no plain form in JSON (option "
            "'value_format'): cast it, for example to a string, or drop it"
        )


def json_values(batch: pa.RecordBatch, columns: Sequence[str]) -> Any:
    """Returns a binary array with one JSON object for each row, of these columns in this order."""
    types = {name: batch.schema.field(name).type for name in columns}
    rows = batch.select(list(columns)).to_pylist()
    return pa.array([_encode({name: _value(row[name], types[name]) for name in columns}) for row in rows], pa.binary())


def _encode(row: dict[str, Any]) -> bytes:
    row = {name: value for name, value in row.items() if value is not None}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_plain).encode()


def _value(value: Any, kind: Any) -> Any:
    """Returns ``value``, of Arrow type ``kind``, for JSON. Null members of objects are left out."""
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
    if pa.types.is_float32(kind):
        return float(str(np.float32(value)))  # the shortest digits of this float: 0.1 stays 0.1
    return value


def _name(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_plain(value))


def _plain(value: Any) -> Any:
    """Returns a value of a type that JSON lacks in its plain form."""
    match value:
        case datetime.datetime():
            text = value.isoformat(timespec="milliseconds" if value.microsecond % 1000 == 0 else "microseconds")
            return text.removesuffix("+00:00") + "Z" if value.utcoffset() == datetime.timedelta(0) else text
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return f"{value:f}"
        case bytes():
            return base64.b64encode(value).decode()
    return value
