"""Bytes as JSON: text as it is, anything else as base64 with a marker, and always readable back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import Item, Mutation, Version
from tailrace.model.json_rows import bytes_field, field_bytes, item_to_row, mutation_to_row


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_bytes_survive_json(data):
    row = json.loads(json.dumps(bytes_field("value", data)))
    assert field_bytes(row, "value") == data
    assert ("value_encoding" in row) == (data.decode(errors="replace").encode() != data)


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (b"plain", {"key": "plain"}),
        ("\u00e9\u2028\x00".encode(), {"key": "\u00e9\u2028\x00"}),
        (b"", {"key": ""}),
        (b"\xff\xfe", {"key": "//4=", "key_encoding": "base64"}),
        (b"\xed\xa0\x80", {"key": "7aCA", "key_encoding": "base64"}),  # half of a surrogate pair is no UTF-8
    ],
)
def test_how_bytes_are_written(data, row):
    assert bytes_field("key", data) == row


def test_a_deletion_has_a_value_of_null():
    row = mutation_to_row(Mutation(b"k", None, 7, 1_700_000_000_000_000, True))
    assert row == {"key": "k", "value": None, "seq": 7, "deleted": True, "timestamp": 1_700_000_000_000_000}
    assert field_bytes(row, "value") is None


def test_an_item_has_its_version():
    row = item_to_row(Item(b"k", b"\xff", Version(3, bytes(range(16)), 9), 5))
    assert row == {
        "key": "k",
        "value": "/w==",
        "value_encoding": "base64",
        "seq": 9,
        "deleted": False,
        "timestamp": 5,
        "partition": 3,
        "branch": bytes(range(16)).hex(),
    }


def test_an_unknown_encoding_is_refused():
    with pytest.raises(ValueError, match="'rot13'; only 'base64'"):
        field_bytes({"key": "x", "key_encoding": "rot13"}, "key")
    with pytest.raises(ValueError, match=r".*"):
        field_bytes({"key": "not base64!", "key_encoding": "base64"}, "key")


def test_an_expiry_is_marked():
    row = mutation_to_row(Mutation(b"k", None, 7, 1, True, True))
    assert row == {"key": "k", "value": None, "seq": 7, "deleted": True, "timestamp": 1, "expired": True}
