"""Serializers: values go and come back, and what is none of theirs is a ValueError."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace import AvroSerializer, BytesSerializer, JSONSerializer, MsgPackSerializer, Serializer

SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "city", "type": "string"},
        {"name": "age", "type": ["null", "long"], "default": None},
        {"name": "on", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
    ],
}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
ORDERS = st.fixed_dictionaries(
    {"city": st.text(), "age": st.none() | st.integers(-(2**63), 2**63 - 1), "on": st.none() | st.dates()}
)


@settings(max_examples=examples(100))
@given(JSON)
def test_json_and_msgpack_give_values_back(value):
    try:
        encoded = JSONSerializer().dumps(value)
    except UnicodeEncodeError:
        return  # half of a surrogate pair
    assert JSONSerializer().loads(encoded) == value
    assert MsgPackSerializer().loads(MsgPackSerializer().dumps(value)) == value


@settings(max_examples=examples(100))
@given(ORDERS)
def test_avro_gives_values_back(value):
    serializer = AvroSerializer(SCHEMA)
    assert serializer.loads(serializer.dumps(value)) == value


@settings(max_examples=examples(200))
@given(st.binary(max_size=40))
def test_other_bytes_are_a_value_error_or_a_value(data):
    for serializer in (JSONSerializer(), MsgPackSerializer(), AvroSerializer(SCHEMA)):
        with contextlib.suppress(ValueError):
            serializer.loads(data)


@pytest.mark.parametrize(
    ("serializer", "value"),
    [
        (JSONSerializer(), {1, 2}),
        (JSONSerializer(), float("nan")),
        (MsgPackSerializer(), object()),
        (MsgPackSerializer(), 2**70),
        (AvroSerializer(SCHEMA), {"city": 7}),
        (AvroSerializer(SCHEMA), {}),
        (AvroSerializer(SCHEMA), {"city": "x", "other": 1}),
        (BytesSerializer(), "text"),
    ],
)
def test_values_that_cannot_be_written(serializer, value):
    with pytest.raises(ValueError, match=r"."):
        serializer.dumps(value)


def test_each_has_a_name():
    kinds = [JSONSerializer(), MsgPackSerializer(), BytesSerializer(), AvroSerializer(SCHEMA), AvroSerializer("long")]
    assert all(isinstance(kind, Serializer) for kind in kinds)
    assert len({kind.name for kind in kinds}) == len(kinds)
    assert AvroSerializer(SCHEMA).name == AvroSerializer(dict(SCHEMA)).name


def test_bytes_stay_as_they_are():
    assert BytesSerializer().loads(BytesSerializer().dumps(b"x")) == b"x"


@pytest.mark.parametrize("schema", [{"type": "record"}, "nothing", 7, {"type": "record", "name": "x", "fields": 3}])
def test_wrong_schemas(schema):
    with pytest.raises(ValueError, match="Avro schema is not valid"):
        AvroSerializer(schema)


def test_a_date_of_avro():
    serializer = AvroSerializer(SCHEMA)
    value = {"city": "Ulm", "age": 7, "on": datetime.date(2026, 1, 2)}
    assert serializer.loads(serializer.dumps(value)) == value
