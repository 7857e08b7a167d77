"""Typed keys and values become bytes, and bytes typed; what cannot be read says where it is."""

from __future__ import annotations

import pytest

from tailrace.block import encode_block
from tailrace.codec import Codec
from tailrace.consuming.events import Mutations
from tailrace.consuming.typed_session import TypedMutations
from tailrace.errors import BadValue
from tailrace.model import Delete, Item, Put, Version
from tailrace.serializers import JSONSerializer

JSON = JSONSerializer()
TYPED = Codec("orders", JSON, JSON)
VALUES = Codec("orders", JSON, None)


def event(*rows, first_seq=10):
    keys, values = zip(*rows, strict=True)
    block = encode_block(list(keys), list(values), partition=3).stamped(first_seq, 5)
    return Mutations(block, branch=b"b" * 16)


def test_to_bytes():
    assert (TYPED.key_bytes(7), TYPED.value_bytes({"a": 1})) == (b"7", b'{"a":1}')
    assert (VALUES.key_bytes(b"7"), VALUES.value_bytes([1])) == (b"7", b"[1]")
    assert Codec("orders", None, JSON).value_bytes(b"v") == b"v"
    assert TYPED.changes([Put(1, "x"), Delete(2)]) == [Put(b"1", b'"x"'), Delete(b"2")]
    with pytest.raises(TypeError, match="a value is None, which stands for a deletion"):
        TYPED.value_bytes(None)
    with pytest.raises(ValueError, match="JSON has no such value"):
        TYPED.value_bytes(object())


def test_an_object_that_is_no_serializer():
    class Nameless:
        dumps = loads = None

    with pytest.raises(TypeError, match=r"key_serializer is 'json', and has to be a tailrace.Serializer"):
        Codec("orders", None, "json")
    with pytest.raises(TypeError, match="an object with name, dumps and loads"):
        Codec("orders", Nameless(), None)


def test_from_bytes():
    version = Version(3, b"b" * 16, 10)
    assert TYPED.item(Item(b"1", b'"x"', version, 5)) == Item(1, "x", version, 5)
    assert VALUES.items([Item(b"1", b'"x"', version, 5), None]) == [Item(b"1", "x", version, 5), None]
    assert TYPED.known_keys([b"1", b"{"]) == (1, b"{")


def test_events():
    raw = event((b"1", b'"x"'), (b"2", None), (b"3", b"{}"))
    typed = TypedMutations(raw, TYPED)
    assert [(row.key, row.value, row.seq, row.deleted) for row in typed] == [
        (1, "x", 10, False),
        (2, None, 11, True),
        (3, {}, 12, False),
    ]
    assert [row.version for row in typed] == [row.version for row in raw]
    assert list(typed.one_by_one()) == list(typed)
    assert (typed.keys(), typed.values()) == ([1, 2, 3], ["x", None, {}])
    assert (len(typed), typed.partition, list(typed.seqs()), typed.raw) == (3, 3, [10, 11, 12], raw)
    first, rest = typed.split(1)
    assert ([row.key for row in first], rest.values()) == ([1], [None, {}])


def test_a_stream_without_values():
    keys_only = Mutations(event((b"1", b"{")).block, keys_only=True)
    assert TypedMutations(keys_only, TYPED).values() == [None]


@pytest.mark.parametrize("read", [list, lambda rows: list(rows.one_by_one()), TypedMutations.values])
def test_a_value_that_cannot_be_read(read):
    typed = TypedMutations(event((b"1", b"1"), (b"2", b"{")), TYPED)
    with pytest.raises(
        BadValue, match=r"the value of the row with the key b'2' at seq 11 of partition 3 of feed 'or"
    ) as caught:
        read(typed)
    assert (caught.value.partition, caught.value.seq, caught.value.key) == (3, 11, b"2")
    assert "cannot be read as json: b'{' is not JSON" in str(caught.value)
    assert [row.value for row in typed.raw] == [b"1", b"{"]


def test_a_key_that_cannot_be_read():
    with pytest.raises(BadValue, match=r"the key of the row with the key b'{' at seq 10"):
        TypedMutations(event((b"{", b"1")), TYPED).keys()


def test_an_iteration_goes_on_behind_a_bad_row():
    rows = iter(TypedMutations(event((b"1", b"{"), (b"2", b"2")), TYPED))
    with pytest.raises(BadValue):
        next(rows)
    assert next(rows).value == 2


def test_an_error_of_any_library_names_the_row():
    class Picky(JSONSerializer):
        def loads(self, data):
            raise KeyError("city")

    with pytest.raises(BadValue, match=r"cannot be read as json: KeyError\('city'\)\. Write the key again") as caught:
        Codec("orders", Picky(), None).value(b"{}", b"k", 0, 7)
    assert isinstance(caught.value.__cause__, KeyError)
