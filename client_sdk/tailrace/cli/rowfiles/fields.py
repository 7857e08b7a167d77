"""Makes a change of a record, by the names of its fields. Pure."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX
from tailrace.cli.rowfiles.records import BadRecord, Record
from tailrace.model import Delete, Put
from tailrace.model.json_rows import bytes_field

# Behind the name of a field: how its bytes are written as text (docs/formats/websocket.md, Rows).
ENCODING = "_encoding"
_FLAGS = {"true": True, "1": True, "false": False, "0": False, "": False}


class Fields(NamedTuple):
    """The names of the fields.

    Attributes:
        key: The field of the key.
        value: The field of the value; None: the value is the whole record, as JSON.
        deleted: The field that says that the key is deleted; None: no record deletes. A record may lack it.
    """

    key: str
    value: str | None
    deleted: str | None

    @staticmethod
    def named(key: str | None, value: str | None, deleted: str | None) -> Fields:
        """Returns the fields that options name. Without any of them they are those of `tailrace export`."""
        if key is None and value is None:
            return Fields("key", "value", deleted or "deleted")
        return Fields(key or "key", value, deleted)

    def columns(self, names: list[str]) -> list[str]:
        """Returns those of a file's columns that are needed, in their order."""
        if self.value is None:
            return names
        wanted = {self.key, self.value, self.deleted, self.key + ENCODING, self.value + ENCODING}
        return [name for name in names if name in wanted]

    def change(self, record: Record) -> Put | Delete:
        """Returns the change that a record asks for. Raises BadRecord."""
        key = self._key(record)
        if self._is_deleted(record):
            return Delete(key)
        value = self._value(record)
        if len(value) > VALUE_BYTES_MAX:
            raise BadRecord(
                record.place, f"the value has {len(value):,} bytes, and may have {VALUE_BYTES_MAX:,} at most"
            )
        return Put(key, value)

    def _key(self, record: Record) -> bytes:
        found = _field(record, self.key)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        key = _as_bytes(record, self.key, found)
        if key is None:
            raise BadRecord(
                record.place, f"{self.key!r} is {found!r:.60}; a key is a string, or a number without a point"
            )
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise BadRecord(record.place, f"the key has {len(key):,} bytes; a key has 1 to {KEY_BYTES_MAX:,}")
        return key

    def _is_deleted(self, record: Record) -> bool:
        if self.deleted is None:
            return False
        found = record.fields.get(self.deleted)
        flag = _FLAGS.get(str(found).lower()) if found is not None else False
        if flag is None:
            raise BadRecord(record.place, f"{self.deleted!r} is {found!r:.60}, and has to be true or false")
        return flag

    def _value(self, record: Record) -> bytes:
        if self.value is None:
            return to_json(record.fields) if record.text is None else record.text
        found = _field(record, self.value)
        if found is None:
            hint = f"; a record with {self.deleted!r} true deletes its key" if self.deleted else ""
            raise BadRecord(record.place, f"{self.value!r} is null{hint}")
        value = _as_bytes(record, self.value, found)
        return _json_of(record, self.value, found) if value is None else value


def _field(record: Record, name: str) -> Any:
    try:
        return record.fields[name]
    except KeyError:
        has = ", ".join(map(repr, list(record.fields)[:8]))
        raise BadRecord(record.place, f"there is no field {name!r}; it has {has or 'none'}") from None


def _as_bytes(record: Record, name: str, found: Any) -> bytes | None:
    """Returns a string or bytes as bytes, decoded as the record says; None for anything else. Raises BadRecord."""
    if isinstance(found, bytes):
        return found
    if not isinstance(found, str):
        return None
    encoding = record.fields.get(name + ENCODING) or ""
    try:
        if not encoding:
            return found.encode()
        if encoding == "base64":
            return base64.b64decode(found, validate=True)
    except ValueError as error:  # a lone surrogate, or no base64
        raise BadRecord(record.place, f"{name!r}: {error}") from None
    raise BadRecord(record.place, f"'{name}{ENCODING}' is {encoding!r:.60}; only 'base64' is known")


def _json_of(record: Record, name: str, found: Any) -> bytes:
    if record.text is None:
        return to_json(found)
    try:
        return to_json(found, allow_nan=False)
    except ValueError:  # 1e999, which a double reads as infinity
        raise BadRecord(
            record.place, f"{name!r} has a number that is too large for a double: write it as a string"
        ) from None


def to_json(value: Any, *, allow_nan: bool = True) -> bytes:
    """Returns a value of a record as JSON in UTF-8, without blanks.

    Times are ISO 8601; decimals and UUIDs are strings; bytes are a string if they are UTF-8, and else base64.
    Without ``allow_nan`` a number that JSON does not have raises ValueError.
    """
    plain = _plain(value)
    try:
        return json.dumps(plain, ensure_ascii=False, allow_nan=allow_nan, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair: JSON has it as an escape, UTF-8 has not
        return json.dumps(plain, allow_nan=allow_nan, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        for name, found in value.items():
            if isinstance(found, bytes):
                fields.update(bytes_field(str(name), found))
            else:
                fields[str(name)] = _plain(found)
        return fields
    if isinstance(value, list | tuple):
        return [_plain(found) for found in value]
    if isinstance(value, bytes):
        return bytes_field("", value)[""]
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    return value
