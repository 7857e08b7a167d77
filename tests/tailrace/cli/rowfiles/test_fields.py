"""Records become changes, or errors that name their place."""

from __future__ import annotations

import datetime
import decimal

import pytest

from tailrace import Delete, Put
from tailrace.cli.rowfiles.fields import Fields, to_json
from tailrace.cli.rowfiles.records import BadRecord, Record

EXPORTED = Fields.named(None, None, None)


def record(text=None, **fields):
    return Record("line 7", fields, text)


def test_without_options_the_fields_are_those_of_an_export():
    assert Fields("key", "value", "deleted") == EXPORTED
    assert Fields.named("id", None, None) == Fields("id", None, None)
    assert Fields.named("id", None, "gone") == Fields("id", None, "gone")
    assert Fields.named(None, "v", None) == Fields("key", "v", None)


@pytest.mark.parametrize(
    ("fields", "change"),
    [
        ({"key": "k", "value": "v"}, Put(b"k", b"v")),
        ({"key": "k", "value": ""}, Put(b"k", b"")),
        ({"key": b"k\xff", "value": b"\x00"}, Put(b"k\xff", b"\x00")),
        ({"key": 17, "value": "v", "seq": 9, "timestamp": 3}, Put(b"17", b"v")),
        ({"key": "//4=", "key_encoding": "base64", "value": "v"}, Put(b"\xff\xfe", b"v")),
        ({"key": "k", "value": "//4=", "value_encoding": "base64"}, Put(b"k", b"\xff\xfe")),
        ({"key": "k", "key_encoding": "", "value": "v", "deleted": "false"}, Put(b"k", b"v")),
        ({"key": "k", "value": {"a": [1, None]}}, Put(b"k", b'{"a":[1,null]}')),
        ({"key": "k", "value": 1.5}, Put(b"k", b"1.5")),
        ({"key": "k", "value": False}, Put(b"k", b"false")),
        ({"key": "k", "value": None, "deleted": True}, Delete(b"k")),
        ({"key": "k", "deleted": "TRUE"}, Delete(b"k")),
        ({"key": "k", "value": "v", "deleted": None}, Put(b"k", b"v")),
    ],
)
def test_a_change(fields, change):
    assert EXPORTED.change(record(**fields)) == change


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"value": "v"}, "there is no field 'key'; it has 'value'"),
        ({}, "there is no field 'key'; it has none"),
        ({"key": "k"}, "there is no field 'value'; it has 'key'"),
        ({"key": None, "value": "v"}, "'key' is None; a key is a string, or a number without a point"),
        ({"key": 1.0, "value": "v"}, "'key' is 1.0; a key is"),
        ({"key": True, "value": "v"}, "'key' is True; a key is"),
        ({"key": "", "value": "v"}, "the key has 0 bytes"),
        ({"key": "k" * 4097, "value": "v"}, "the key has 4,097 bytes"),
        ({"key": "k", "value": bytes((16 << 20) + 1)}, "the value has 16,777,217 bytes"),
        ({"key": "k", "value": None}, "'value' is null; a record with 'deleted' true deletes its key"),
        ({"key": "k", "value": "v", "deleted": "yes"}, "'deleted' is 'yes', and has to be true or false"),
        ({"key": "?", "key_encoding": "base64", "value": "v"}, "'key': "),
        ({"key": "k", "key_encoding": "hex", "value": "v"}, "'key_encoding' is 'hex'; only 'base64' is known"),
        ({"key": "\ud800", "value": "v"}, "'key': "),
    ],
)
def test_a_record_that_cannot_be_used_names_its_place(fields, why):
    with pytest.raises(BadRecord) as caught:
        EXPORTED.change(record(**fields))
    assert str(caught.value).startswith(f"line 7: {why}")


def test_a_number_that_json_does_not_have_is_not_stored():
    """1e999 of a line of JSON is infinity for Python, which would write it so. The whole line stays as it is."""
    value = {"price": float("1e999")}
    with pytest.raises(BadRecord, match="line 7: 'value' has a number that is too large"):
        EXPORTED.change(record(text=b'{"key": "k", "value": {"price": 1e999}}', key="k", value=value))
    whole = record(text=b'{"id": "k", "price": 1e999}', id="k", **value)
    assert Fields.named("id", None, None).change(whole) == Put(b"k", b'{"id": "k", "price": 1e999}')


def test_a_null_without_a_field_of_deletions_has_no_advice():
    with pytest.raises(BadRecord, match=r"^line 7: 'value' is null$"):
        Fields.named(None, "value", None).change(record(key="k", value=None))


def test_the_whole_record_is_the_value_as_it_is_written():
    whole = Fields.named("id", None, None)
    assert whole.change(record(b'{"id": 1, "n": 1.10}', id=1, n=1.1)) == Put(b"1", b'{"id": 1, "n": 1.10}')
    row = {"id": "a", "n": decimal.Decimal("1.10"), "at": datetime.datetime(2026, 11, 28, 1, 2), "raw": b"\xff"}
    said = b'{"id":"a","n":"1.10","at":"2026-11-28T01:02:00","raw":"/w==","raw_encoding":"base64"}'
    assert whole.change(record(**row)) == Put(b"a", said)


def test_only_the_needed_columns_are_read():
    names = ["a", "value", "key", "deleted", "value_encoding", "seq"]
    assert EXPORTED.columns(names) == ["value", "key", "deleted", "value_encoding"]
    assert Fields.named("key", None, None).columns(names) == names


def test_half_of_a_surrogate_pair_stays_an_escape():
    assert to_json({"ö": "\ud800"}) == b'{"\\u00f6":"\\ud800"}'


def test_json_is_utf8_without_blanks():
    assert to_json({"ä": ["ö", 1]}) == '{"ä":["ö",1]}'.encode()
