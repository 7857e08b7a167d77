"""Typed values: serializers make bytes of a value, and a value of bytes.

A feed holds bytes. A program writes ``feed.put(key, serializer.dumps(value))``, reads ``serializer.loads(item.value)``,
and gives the same serializer to an index, whose columns are taken from the values.
"""

from __future__ import annotations

import io
import json
from typing import Any, Protocol, runtime_checkable

__all__ = ["AvroSerializer", "BytesSerializer", "JSONSerializer", "MsgPackSerializer", "Serializer"]


@runtime_checkable
class Serializer(Protocol):
    """Makes bytes of values, and values of bytes. A program may have one of its own.

    Any thread may use one. An index records ``name``, and refuses a serializer of another name.

    Attributes:
        name: The form of the bytes, such as "json". One name for one form of bytes.
    """

    name: str

    def dumps(self, value: Any) -> bytes:
        """Makes bytes of a value.

        Args:
            value: The value.

        Returns:
            The bytes, for `Feed.put`.

        Raises:
            ValueError: The value cannot be written.
        """
        ...

    def loads(self, data: bytes) -> Any:
        """Makes a value of bytes.

        Args:
            data: The value of a row.

        Returns:
            The value.

        Raises:
            ValueError: The bytes are not of this form. To an index this is a bad row.
        """
        ...


class BytesSerializer:
    """Leaves values as they are: bytes.

    Attributes:
        name: "bytes".
    """

    name = "bytes"

    def dumps(self, value: bytes) -> bytes:
        """Returns the value.

        Args:
            value: The value.

        Returns:
            The same bytes.

        Raises:
            ValueError: The value is not bytes.
        """
        if not isinstance(value, bytes):
            raise ValueError(f"a value of bytes is needed, not {type(value).__name__}")
        return value

    def loads(self, data: bytes) -> bytes:
        """Returns the bytes.

        Args:
            data: The value of a row.

        Returns:
            The same bytes.
        """
        return data


class JSONSerializer:
    """Values as JSON in UTF-8, without spaces.

    Attributes:
        name: "json".
    """

    name = "json"

    def dumps(self, value: Any) -> bytes:
        """Writes a value as JSON.

        Args:
            value: What ``json`` can write, without NaN.

        Returns:
            The bytes.

        Raises:
            ValueError: JSON has no such value.
        """
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, RecursionError) as error:
            raise ValueError(f"JSON has no such value: {error}") from error

    def loads(self, data: bytes) -> Any:
        """Reads a value.

        Args:
            data: JSON in UTF-8.

        Returns:
            The value.

        Raises:
            ValueError: The bytes are not JSON.
        """
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{data[:40]!r} is not JSON: {error}") from error


class MsgPackSerializer:
    """Values as MessagePack. Text and bytes stay apart.

    Attributes:
        name: "msgpack".

    Raises:
        ImportError: msgpack is missing; ``pip install 'tailrace[msgpack]'`` installs it.
    """

    name = "msgpack"

    def __init__(self) -> None:
        try:
            import msgpack
        except ImportError as error:
            raise ImportError("MsgPackSerializer needs msgpack: pip install 'tailrace[msgpack]'") from error
        self._msgpack: Any = msgpack

    def dumps(self, value: Any) -> bytes:
        """Writes a value as MessagePack.

        Args:
            value: The value.

        Returns:
            The bytes.

        Raises:
            ValueError: MessagePack has no such value.
        """
        try:
            packed: bytes = self._msgpack.packb(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"MessagePack has no such value: {error}") from error
        return packed

    def loads(self, data: bytes) -> Any:
        """Reads a value.

        Args:
            data: MessagePack.

        Returns:
            The value.

        Raises:
            ValueError: The bytes are not MessagePack.
        """
        try:
            return self._msgpack.unpackb(data)
        except (ValueError, TypeError, self._msgpack.exceptions.UnpackException) as error:
            raise ValueError(f"{data[:40]!r} is not MessagePack: {error!r}") from error


class AvroSerializer:
    """Values of one Avro schema, without the schema in each: all writers and readers of a feed need the same one.

    Attributes:
        name: "avro" and the fingerprint of the schema.

    Args:
        schema: The schema, as its JSON gives it.

    Raises:
        ValueError: The schema is not valid.
        ImportError: fastavro is missing; ``pip install 'tailrace[avro]'`` installs it.
    """

    def __init__(self, schema: Any) -> None:
        try:
            import fastavro
            import fastavro.schema
        except ImportError as error:
            raise ImportError("AvroSerializer needs fastavro: pip install 'tailrace[avro]'") from error
        self._fastavro: Any = fastavro
        try:
            self._schema: Any = fastavro.parse_schema(schema)
            canonical = fastavro.schema.to_parsing_canonical_form(self._schema)
            self.name = f"avro-{fastavro.schema.fingerprint(canonical, 'CRC-64-AVRO')}"
        except (
            fastavro.schema.SchemaParseException,
            fastavro.schema.UnknownType,
            ValueError,
            TypeError,
            KeyError,
        ) as error:
            raise ValueError(f"the Avro schema is not valid: {error!r}") from error

    def dumps(self, value: Any) -> bytes:
        """Writes a value by the schema.

        Args:
            value: The value; of a record a dict.

        Returns:
            The bytes.

        Raises:
            ValueError: The value is not of the schema.
        """
        into = io.BytesIO()
        try:
            self._fastavro.schemaless_writer(into, self._schema, value, strict=True)
        except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"the value is not of the Avro schema: {error!r}") from error
        return into.getvalue()

    def loads(self, data: bytes) -> Any:
        """Reads a value by the schema.

        Args:
            data: The bytes of one value.

        Returns:
            The value.

        Raises:
            ValueError: The bytes are not one value of the schema.
        """
        source = io.BytesIO(data)
        try:
            value = self._fastavro.schemaless_reader(source, self._schema, None)
        except (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, StopIteration) as error:
            raise ValueError(f"{data[:40]!r} is not of the Avro schema: {error!r}") from error
        if source.read(1):
            raise ValueError(f"{data[:40]!r} has more bytes than a value of the Avro schema")
        return value
