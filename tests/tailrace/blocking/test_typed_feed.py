"""A blocking handle with serializers."""

from __future__ import annotations

import pytest

from tailrace import BadValue, JSONSerializer, Mutations, Put


def test_typed_rows_in_and_out(client, feed):
    typed = client.feed(feed.name, serializer=JSONSerializer(), key_serializer=JSONSerializer())
    version = typed.put(["a", 1], {"city": "Rome"})
    assert typed.get(["a", 1])[:3] == (["a", 1], {"city": "Rome"}, version)
    with typed.writer() as writer:
        writer.put("b", 1)
        writer.write([Put("c", 2)])
        writer.delete("b")
    assert {str(item.key): item.value for item in typed.items()} == {"['a', 1]": {"city": "Rome"}, "c": 2}
    with typed.consume(until="now") as stream:
        rows = [row for event in stream if isinstance(event, Mutations) for row in event]
    assert {str(row.key): row.value for row in rows} == {"['a', 1]": {"city": "Rome"}, "b": None, "c": 2}
    feed.put(b"{", b"1")
    with pytest.raises(BadValue, match=r"the key of the row with the key b'{'"):
        list(typed.items())
