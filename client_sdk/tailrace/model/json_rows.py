"""Mutations and items as JSON objects, for people, scripts and browsers: docs/formats/websocket.md, Rows. Pure.

Bytes that are UTF-8 become a string. Others become their base64, and the field's name with ``_encoding`` behind it says
so: ``{"key": "//4=", "key_encoding": "base64"}``. So a reader of text needs no decoding, and no value is ambiguous.
"""

from __future__ import annotations

import base64
from typing import Any

from tailrace.model.values import Item, Mutation


def bytes_field(name: str, data: bytes) -> dict[str, str]:
    """Returns ``data`` as the field ``name`` of an object, with the marker of base64 if it is not UTF-8."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode("ascii"), f"{name}_encoding": "base64"}


def field_bytes(row: dict[str, Any], name: str) -> bytes | None:
    """Reads the result of ``bytes_field``; None if the field is null. Raises KeyError, ValueError, TypeError."""
    value, encoding = row[name], row.get(f"{name}_encoding")
    if value is None:
        return None
    if encoding is None:
        return str.encode(value)
    if encoding != "base64":
        raise ValueError(f"{name}_encoding is {encoding!r}; only 'base64' is known")
    return base64.b64decode(value, validate=True)


def mutation_to_row(mutation: Mutation) -> dict[str, Any]:
    """Returns key, value (null for a deletion), seq, deleted, timestamp (microseconds since 1970), expired if it is."""
    value = {"value": None} if mutation.value is None else bytes_field("value", mutation.value)
    row = {
        **bytes_field("key", mutation.key),
        **value,
        "seq": mutation.seq,
        "deleted": mutation.deleted,
        "timestamp": mutation.timestamp,
    }
    return {**row, "expired": True} if mutation.expired else row


def item_to_row(item: Item) -> dict[str, Any]:
    """Returns the fields of a mutation, with the partition and the branch (hex)."""
    row = mutation_to_row(Mutation(item.key, item.value, item.version.seq, item.timestamp, False))
    return {**row, "partition": item.version.partition, "branch": item.version.branch.hex()}
